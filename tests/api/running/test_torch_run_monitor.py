"""``msprobe run --task monitor``: a program without a line of ours is monitored, and nothing else changes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from torch_running import DESCENT, quick

TRAINING = (
    DESCENT
    + """
net = network()
optimizer = Descent(list(net.parameters()), 0.1)
for step in range(3):
    net(torch.randn(5, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("parameters", [p.sum().item().hex() for p in net.parameters()], torch.rand(1).item())
"""
)


def rows(folder: Path, family: str) -> list[dict[str, str]]:
    (path,) = folder.glob(f"*-rank0-*/{family}.csv")
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def parameters(out: str) -> list[str]:
    return [line for line in out.splitlines() if line.startswith("parameters")]


def test_every_step_of_the_model_is_monitored_and_the_program_prints_the_same(scripts: Any, tmp_path: Path) -> None:
    ran = quick(scripts, tmp_path, TRAINING, "--task", "monitor")
    assert ran.status == 0, ran.err
    found = rows(ran.folder, "actv_0-99")
    # The call by which the model became known is the first one that has rows.
    assert [(row["step"], row["name"]) for row in found if row["name"].startswith(("0.", "."))] == [
        (str(step), name) for step in range(3) for name in ("0.input", "0.output", ".input", ".output")
    ]
    assert [row["name"] for row in rows(ran.folder, "grad_reduced_0-99")][:4] == [
        "0.weight", "0.bias", "2.weight", "2.bias",
    ]  # fmt: skip
    assert "3 steps were monitored" in ran.log
    dumped = quick(scripts, tmp_path, TRAINING, "--step", "7", "-o", "other")
    assert parameters(ran.out) == parameters(dumped.out) != []


def test_modules_are_chosen_by_a_pattern_and_the_rest_by_a_file(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "monitor.json").write_text(json.dumps({"xy_distribution": True, "step_interval": 2, "ops": ["max"]}))
    options = ("--task", "monitor", "--module", "ReLU", "--config", "monitor.json")
    ran = quick(scripts, tmp_path, TRAINING, *options)
    assert ran.status == 0, ran.err
    assert {row["name"] for row in rows(ran.folder, "actv_2-2")} == {"1.input", "1.output"}
    assert not list(ran.folder.glob("*/actv_1-1.csv"))


def test_what_cannot_be_monitored_is_said(scripts: Any, tmp_path: Path) -> None:
    ran = quick(scripts, tmp_path, TRAINING, "--task", "monitor", "--module", "Conv*", "--strict")
    assert ran.status == 2
    assert "--module Conv* matches no module of Sequential; allowed: a path or a class, such as 0, 1, 2." in ran.log
    ran = quick(scripts, tmp_path, "network()(torch.randn(2, 8))\n", "--task", "monitor")
    assert (ran.status, "no optimizer updates Sequential" in ran.log) == (0, True)
    ran = quick(scripts, tmp_path, TRAINING, "--task", "monitor", "--api", "relu")
    assert ran.status == 2 and "--api cannot be used with --task monitor" in ran.err


def test_the_gradients_of_a_program_are_probed(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text(json.dumps({"task": "grad_probe", "grad_probe": {"grad_level": "L0"}}))
    options = ("--config", "probe.json", "--module", "2", "--step", "1-2")
    ran = quick(scripts, tmp_path, TRAINING, *options)
    assert ran.status == 0, ran.err
    tables = sorted(ran.folder.glob("rank0/grad_summary_*.csv"))
    assert [path.name for path in tables] == ["grad_summary_1.csv", "grad_summary_2.csv"]
    with tables[0].open(newline="") as stream:
        assert [row["param_name"] for row in csv.DictReader(stream)] == ["2.weight", "2.bias"]
    assert "2 steps were probed" in ran.log
    monitored = quick(scripts, tmp_path, TRAINING, "--task", "grad_probe", "-o", "all", "--quiet")
    assert parameters(ran.out) == parameters(monitored.out) != []
    assert len(list((tmp_path / "all" / "rank0").glob("step*/*.npy"))) == 12


def test_what_cannot_be_probed_is_said(scripts: Any, tmp_path: Path) -> None:
    ran = quick(scripts, tmp_path, TRAINING, "--task", "grad_probe", "--module", "Conv*", "--strict")
    assert ran.status == 2 and "--module Conv* matches no module of Sequential" in ran.log
    for option in (("--api", "relu"), ("--level", "L1"), ("--follow-children",), ("--step-after", "forward")):
        ran = quick(scripts, tmp_path, TRAINING, "--task", "grad_probe", *option)
        assert ran.status == 2 and f"{option[0]} cannot be used with --task grad_probe: " in ran.err
