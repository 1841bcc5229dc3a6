"""Every command finds the same dumps below the same path."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import probe
from probe.api.cli import main
from probe.common.dump.layout import PROCESS_FILE

NUMBERS = {"Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0}
TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], **NUMBERS}
RECORD = {"input_args": [TENSOR], "input_kwargs": {}, "output": []}


def folder(path: Path, run: str = "", order: int = 0, written: int = 10) -> None:
    path.mkdir(parents=True)
    head = {"task": "statistics", "level": "L1", "framework": "pytorch"}
    (path / "dump.json").write_text(json.dumps({**head, "data": {"Torch.sin.0.forward": RECORD}}))
    if run:
        (path / PROCESS_FILE).write_text(json.dumps({"run": run, "order": [order]}))
    for file in path.iterdir():
        os.utime(file, (written, written))


RUNS: dict[str, tuple[list[tuple[str, str, int, int]], list[str]]] = {
    "siblings": (
        [("step0/proc8", "a", 1, 10), ("step0/proc7", "a", 2, 11), ("step1/proc7", "a", 2, 12)],
        ["step0/proc8", "step0/proc7", "step1/proc7"],
    ),
    "siblings and an earlier run": (
        [("step0/proc7", "a", 1, 1), ("step0/proc8", "b", 1, 9), ("step0/proc9", "b", 2, 9), ("step0/proc6", "", 0, 2)],
        ["step0/proc8", "step0/proc9"],
    ),
    "ranks": ([("step0/rank0", "", 0, 1), ("step0/rank1", "", 0, 2)], ["step0/rank0", "step0/rank1"]),
    "one process": ([("step0/proc7", "", 0, 1)], ["step0/proc7"]),
}
GIVEN = ["", "step0", "a process"]


def found_by(command: str, path: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The folders that a command reads below `path`."""
    capsys.readouterr()
    if command == "read":
        opened = probe.read(path)
        return [os.path.dirname(each.path) for each in (opened if isinstance(opened, probe.Run) else [opened])]
    if command == "show":
        assert main(["show", str(path), "--json"]) == 0
        return [os.path.dirname(each["path"]) for each in json.loads(capsys.readouterr().out)]
    if command == "compare":
        from probe.common.match.dump_pairs import locate

        assert main(["compare", "-tp", str(path), "-gp", str(path), "-o", str(out)]) == 0
        pairs = locate(str(path), str(path))
        assert all(pair.target == pair.golden for pair in pairs)
        assert len(list(out.rglob("compare_result_*.csv"))) == len(pairs)
        return [pair.target for pair in pairs]
    if command == "graph_visualize":
        from probe.graph.tasks.located import dumps_in

        return dumps_in(str(path))
    if command == "overflow_check":
        from probe.overflow.run import find_overflow

        report = find_overflow(str(path))
        assert sum(len(step.records) for step in report.steps) == len(report.folders)
        return sorted(report.folders.values(), key=lambda each: list(report.folders.values()).index(each))
    from probe.common.dump.reading.run import folders_of

    return folders_of(path)


@pytest.mark.parametrize("give", GIVEN)
@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("command", ["read", "show", "compare", "graph_visualize", "overflow_check", "acc_check"])
def test_the_same_dumps_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, run: str, give: str
) -> None:
    made, expected = RUNS[run]
    for name, of, order, written in made:
        folder(tmp_path / "run" / name, of, order, written)
    path = tmp_path / "run" / (expected[-1] if give == "a process" else give)
    wanted = [each for each in expected if str(tmp_path / "run" / each).startswith(str(path))]
    found = found_by(command, path, tmp_path / "out", capsys)
    assert [os.path.relpath(each, tmp_path / "run") for each in found] == wanted


def test_several_dumps_are_checked_each_with_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("proc7", "proc8"):
        folder(tmp_path / "run" / "step0" / name, "a", int(name[-1]))
    call = ["acc_check", "-api_info", str(tmp_path / "run"), "-o", str(tmp_path / "out")]
    assert main([*call, "--against", "x.csv"]) == 1
    assert "--against belongs to one dump" in capsys.readouterr().err
