"""The commands over monitor folders: report, watch and trend."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from monitor_rows import MadeTraining, changed, write_first_layout

from probe.api.cli import main
from probe.monitor.alerts.rows import FamilyRows
from probe.monitor.judging import judge_run
from probe.monitor.live import LiveState
from probe.monitor.monitor_run import read_monitor
from probe.monitor.trend.page import FIRST, INFINITY, MISSING, NOT_A_NUMBER, ZERO, content_of, encode, over_ranks

FROM, STEPS = 20, 32


def written(folder: Path, is_faulty: bool, ranks: int = 2) -> Path:
    """A run in which the output of a module is NaN on rank 1, and what is computed from it follows on both ranks."""
    for rank in range(ranks):
        training, steps = MadeTraining(0, rank), []
        for step in range(STEPS):
            rows = training.step(step)
            if is_faulty and step == FROM:
                if rank == 1:
                    for layer in range(3, 6):
                        changed(rows, "actv", f"blocks.{layer}.output", 1, norm=np.nan, mean=np.nan)
                for name in ("blocks.0.weight", "head.weight"):
                    changed(rows, "grad_reduced", name, 1, norm=np.nan)
            steps.append(rows)
        write_first_layout(folder, steps, rank, per_file=10)
    return folder


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("monitor") / "bad", True)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("monitor") / "good", False)


def answered(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_report_names_who_began(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = answered(capsys, "monitor", "report", bad)
    assert (status, answer["command"], answer["status"]) == (1, "monitor report", 1)
    first = answer["first"]
    assert {key: first[key] for key in ("name", "family", "step", "rank", "rule")} == {
        "name": "blocks.3.output", "family": "actv", "step": FROM, "rank": 1, "rule": "nonfinite",
    }  # fmt: skip
    assert first["value"] == {"number": "NaN"}
    assert {"expected", "why"} <= set(first)
    assert [(each["name"], each["is_abnormal"]) for each in answer["fed_by"]] == [
        ("blocks.3.input", False), ("blocks.3.weight", False),
    ]  # fmt: skip
    assert answer["followed"] == [{"rank": 0, "step": FROM}]
    assert len(answer["alerts"]) == 7


def test_a_value_that_no_module_feeds_sends_to_the_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training, steps = MadeTraining(0, 0), []
    for step in range(STEPS):
        rows = training.step(step)
        if step == FROM:
            changed(rows, "actv", "blocks.0.input", 1, norm=np.nan, mean=np.nan)
        steps.append(rows)
    write_first_layout(tmp_path, steps, 0, per_file=10)
    assert main(["monitor", "report", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"first: step {FROM}, rank 0: blocks.0.input (actv)" in said
    assert "look at the batch" in said and "the fault is in this module" not in said


def test_a_healthy_run_has_no_alert(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = answered(capsys, "monitor", "report", good)
    assert (status, answer["first"], answer["alerts"]) == (0, None, [])
    assert main(["monitor", "report", str(good)]) == 0
    first, watched, *missing = capsys.readouterr().out.splitlines()
    assert first == f"no alert: {good}: steps 0 to {STEPS - 1}, 2 ranks"
    assert "activations (7 modules: min, max, mean, norm, zeros, nans)" in watched
    assert "weights (7 parameters" in watched and "optimizer state (7 parameters" in watched
    # The files have no hyper-parameters.
    (line,) = missing
    assert line == "  not watched: settings (written by probe)"
    ((rows, faults),) = [(each["rows"], each["faults"]) for each in answer["not_watched"]]
    assert rows == "settings" and "loss scale" in faults


def test_two_runs_part_at_the_same_row(bad: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = answered(capsys, "monitor", "report", good, bad)
    parted = answer["first_difference"]
    assert status == 1
    assert (parted["step"], parted["rank"], parted["name"]) == (FROM, 1, "blocks.3.output")
    status, answer = answered(capsys, "monitor", "report", good, good)
    assert (status, answer["first_difference"], answer["common_steps"]) == (0, None, STEPS)


def test_two_runs_part_where_a_gradient_has_the_other_sign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for run, signed in (("one", [2.0, 1.0, -0.2]), ("other", [2.0, 0.2, -1.0])):
        values = np.array([signed, [3.0, 1.0, -2.0]])
        rows = FamilyRows("actv_grad", ("a", "b"), ("norm", "max", "min"), values, (0, 0))
        write_first_layout(tmp_path / run, [[rows]])
    _, answer = answered(capsys, "monitor", "report", tmp_path / "one", tmp_path / "other")
    parted = answer["first_difference"]
    assert (parted["name"], parted["op"], parted["value"], parted["other"]) == ("a", "max", 1.0, 0.2)


@pytest.mark.parametrize(
    "arguments",
    [["monitor"], ["monitor", "report"], ["monitor", "report", "no"], ["monitor", "watch", "no"], ["trend", "no"]],
)
def test_wrong_arguments_are_one_line_and_status_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_watch_shows_the_state_once(bad: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "watch", str(bad), "--once"]) == 1
    printed = capsys.readouterr().out
    assert f"step {STEPS - 1}, 2 ranks" in printed
    assert f"step {FROM}, rank 1: blocks.3.output (actv): nonfinite: the tensor contains NaN" in printed
    assert main(["monitor", "watch", str(good), "--once"]) == 0


def test_a_live_state_finds_what_the_report_finds(bad: Path, tmp_path: Path) -> None:
    """Files that grow in pieces give the findings of the finished files, each once."""
    wanted = {(each.step, each.name, each.family, each.rank) for each in judge_run(read_monitor(str(bad))).findings}
    copies = {}
    for path in bad.rglob("*.csv"):
        copy = tmp_path / path.relative_to(bad)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copies[copy] = path.read_bytes()
        copy.write_bytes(b"")
    state, found = LiveState(str(tmp_path)), []
    for part in range(1, 8):
        # Files are complete in the order of their steps.
        for copy, content in copies.items():
            first = int(re.findall(r"_(\d+)-", copy.name)[0])
            if first <= part * 5:
                copy.write_bytes(content if first < part * 5 - 5 else content[: len(content) * 2 // 3])
        found += state.update()
    for copy, content in copies.items():
        copy.write_bytes(content)
    found += state.update(is_last=True)
    assert len(found) == len(wanted)
    assert {(each.step, each.name, each.family, each.rank) for each in found} == wanted


# --- the page


def test_the_page_has_the_cells_and_the_alerts(bad: Path, good: Path, tmp_path: Path) -> None:
    assert main(["trend", str(bad), str(good), "-o", str(tmp_path), "-q"]) == 0
    (page,) = tmp_path.glob("trend_*.html")
    text = page.read_text()
    manifest = json.loads(text.split('id="manifest">', 1)[1].split("</script>", 1)[0])
    run, other = manifest["runs"]
    assert (run["ranks"], run["steps"][-1], len(run["steps"])) == (["0", "1"], STEPS - 1, STEPS)
    assert (run["alerts"][0]["row"], run["alerts"][0]["ranks"], other["alerts"]) == ("blocks.3.output", [1], [])
    assert manifest["difference"]["name"] == "blocks.3.output"
    assert "http://" not in text and "https://" not in text


def test_a_value_survives_its_sixteen_bits() -> None:
    values = 10.0 ** np.random.default_rng(0).uniform(-9, 9, (2, 5, 50))
    values[0, 0, :4] = np.nan, np.inf, 0, np.nan
    missing = np.zeros(values.shape, dtype=bool)
    missing[0, 0, 3] = True
    encoded = encode(values, missing)
    assert encoded.codes[0, 0, :4].tolist() == [NOT_A_NUMBER, INFINITY, ZERO, MISSING]
    back = 10 ** (encoded.low[:, None] + (encoded.codes - float(FIRST)) / (65535 - FIRST) * encoded.width[:, None])
    good = encoded.codes >= FIRST
    assert np.allclose(back[good], values[good], rtol=1e-3)
    signed = np.random.default_rng(1).normal(size=(1, 3, 40))
    linear = encode(signed, np.zeros(signed.shape, dtype=bool))
    back = linear.low[:, None] + (linear.codes - float(FIRST)) / (65535 - FIRST) * linear.width[:, None]
    assert not linear.is_log and np.allclose(back, signed, atol=2e-5 * np.ptp(signed))


def test_too_many_cells_are_said_and_ranks_are_drawn_as_a_range(bad: Path) -> None:
    content = content_of([judge_run(read_monitor(str(bad)))], None, most_cells=4000)
    run = content.manifest["runs"][0]
    assert any("statistics are left out" in note for note in run["notes"])
    assert list(run["families"][0]["ops"]) == ["norm"]
    values = np.array([[[1.0, 2.0]], [[3.0, np.nan]], [[2.0, 8.0]], [[9.0, 4.0]]])
    low, middle, high = over_ranks(values)
    assert low.tolist() == [[1, 2]] and high[0, 0] == 9 and np.isnan(high[0, 1]) and middle[0, 0] in (2, 3)
