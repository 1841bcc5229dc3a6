"""Two virtual environments and two start scripts with twenty planted differences: all are named, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from scripts import CHECKOUT

from probe.api import cli

PACKAGES = {
    "a": {"torch": "2.7.1", "transformers": "4.57.0", "numpy": "2.0.1", "flash_attn": "2.6.3", "peft": "0.12.0"},
    "b": {"torch": "2.9.0", "transformers": "5.0.0", "numpy": "1.26.4", "peft": "0.13.0"},
}
VARIABLES = {
    "a": {
        "NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    },
    "b": {"NCCL_ALGO": "Tree", "PYTHONHASHSEED": "2", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "0,1,2"},
}  # fmt: skip
SCRIPTS = {
    "a": "LR=1e-4\nMODEL=(--num-layers 32 --hidden-size 64)\n"
    'torchrun --nproc_per_node 2 train.py --lr $LR --seed 1 --bf16 --micro-batch-size 4 "${MODEL[@]}" --dropout 0.1\n',
    "b": "python train.py --learning-rate 2e-4 --seed 2 --dtype float16 --batch-size 8 --num-layers 24 --hidden-size 64"
    " --dropout 0.0 --attention-softmax-in-fp32\n",
}
SETTINGS = {
    "a": "optimizer: {weight_decay: 0.1, eps: 1e-8, max_grad_norm: 1.0}\n",
    "b": "optimizer: {wd: 0.01, adam_eps: 0.00000001, clip_grad: 0.5}\n",
}
SAME = "another name of the same setting"
EXPECTED = {
    "env": {"NCCL_ALGO", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"},
    "pip": {"torch", "transformers", "numpy", "flash_attn", "peft"},
    "hyperparameters": {
        f"learning-rate (golden: lr, {SAME})", "seed", f"dtype (golden: bf16, {SAME})",
        f"batch-size (golden: micro-batch-size, {SAME})", "num-layers", "dropout", "attention-softmax-in-fp32",
        "launcher.nproc_per_node", f"optimizer.wd (golden: optimizer.weight_decay, {SAME})",
        f"optimizer.clip_grad (golden: optimizer.max_grad_norm, {SAME})",
    },
}  # fmt: skip


def environment(folder: Path, packages: dict[str, str]) -> Path:
    """A virtual environment with these packages; what the tool needs comes from that of the tests."""
    venv.create(folder, with_pip=False, symlinks=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    for name, version in packages.items():
        info = own / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (own / "tests.pth").write_text("\n".join([CHECKOUT, *(each for each in sys.path if "packages" in each)]))
    return folder / "bin" / "python"


def test_twenty_planted_differences_are_named_and_no_other(tmp_path: Path) -> None:
    for side in ("a", "b"):
        (tmp_path / f"{side}.sh").write_text(SCRIPTS[side])
        (tmp_path / f"{side}.yaml").write_text(SETTINGS[side])
        python = environment(tmp_path / f"env_{side}", PACKAGES[side])
        arguments = ["-m", "probe.api.cli", "config_check", "-d", f"{side}.sh", f"{side}.yaml", "-o", f"{side}.zip"]
        ours = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
        variables = {**ours, **VARIABLES[side]}
        done = subprocess.run(
            [str(python), *arguments], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    paths = [str(tmp_path / f"{side}.zip") for side in ("a", "b")]
    assert cli.main(["config_check", "-c", *paths, "-o", str(out)]) == 1
    content = json.loads((out / "config_check.json").read_text())
    found = {name: {row["name"] for row in content["checks"][name]["rows"]} for name in EXPECTED}
    assert found == EXPECTED
    assert sum(map(len, EXPECTED.values())) == 20
    assert all(row["why"] for check in content["checks"].values() for row in check["rows"])
