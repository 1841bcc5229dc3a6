"""``msprobe rollout_check``: status, text, JSON, and the files."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from rollout_mismatch import cases

from probe.api.cli import main

SETTING = cases.Setting(vocabulary=128, sequences=24, longest=32, seed=21)


def saved(folder: Path, case: cases.Case) -> list[str]:
    steps = {} if case.steps is None else {"steps": case.steps}
    path = folder / "x.npz"
    np.savez(path, old=case.rollout, new=case.training, mask=case.mask, ids=case.tokens, **steps)
    more = ["--step", f"{path}:steps"] if steps else []
    return ["rollout_check", f"{path}:old", f"{path}:new", "--mask", f"{path}:mask", "--tokens", f"{path}:ids", *more]


def test_a_clean_set_has_status_0_and_no_worst_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(saved(tmp_path, cases.clean(SETTING))) == 0
    output = capsys.readouterr().out
    assert output.startswith("no mismatch beyond rounding (rounding): ")
    assert "tokens with the largest" not in output


def test_a_mismatch_has_status_1_and_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = cases.offset(SETTING)
    assert main(saved(tmp_path, case)) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("mismatch of rollout and training (position): tokens differ from position 1 ")
    assert sum(line.startswith("  sequence ") for line in others) == 10
    sequence = int(np.argmax(np.abs(case.rollout - case.training).mean(1)))
    assert any(line.startswith(f"look at sequence {sequence}: ") for line in others)
    assert any(line.startswith("next: ") and "msprobe compare" in line for line in others)


def test_json_has_the_keys_of_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = cases.stale(SETTING)
    assert main([*saved(tmp_path, case), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["command"], found["status"], found["kind"], found["errors"]) == ("rollout_check", 1, "stale", [])
    assert found["kinds"][0] == "stale" and found["kind"] in found["line"]
    assert found["findings"][0]["numbers"]["synchronised"] == [0, 3]
    apart = np.abs(case.rollout - case.training)[case.mask]
    assert found["numbers"]["sampling_logp_difference/max"] == pytest.approx(apart.max())
    assert found["tokens"][0]["rollout"] - found["tokens"][0]["training"] == pytest.approx(
        apart.max(), rel=1e-5
    ) or found["tokens"][0]["training"] - found["tokens"][0]["rollout"] == pytest.approx(apart.max(), rel=1e-5)
    assert len(found["sequences"]) == 20


def test_files_hold_the_answer_the_tables_and_the_page(tmp_path: Path) -> None:
    case = cases.stale(SETTING)
    assert main([*saved(tmp_path, case), "-o", str(tmp_path / "out"), "-q"]) == 1
    names = {path.name for path in (tmp_path / "out").iterdir()}
    tables = {f"rollout_{name}.csv" for name in ("sequences", "positions", "steps")}
    assert names == {"rollout_check.json", "rollout_check.html", *tables}
    with open(tmp_path / "out" / "rollout_steps.csv", encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    apart, of_step = np.abs(case.rollout - case.training), case.steps
    assert of_step is not None
    expected = [apart[of_step == step][case.mask[of_step == step]].mean() for step in range(6)]
    assert [float(row["sampling_logp_difference/mean"]) for row in rows] == pytest.approx(expected, rel=1e-5)
    page = (tmp_path / "out" / "rollout_check.html").read_text(encoding="utf-8")
    assert "<script" not in page and "http://" not in page
    figures = [part.split("</svg>")[0] for part in page.split("<svg")[1:]]
    assert len(figures) == 4, "the colours, the heat map, the histogram, the steps"
    for figure in figures:
        ElementTree.fromstring(f"<svg{figure}</svg>")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=-np.ones((2, 3)), b=-np.ones((2, 3)) - [[0], [1]], s=["<script>", "=1+1"])
    path = tmp_path / "x.npz"
    command = ["rollout_check", f"{path}:a", f"{path}:b", "--sequences", f"{path}:s", "-o", str(tmp_path / "out")]
    assert main(command) == 1
    assert "<script>" not in (tmp_path / "out" / "rollout_check.html").read_text(encoding="utf-8")
    assert "'=1+1" in (tmp_path / "out" / "rollout_sequences.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.npy", "nowhere.npy"], "rollout: nowhere.npy does not exist"),
        (["a.npy", "b.npy", "--layers", "0"], "'0' is not a number"),
    ],
)
def test_trouble_has_status_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout_check", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_dtype_that_nobody_gave_is_said_to_be_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Errors of bfloat16 that are no larger than float16 would explain with as many layers as are assumed.
    random, rows = np.random.default_rng(5), (20, 50)
    training = -random.standard_exponential(rows)
    rollout = np.minimum(training + 0.003 * random.standard_normal(rows) * -np.expm1(training), 0)
    np.savez(tmp_path / "x.npz", old=rollout.astype(np.float32), new=training.astype(np.float32))
    command = ["rollout_check", f"{tmp_path}/x.npz:old", f"{tmp_path}/x.npz:new"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "the rounding of float16 or bfloat16 (assumed: no dtype is given) explains" in text.splitlines()[0]
    assert "--dtype NAME" in text
    assert main([*command, "--json"]) == 0
    rounding = json.loads(capsys.readouterr().out)["rounding"]
    assert (rounding["dtype"], rounding["assumed"]) == ("float16 or bfloat16", True)
    assert main([*command, "--dtype", "bfloat16", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rounding"]["dtype"], answer["rounding"]["assumed"]) == ("bfloat16", False)
    assert "the rounding of bfloat16 explains" in answer["line"] and "assumed" not in answer["line"]
