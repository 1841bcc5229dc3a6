"""Start-up logs of verl and slime."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from probe.api import cli
from probe.common.errors import MsprobeException
from probe.configcheck.logs import SLIME, VERL, read_log

DICTIONARY = """(TaskRunner pid=123) {'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06}, 'shuffle': False},
(TaskRunner pid=123)                        'rollout': {'n': 8, 'name': "vl{lm"}},
(TaskRunner pid=123)  'data': {'seed': None, 'api_key': 'planted', 'train_files': '/data/gsm8k.parquet'}}
(TaskRunner pid=123) begins
"""


def log(path: Path, text: str) -> str:
    path.write_text("starting\n" + text)
    return str(path)


def test_the_dictionary_is_read_without_prefixes_and_secrets(tmp_path: Path) -> None:
    assert read_log(log(tmp_path / "a.log", DICTIONARY), VERL) == {
        "actor_rollout_ref/actor/optim/lr": 1e-06,
        "actor_rollout_ref/actor/shuffle": False,
        "actor_rollout_ref/rollout/n": 8,
        "actor_rollout_ref/rollout/name": "vl{lm",
        "data/seed": None,
        "data/train_files": ".../gsm8k.parquet",
    }


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (VERL, "\n".join(DICTIONARY.splitlines()[:2]), "begins in line 2 does not end; the log is cut off at line 3"),
        (VERL, "nothing\n", f"has no configuration of {VERL}"),
        (SLIME, "nothing\n", f"has no configuration of {SLIME}"),
        # Nothing is executed.
        (VERL, "{'actor_rollout_ref': __import__('os').system('touch mark')}\n", "no dictionary of plain values"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_sentence(
    tmp_path: Path, kind: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MsprobeException, match=message):
        read_log(log(tmp_path / "a.log", text), kind)
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]


def test_arguments_of_slime_in_both_forms(tmp_path: Path) -> None:
    dotted = (
        "(A pid=1) ------ arguments ------\n(A pid=1)   lr ............................... 1e-06\n  bf16 ..... True\n"
    )
    expected = {"lr": "1e-06", "bf16": "True"}
    assert read_log(log(tmp_path / "a.log", dotted), SLIME) == expected
    assert read_log(log(tmp_path / "b.log", "Namespace(lr=1e-06, bf16=True, x=f())\n"), SLIME) == {
        "lr": 1e-06, "bf16": True, "x": "f()",
    }  # fmt: skip


def test_the_commands_write_msprobes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = log(tmp_path / "a.log", DICTIONARY), log(tmp_path / "b.log", DICTIONARY.replace("'n': 8", "'n': 4"))
    out = tmp_path / "out"
    assert cli.main(["config_check", "-vc", one, other, "-o", str(out)]) == 1
    assert "actor_rollout_ref/rollout/n: npu_value 8, bench_value 4" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"NPU_config.json", "bench_config.json", "hyper_params_compare.csv"}
    with open(out / "hyper_params_compare.csv", encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["equal"] for row in rows if row["parameter"].endswith("/n")] == ["False"]
    assert cli.main(["config_check", "-vc", one, one, "-o", str(tmp_path / "same")]) == 0
    assert cli.main(["config_check", "-vv", one, "-o", str(tmp_path / "verify")]) == 1
    assert {path.name for path in (tmp_path / "verify").iterdir()} == {"tgt_config.json", "hyper_params_verify.csv"}
    bench = tmp_path / "bench.yaml"
    bench.write_text("actor_rollout_ref: {rollout: {n: 8}}\n")
    assert cli.main(["config_check", "-vv", str(bench), one, "-o", str(tmp_path / "verify2")]) == 0
    assert json.loads((tmp_path / "verify2" / "tgt_config.json").read_text())["actor_rollout_ref/rollout/n"] == 8
    assert cli.main(["config_check", "-sc", one, one, "-o", str(tmp_path / "slime")]) == 2
