"""Many ranks and steps at once: the same files as one after the other, whatever becomes of a process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_line import compare
from runs import RECORD, rows, two_runs, without_times

import probe

STEP = Path(__file__).parent / "cases" / "multi_rank"
RANKS = STEP / "target" / "step0", STEP / "golden" / "step0"

# A metric that ends the process, or waits for ever, where the target holds a 2: at the second place.
KILL = """
import os, signal
def column_name(): return "Kill"
def compare(n_value, b_value):
    if n_value.max() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0
"""
HANG = """
import os, time
def column_name(): return "Hang"
def compare(n_value, b_value):
    if n_value.max() == 2:
        open({path!r}, "w").close()
        time.sleep(600)
    return 0
"""


def metric(folder: Path, source: str) -> str:
    path = folder / "metric.py"
    path.write_text(source)
    return str(path)


@pytest.mark.parametrize("option", ["-cm", "-dm", "-lm", "--config", "-am"])
@pytest.mark.parametrize("more", [(), ("-da",)])
def test_a_mapping_that_says_nothing_or_is_of_no_use_is_one_error_and_not_one_of_every_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, more: tuple[str, ...]
) -> None:
    (tmp_path / "wrong.yaml").write_text("[1, 2")
    file = () if option == "-am" else (str(tmp_path / "wrong.yaml"),)
    assert compare(*RANKS, tmp_path / "out", option, *file, *more) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    of_framework = "the framework is 'pytorch'; an API mapping (-am) is for a target of MindSpore or MSAdapter."
    assert ("wrong.yaml: not valid YAML" if file else of_framework) in said.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [(), ("-da",)])
def test_two_processes_say_and_write_what_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    said = []
    for jobs in ("1", "2"):
        assert compare(*RANKS, tmp_path / jobs, "--jobs", jobs, "--json", *more) == 0
        found = json.loads(capsys.readouterr().out)
        for part in found["steps"] if more else found:
            del part["files" if more else "tables"]
        said.append(found)
    assert said[0] == said[1]
    files = without_times(tmp_path / "2")
    assert files == without_times(tmp_path / "1") and len(files) >= 2


def test_of_eleven_steps_folders_and_lines_stand_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_runs(tmp_path, [f"step{n}/rank0" for n in range(11)], real_data=True)
    assert compare(target, golden, tmp_path / "out", "--jobs", "2", "--json", "-tensor_log") == 0
    said = capsys.readouterr()
    summaries = json.loads(said.out)
    assert [summary["step"] for summary in summaries] == [f"step{n}" for n in range(11)]
    for number, summary in enumerate(summaries):
        (table,) = summary["tables"]
        assert f"step{number}{os.sep}" in table
        assert rows(Path(table))[0]["NPU max"] == str(float(number + 1))
    lines = [line for line in said.err.splitlines() if "[INFO]" in line]
    assert all(f"{RECORD}.input.0 and {RECORD}.input.0: Cosine 1.0, " in line for line in lines)
    # The relative error of n against n + 0.5.
    errors = [float(line.partition("MaxRelativeErr ")[2].split(",")[0]) for line in lines]
    assert errors == pytest.approx([0.5 / (n + 1.5) for n in range(11)])


def test_many_ranks_that_say_the_same_share_their_lines_and_others_stand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = two_runs(tmp_path, [f"step0/rank{number}" for number in range(20)])
    for number in (*range(7), *range(8, 20)):
        shutil.copy(golden / f"step0/rank{number}/dump.json", target / f"step0/rank{number}/dump.json")
    assert compare(target, golden, tmp_path / "out") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("time:")]
    folder = tmp_path / "out" / "step0"
    (shared,) = [index for index, line in enumerate(said) if line.startswith("step 0, each of ranks 0-6, 8-19: 1 rows")]
    assert f"  tables: {folder}, of each rank" in said[shared:] and len(list(folder.iterdir())) == 20
    (alone,) = [index for index, line in enumerate(said) if line.startswith("step 0, rank 7: ")]
    assert "step 0, rank 7" in said[0] and f"  table: {folder}" in "\n".join(said[alone:])
    told = [line for line in said if not line.startswith(("  table", "tables:"))]
    assert str(probe.verdict(target, golden)).splitlines() == told
    # Of a few ranks each has lines of its own.
    for number in range(8, 20):
        shutil.rmtree(target / f"step0/rank{number}")
        shutil.rmtree(golden / f"step0/rank{number}")
    assert compare(target, golden, tmp_path / "few") == 0
    said = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("step 0, rank ") for line in said) == 8


def test_a_process_that_is_killed_costs_its_own_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_runs(tmp_path, [f"step{n}/rank0" for n in range(5)], real_data=True)
    assert compare(target, golden, tmp_path / "out", "--algorithms", metric(tmp_path, KILL), "--jobs", "2") == 2
    found = sorted(path.parent.name for path in (tmp_path / "out").rglob("*.*"))
    assert found == ["step0", "step2", "step3", "step4"]
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("msprobe compare: ")]
    assert len(errors) == 1
    assert "step1 rank0 is left out: its process was killed (SIGKILL), as the system does when memory" in errors[0]


def command(*arguments: str | Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1])}
    whole = [sys.executable, "-m", "probe.api.cli", "compare", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        whole,
        env=environment,
        text=True,
        start_new_session=True,
        stdout=pipe,
        stderr=pipe,
        # A shell lets what it starts in the background ignore Ctrl-C, these tests and their children included.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_every_process_without_a_traceback(tmp_path: Path, jobs: str) -> None:
    target, golden = two_runs(tmp_path, [f"step{n}/rank0" for n in range(3)], real_data=True)
    begun = tmp_path / "begun"
    file = metric(tmp_path, HANG.format(path=str(begun)))
    paths = ("-tp", target, "-gp", golden, "-o", tmp_path / "out")
    process = command(*paths, "--algorithms", file, "--jobs", jobs)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.01)
    # As a terminal does it: to every process of the group.
    os.killpg(process.pid, signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert (process.returncode, out, err) == (130, "", "msprobe compare: interrupted.\n")
    # What Python itself starts beside them goes a moment later.
    deadline = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(0.01)
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_without_distributed_the_extra_to_install_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that it cannot be imported, where it is installed.
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert compare(*RANKS, tmp_path / "out", "--dask", "127.0.0.1:8786") == 2
    said = "msprobe compare: --dask needs dask's distributed: pip install 'dask[distributed]'.\n"
    assert capsys.readouterr().err == said


# MindSpore writes the parts of a program that are graphs, and those that are not, into folders of their own.


def test_graph_and_pynative_steps_are_compared_each_with_its_own(tmp_path: Path) -> None:
    places = ["graph/step0/rank0", "graph/step2/rank0", "pynative/step0/rank0", "pynative/step0/rank1"]
    target, golden = two_runs(tmp_path, places)
    shutil.copytree(target / "graph" / "step2", target / "graph" / "step3")
    assert compare(target, golden, tmp_path / "out", "--jobs", "2") == 0
    found = without_times(tmp_path / "out")
    assert sorted(found) == [
        "graph/step0/compare_result_rank0", "graph/step2/compare_result_rank0",
        "pynative/step0/compare_result_rank0", "pynative/step0/compare_result_rank1",
    ]  # fmt: skip


@pytest.mark.parametrize("is_target", [True, False])
def test_the_folder_of_a_step_is_compared_with_the_only_step_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_target: bool
) -> None:
    run, other = two_runs(tmp_path, [f"step3/rank{rank}" for rank in range(2)])
    shutil.move(Path(other) / "step3", Path(other) / "step5")
    paths = (Path(other) / "step5", run) if is_target else (run, Path(other) / "step5")
    assert compare(*paths, tmp_path / "out", "--json") == 0
    pairs = json.loads(capsys.readouterr().out)
    assert [(pair["step"], pair["label"]) for pair in pairs] == [("", "rank0"), ("", "rank1")]


@pytest.mark.parametrize("more", [(), ("--rank_size", "1", "1", "--tp", "1", "1", "--pp", "1", "1")])
def test_the_folder_of_a_step_beside_several_steps_is_an_error_that_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    run, other = two_runs(tmp_path, [f"step{step}/rank0" for step in (1, 4)])
    step = Path(other) / "step4"
    assert compare(run, step, tmp_path / "out", *more) == 2
    said = f"{step} is the folder of one step, and {run} holds step1, step4; give the folder of one of these steps, "
    assert f"{said}such as {Path(run) / 'step4'}." in capsys.readouterr().err


def test_a_step_or_rank_of_one_run_alone_is_the_answer_where_all_else_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = two_runs(tmp_path, [f"step{step}/rank{rank}" for step in range(3) for rank in range(3)])
    shutil.rmtree(tmp_path / "golden")
    golden = shutil.copytree(target, tmp_path / "golden")
    shutil.rmtree(target / "step2")
    assert compare(target, golden, tmp_path / "out") == 0
    assert capsys.readouterr().out.startswith("cannot be told: step 2 is in the golden run only\n")
    assert compare(target, golden, tmp_path / "json", "--json", "--fail-on", "divergence") == 2
    told = json.loads(capsys.readouterr().out)
    assert [each["missing"] for each in told] == [*[[]] * 5, ["step 2 is in the golden run only"]]
    assert [each["divergence"]["answer"] for each in told] == [*["none"] * 5, "cannot_tell"]

    (target / "step0" / "rank1").rename(target / "step0" / "rank5")
    assert compare(target / "step0", golden / "step0", tmp_path / "ranks") == 0
    one, other = "rank 5 is in the target only", "rank 1 is in the golden run only"
    assert capsys.readouterr().out.startswith(f"cannot be told: {one}; {other}\n")
    names = sorted(path.name.split("_")[2] for path in (tmp_path / "ranks").iterdir())
    assert names == ["rank0", "rank2"]


def test_one_process_is_compared_with_each_rank_and_a_single_rank_with_that_of_its_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = two_runs(tmp_path, ["step0/rank0", "step0/rank1"])
    one = shutil.copytree(golden / "step0" / "rank0", tmp_path / "one" / "step0" / "proc7").parent
    assert compare(target, one.parent, tmp_path / "out") == 0
    assert f"{one} holds one process; each rank of" in capsys.readouterr().err
    shutil.rmtree(target / "step0" / "rank0")
    assert compare(target, golden, tmp_path / "single") == 0
    assert "  missing: rank 0 of step 0 is in the golden run only\n" in capsys.readouterr().out
    for name, ranks in (("out", ["rank0", "rank1"]), ("single", ["rank1"])):
        assert sorted(path.name.split("_")[2] for path in (tmp_path / name / "step0").iterdir()) == ranks


RANKS_4 = [("step0/rank0", "step0/rank4"), ("step0/rank1", "step0/rank5")]


@pytest.mark.parametrize(("places", "moved", "of_target", "of_golden", "expected"), [
    (["step0/rank0", "step0/rank1"], RANKS_4, "", "", "To compare two ranks with each other, give their folders."),
    (["step0/rank0"], [], "step0/rank0", "step0", "is the folder of one process and"),
    (["graph/step0/proc7"], [("graph", "pynative")], "", "", "holds pynative and"),
])  # fmt: skip
def test_what_has_nothing_to_be_compared_with_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    places: list[str],
    moved: list[tuple[str, str]],
    of_target: str,
    of_golden: str,
    expected: str,
) -> None:
    target, golden = two_runs(tmp_path, places)
    for name, other in moved:
        (target / name).rename(target / other)
    assert compare(target / of_target, golden / of_golden, tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
