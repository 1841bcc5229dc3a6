"""`compare --rerun`: the suspicious calls of a model, run again on the golden run's inputs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import forks
import pytest
from printed_json import hold_to_schema

pytest.importorskip("transformers", reason="a model of Transformers is needed")

import torch.nn.functional as F
from planted_kernels import planted
from rerun_training import kernel

import probe
from probe.api.cli import main
from probe.api.replaying import load
from probe.compare.result import Rerun
from probe.rerun.exchanged import RecordOf, exchange

SCRIPT = Path(__file__).parents[1] / "support" / "rerun_training.py"
WRONG = ("weight", "argument", "upstream", "kernel")
DTYPES = ("float32", "bfloat16")
NAMES = [f"{dtype}_{wrong}" for dtype in DTYPES for wrong in ("nothing", "draws", *WRONG)]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerun")
    paths = os.pathsep.join([forks.CHECKOUT, str(SCRIPT.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    done = forks.run_python("transformers", SCRIPT, str(folder), *NAMES, cwd=folder, environment=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def rerun_of(dumps: Path, target: str, golden: str, **options: Any) -> Rerun:
    """The outcome of the first call that diverges."""
    found = probe.verdict(dumps / target, dumps / golden, rerun=True, **options)
    assert found.divergence is not None
    assert found.divergence.first.rerun is not None
    assert f"  rerun:  {found.divergence.first.rerun.text}" in found.answer
    return found.divergence.first.rerun


@pytest.mark.sampled()
@pytest.mark.parametrize("wrong", ["weight", "upstream"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_input_is_the_cause(dumps: Path, dtype: str, wrong: str) -> None:
    found = rerun_of(dumps, f"{dtype}_{wrong}", f"{dtype}_nothing")
    assert found.answer == "inputs"
    assert found.call_changes == 0
    assert found.inputs_change is not None and found.inputs_change > 0.1
    assert "gives the golden result: its inputs are the cause" in found.text


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_argument_is_in_the_call(dumps: Path, dtype: str) -> None:
    found = rerun_of(dumps, f"{dtype}_argument", f"{dtype}_nothing")
    assert found.answer == "call"
    assert "gives the target's result: the kernel or its arguments differ" in found.text


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wrong_kernel_is_in_the_call(dumps: Path, dtype: str) -> None:
    with planted(F, "silu", kernel):
        assert rerun_of(dumps, f"{dtype}_kernel", f"{dtype}_nothing").answer == "call"


def test_a_kernel_that_is_not_here_is_not_taken_for_the_golden_one(dumps: Path) -> None:
    """The right kernel gives the golden result on the golden inputs, which does not make the inputs the cause."""
    found = rerun_of(dumps, "float32_kernel", "float32_nothing")
    assert found.answer == "not_reproduced"
    assert "the kernel of the target is not the kernel of this machine" in found.text


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "bfloat16")])
@pytest.mark.parametrize(("wrong", "answer"), [("weight", "inputs"), ("argument", "call"), ("kernel", "call")])
def test_two_precisions_are_judged_by_what_rounding_explains(
    dumps: Path, dtypes: tuple[str, str], wrong: str, answer: str
) -> None:
    target, golden = dtypes
    with planted(F, "silu", kernel if wrong == "kernel" else lambda result: result):
        assert rerun_of(dumps, f"{target}_{wrong}", f"{golden}_nothing").answer == answer


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(
    ("target", "golden"), [("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16")]
)
def test_no_right_call_is_blamed(dumps: Path, target: str, golden: str) -> None:
    """A right call gives the golden result on the golden inputs, in the forward and in the backward."""
    mine, theirs = (probe.read(next((dumps / f"{dtype}_nothing").glob("step0/*"))) for dtype in (target, golden))
    execution = load(mine.framework).execution
    calls = [each.name for each in mine if each.name in theirs and not each.name.startswith("Module.")][::6]
    answers = {}
    for name in calls:
        answers[name] = exchange(execution, RecordOf(mine, name), RecordOf(theirs, name), "cpu").answer
    # The recorded gradients of some functions are those of steps inside of them.
    answers = {name: answer for name, answer in answers.items() if answer != "not_run"}
    assert len(answers) > 20
    assert set(answers.values()) <= {"inputs", "either"}, answers


def test_random_numbers_are_no_fault(dumps: Path) -> None:
    found = probe.verdict(dumps / "float32_draws", dumps / "bfloat16_draws", rerun=True)
    assert found.divergence is None
    assert "holds other random numbers" in found.answer[0]
    assert any("next:" in line and "seed_all()" in line for line in found.answer)


def test_a_call_that_needs_more_memory_is_not_run(dumps: Path) -> None:
    found = rerun_of(dumps, "float32_weight", "float32_nothing", max_memory=1e-6)
    assert found.answer == "not_run"
    assert "GB" in found.text


def command(dumps: Path, target: str, golden: str, *flags: str) -> list[str]:
    return ["compare", "-tp", str(dumps / target), "-gp", str(dumps / golden), "-o", str(dumps / "tables"), *flags]


def test_json_has_the_answer_of_each_call(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = "--rerun", "--json", "--max-memory", "2"
    assert main(command(dumps, "bfloat16_weight", "float32_nothing", *flags)) == 0
    printed = json.loads(capsys.readouterr().out)
    hold_to_schema(printed, "compare")
    divergence = printed[0]["divergence"]
    assert divergence["first"]["rerun"].keys() == {"answer", "text", "inputs_change", "call_changes"}
    assert divergence["first"]["rerun"]["answer"] == "inputs"
    assert [each["rerun"] is not None for each in divergence["suspects"][:4]].count(False) == 0
    assert all(each["rerun"] is None for each in divergence["suspects"][4:])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--max-memory", "2"), "--max-memory is for --rerun"),
        (("--rerun", "-da"), "leave it out, or --rerun"),
        (
            ("--rerun", "--rank_size", "1", "1", "--tp", "1", "1", "--pp", "1", "1"),
            "--rerun runs calls of single ranks",
        ),
    ],
)
def test_flags_that_do_not_go_together_are_refused(
    dumps: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    assert main(command(dumps, "float32_weight", "float32_nothing", *flags)) == 2
    assert words in capsys.readouterr().err


def test_statistics_are_refused_before_any_work(
    dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (whole,) = (dumps / "float32_weight").glob("step0/*/dump.json")
    statistics = tmp_path / "dump.json"
    statistics.write_text(whole.read_text().replace('"task": "tensor"', '"task": "statistics"'))
    output = tmp_path / "tables"
    paths = "-tp", str(whole), "-gp", str(statistics), "-o", str(output)
    assert main(["compare", *paths, "--rerun"]) == 2
    found = capsys.readouterr().err
    assert '--rerun runs calls on recorded values, and "task" of' in found
    assert '"statistics"; allowed: dumps of "task": "tensor" on both sides' in found
    assert not output.exists()
