"""The checkpoints that were given to msProbe, and its answers."""

from __future__ import annotations

import json
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest

from probe.api import cli

CASES = Path(__file__).parent / "cases" / "megatron"
_ROUNDING = 1e-6
"""The cosine of msProbe is taken in float32: that of equal tensors is 1.0000001 or 0.9999998."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # The recorded script leaves a file open.
        warnings.simplefilter("ignore", ResourceWarning)
        patch.chdir(folder)
        runpy.run_path(str(CASES / "make_checkpoints.py"))
    return folder / "ck"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("other", ["tp1b", "tp2", "pp2", "legacy"])
def test_the_file_of_msprobe_is_the_recorded_one(other: str, made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    status = cli.main(
        ["ckpt_compare", str(made / "tp1"), str(made / other), "-o", str(out), "--format", "msprobe", "-q"]
    )
    found = json.loads((out / "ckpt_similarity.json").read_text())
    recorded = json.loads((CASES / f"real_tp1_against_{other}.json").read_text())
    assert status == (1 if other == "tp1b" else 0)
    assert near(found, recorded)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("other", ["tp1b", "legacy"])
def test_config_check_of_two_checkpoints_writes_the_recorded_file_too(
    other: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["config_check", "-c", str(made / "tp1"), str(made / other)]
    status = cli.main(command)
    recorded = json.loads((CASES / f"real_tp1_against_{other}.json").read_text())
    assert status == (1 if other == "tp1b" else 0)
    assert near(json.loads((tmp_path / "ckpt_similarity.json").read_text()), recorded)
    shown = capsys.readouterr().out
    assert "ckpt_similarity.json" in shown
    changed = {name for name, each in recorded.items() if each["l2"]}
    assert all(name in shown for name in changed)
    # It is in the way of another.
    assert cli.main(command) == 2
    assert "ckpt_similarity.json exists; give --overwrite" in capsys.readouterr().err
    assert cli.main([*command, "--json", "-o", str(tmp_path / "second.json")]) == status
    found = json.loads(capsys.readouterr().out)
    assert {each["name"] for each in found["parameters"] if each["verdict"] == "different"} == changed
    assert found["files"] == [str(tmp_path / "second.json")]
    assert near(json.loads((tmp_path / "second.json").read_text()), recorded)
    assert cli.main([*command, "--xlsx"]) == 2
    assert "msprobe ckpt_compare has the options for them" in capsys.readouterr().err


def near(found: Any, recorded: Any) -> bool:
    """True if the two differ by the rounding of float32 alone."""
    if isinstance(recorded, dict):
        return found.keys() == recorded.keys() and all(near(found[key], each) for key, each in recorded.items())
    if isinstance(recorded, float):
        return bool(abs(found - recorded) <= _ROUNDING * max(1.0, abs(recorded)))
    return bool(found == recorded)
