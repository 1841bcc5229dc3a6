"""The sections of benchmarks/verdicts: what names a fault, and dumps that are missing or half made."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sections import load, verdicts

PLACE = "Cell.network.layers.0.attention.LlamaAttention.forward.0"


@pytest.fixture(scope="module")
def ports() -> ModuleType:
    return load("ports")


@pytest.mark.parametrize("fault, record, words", [
    ("causal mask", PLACE, "only the target calls Functional.swapaxes | output.0 differs by 1e-01 of its size"),
    ("attention scale", PLACE, "input.1 is 2 and in the golden run 3 | output.0 differs by 1e-01 of its size"),
])  # fmt: skip
def test_other_words_do_not_tell_the_cause_of_a_fault(ports: ModuleType, fault: str, record: str, words: str) -> None:
    assert not _fault(ports, fault).tells(words)


@pytest.mark.parametrize("fault, said", [
    ("label shift", "Tensor.reshape.7.forward Tensor.reshape.3.forward  | input.0 differs by 1e-03 of its size"),
    ("label shift", "Tensor.__getitem__.1.forward  | input.0 differs by all of its size already"),
    ("adam epsilon", "Module.network.shared.Embedding.forward.0 the optimizer step before: another learning rate"),
])  # fmt: skip
def test_another_call_is_not_the_place_of_a_fault(ports: ModuleType, fault: str, said: str) -> None:
    assert not _fault(ports, fault).names(said)


def _fault(ports: ModuleType, name: str) -> Any:
    return next(fault for fault in ports.FAULTS if fault.name == name)


def test_missing_dumps_are_said(ports: ModuleType, tmp_path: Path) -> None:
    rows = list(ports.judged(tmp_path, ["mindspore"], ["mix"]))
    assert rows and {(row.said, row.right) for row in rows} == {("no dumps", False)}
    for name in ("ports", "fused"):
        (row,) = verdicts.plugged(name, verdicts.Work(tmp_path / name, False, {}))
        assert (row.said, row.right) == ("no dumps", False)


def test_dumps_that_are_half_made_are_made_again(
    ports: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    wanted = ports.jobs("torch", tmp_path, ["mix"], "cnn")
    half = Path(wanted[0].folder) / "step0"
    half.mkdir(parents=True)

    def run(command: list[str], **_: Any) -> Any:
        from port_settings import jobs_of

        jobs = jobs_of(command[-2])
        asked.append([job.folder for job in jobs])
        return ports.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(ports.subprocess, "run", run)
    ports.dump("torch", "python", tmp_path, ["mix"], "cnn")
    assert asked == [[job.folder for job in wanted]] and not half.exists()
    ports.dump("torch", "python", tmp_path, ["mix"])
    assert len(asked) == 2 and not set(asked[0]) & set(asked[1])
    ports.dump("torch", "python", tmp_path, ["mix"])
    assert len(asked) == 2
