"""Secrets planted in every place that is collected from: none is in any file that is written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from probe.api import cli
from probe.common.environment.gathered import gathered
from probe.configcheck.pack import clean_frame, encoded

TOKENS = (
    "ghp_0123456789abcdefABCDEF0123456789abcd", "hf_QwErTyUiOpAsDfGhJkLzXcVbNm", "sk-proj-1234567890abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "xoxb-123456789012-abcdefABCDEF", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIx.c2ln",
    "glpat-abcdefghij0123456789", "d41d8cd98f00b204e9800998ecf8427e", "AIzaSyA-1234567890abcdefghijklm",
    "q7Hf93kLm2Pz81VbX0dTqqW4",
)  # fmt: skip
PLAIN = tuple(f"planted-{number}" for number in range(40))
"""Secrets without any form, which only their names give away."""
VARIABLES = {
    **{f"NCCL_X{number}": token for number, token in enumerate(TOKENS[:5])},
    "WANDB_API_KEY": PLAIN[0], "HF_TOKEN": PLAIN[1], "DB_PASSWORD": PLAIN[2], "MY_VALUE": PLAIN[3],
    "NCCL_SECRET": PLAIN[4],
    "TORCH_AUTH": PLAIN[5], "MS_PASSWD": PLAIN[6], "CUDA_LICENSE_KEY": PLAIN[7],
    "HCCL_URL": f"https://user:{PLAIN[8]}@example.org/x", "TORCH_EXTRA": f"password={PLAIN[9]}",
}  # fmt: skip
SCRIPT = f"""
export API_TOKEN={PLAIN[10]}
export WANDB_KEY="{PLAIN[11]}"
pip install pkg@https://me:{PLAIN[12]}@pypi.example.org/simple
python train.py --lr 1e-4 --wandb-api-key {PLAIN[13]} --hf_token={PLAIN[14]} --note {TOKENS[5]} --token $API_TOKEN \\
    --password {PLAIN[15]} --url https://x:{PLAIN[16]}@host/y --git {TOKENS[6]} \\
    --db.secret {PLAIN[17]} --a '{TOKENS[7]}'
curl -H "Authorization: Bearer {PLAIN[18]}" https://example.org
"""
YAML = f"""
training: {{lr: 1.0e-4, api_key: {PLAIN[19]}, remote: "s3://key:{PLAIN[20]}@bucket"}}
logger: {{wandb: {{token: {PLAIN[21]}, entity: team}}, headers: "Bearer {PLAIN[22]}"}}
credentials: {{user: {PLAIN[23]}, password: {PLAIN[24]}}}
list: ["{TOKENS[8]}", b]
other: {TOKENS[9]}
"""
MEGATRON = {
    "wandb_api_key": PLAIN[25],
    "hf_token": PLAIN[26],
    "tokenizer_type": "GPT2BPETokenizer",
    "secret": PLAIN[27],
}
PIP = f"torch=2.9.0\npkg @ https://user:{PLAIN[28]}@pypi.example.org=1\nother=https://{PLAIN[29]}@host\n"
STACKS = [
    f"File /home/{PLAIN[30]}/train.py, line 3, in main, token = '{PLAIN[31]}'; torch.rand(2)",
    f"File /job/train.py, line 4, in main, login(password='{PLAIN[32]}'); torch.rand(2)",
    f"File /job/train.py, line 5, in main, connect('{PLAIN[33]} and more'); torch.rand(2)",
]
PLANTED = [*TOKENS, *PLAIN]


def written(folder: Path) -> str:
    """All that is in the files of a folder, unpacked."""
    texts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                texts += [archive.read(name).decode("utf-8", "replace") + name for name in archive.namelist()]
        elif path.is_file():
            texts.append(path.read_text("utf-8", "replace"))
    return "\n".join(texts)


def test_no_secret_is_in_a_pack_nor_in_the_comparison_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openpyxl")
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    inputs = tmp_path / "in"
    inputs.mkdir()
    (inputs / "train.sh").write_text(SCRIPT)
    (inputs / "config.yaml").write_text(YAML)
    out = tmp_path / "out"
    assert (
        cli.main(
            ["config_check", "-d", str(inputs / "train.sh"), str(inputs / "config.yaml"), "-o", str(out / "a.zip")]
        )
        == 0
    )
    # A pack of msProbe, which filters nothing, on the other side.
    theirs = tmp_path / "in" / "theirs.zip"
    with zipfile.ZipFile(theirs, "w") as archive:
        archive.writestr("env", json.dumps(VARIABLES))
        archive.writestr("pip", PIP)
        archive.writestr("hyperparameters/hyperparameters_static.json", json.dumps(MEGATRON))
        archive.writestr("random/rank0.json", json.dumps({"torch.rand": [{"count": 1, "stack": STACKS}]}))
    (tmp_path / "in" / "none.zip").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "in" / "none.zip", "w") as archive:
        archive.writestr("random/rank0.json", json.dumps({"torch.randn": [{"count": 1, "stack": ["x"]}]}))
        archive.writestr("env", "{}")
    for index, side in enumerate((out / "a.zip", tmp_path / "in" / "none.zip")):
        for rules in ("probe", "msprobe"):
            folder = str(out / f"{rules}{index}")
            more = ["--xlsx"] if rules == "probe" else []
            cli.main(["config_check", "-c", str(side), str(theirs), "-o", folder, "--rules", rules, *more])
    (out / "environment.json").write_bytes(encoded(gathered()))
    shown = capsys.readouterr()
    everything = written(out) + shown.out + shown.err
    assert [each for each in PLANTED if each in everything] == []
    planted = json.dumps([VARIABLES, SCRIPT, YAML, MEGATRON, PIP, STACKS])
    assert sum(each in planted for each in PLANTED) >= 44
    # What is no secret is there.
    assert "1e-4" in everything and "entity" in everything and "GPT2BPETokenizer" in everything


def test_stacks_lose_folders_and_secrets() -> None:
    assert clean_frame("File /job/dyn.py, line 14, in <module>, noise=torch.rand(2,4)") == (
        "File dyn.py, line 14, in <module>, noise=torch.rand(2,4)"
    )
    text = "\n".join(map(clean_frame, STACKS))
    assert [each for each in PLANTED if each in text] == []
