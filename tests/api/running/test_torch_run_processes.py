"""``msprobe run`` with PyTorch: a program of several processes without ranks is one run, whatever starts them."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from running import Ran, run
from torch_running import DESCENT, PRELUDE, quick

import probe
from probe.api.cli import main
from probe.common.dump import processes
from probe.common.log import reset

# Each starts programs: some are drawn, and `make reliability` runs all.
pytestmark = pytest.mark.sampled(least=7, each=False, group="processes of programs")

TRAIN = (
    PRELUDE
    + DESCENT
    + """
import multiprocessing, os, subprocess
from concurrent.futures import ProcessPoolExecutor

def train(width, steps=3, rate=0.1):
    torch.manual_seed(width)
    net = network(width)
    # The process in which forks are made has imported the compiler.
    kind = torch.optim.SGD if "torch._dynamo" in sys.modules else Descent
    optimizer = kind(net.parameters(), rate)
    for _ in range(steps):
        net(torch.randn(5, width)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return width

arrived = multiprocessing.get_context("fork").Barrier(2)

def train_beside_another(width):
    # Where one worker is slow to start the other would get both tasks.
    arrived.wait(120)
    return train(width)
"""
)
STARTED = {
    "process": """
    for method in {methods}:
        several = [multiprocessing.get_context(method).Process(target=train, args=(width,)) for width in (8, 12)]
        [each.start() for each in several]
        [each.join() for each in several]
        assert [each.exitcode for each in several] == [0, 0]
""",
    "pool": """
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(train_beside_another, [8, 12], chunksize=1) == [8, 12]
""",
    "executor": """
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as executor:
        assert list(executor.map(train_beside_another, [8, 12])) == [8, 12]
""",
    "os.fork": """
    for width in (8, 12):
        pid = os.fork()
        if not pid:
            train(width)
            os._exit(0)
        os.waitpid(pid, 0)
""",
}


FIRST_LAYER = re.compile(r"Module\.(model~\d+\.)?0\.Linear\.forward\.0")
"""A process that trains several models one after the other names each."""


def program(kind: str, before: str = "", **values: Any) -> str:
    return f"{TRAIN}\nif __name__ == '__main__':\n{before}{STARTED[kind].format(**values)}"


def folders(ran: Ran) -> dict[str, list[str]]:
    """The steps of each process."""
    found: dict[str, list[str]] = {}
    for path in sorted(ran.folder.glob("step*/*")):
        found.setdefault(path.name, []).append(path.parent.name)
    return found


def widths(ran: Ran, step: int = 0) -> list[tuple[tuple[int, ...], int]]:
    """Of each process of a step its order and the width of what it trained, in order."""
    found = []
    for path in ran.folder.glob(f"step{step}/*/dump.json"):
        process = processes.read(str(path.parent))
        assert process is not None and path.parent.name in (f"proc{process.pid}", "rank0", "rank1")
        data = json.loads(path.read_text())["data"]
        (name,) = [name for name in data if FIRST_LAYER.fullmatch(name)]
        found.append((process.order, data[name]["input_args"][0]["shape"][1]))
    return sorted(found)


def runs_of(ran: Ran) -> set[str]:
    found = [processes.read(str(path)) for path in ran.folder.glob("step*/*")]
    return {each.run for each in found if each is not None} if None not in found else set()


@pytest.mark.parametrize("kind", ["process", "pool", "executor", "os.fork"])
def test_forked_processes_are_one_run(scripts: Any, tmp_path: Path, kind: str) -> None:
    ran = quick(scripts, tmp_path, program(kind, methods=["fork"]))
    assert (ran.status, ran.warnings) == (0, []), ran.err
    assert len(runs_of(ran)) == 1
    assert list(folders(ran).values()) == [["step0", "step1"]] * 2
    assert {width for _, width in widths(ran)} == {8, 12} and {len(order) for order, _ in widths(ran)} == {1}
    assert widths(ran, 0) == widths(ran, 1)
    collected = ", ".join(f"{name} (step 0-1)" for name in folders(ran))
    assert f"collected in processes that the program started: {collected}." in ran.out + ran.written_to_err


def test_a_forked_process_has_steps_of_its_own_beside_those_of_its_parent(scripts: Any, tmp_path: Path) -> None:
    """Also where the parent has all its steps already, or is in the middle of one."""
    before = """
    train(6, {steps})
    net = network(6)
    net(torch.randn(5, 6)).sum()
"""
    for steps, of_parent in ((0, 1), (2, 2)):
        folder = tmp_path / str(steps)
        folder.mkdir()
        ran = quick(scripts, folder, program("os.fork", before.format(steps=steps)))
        assert ran.status == 0, ran.err
        found = [len(of) for of in folders(ran).values()]
        assert sorted(found) == sorted([of_parent, 2, 2]), ran.out
        assert [(len(order), width) for order, width in widths(ran)] == [(0, 6), (1, 8), (1, 12)]
        assert widths(ran, 1)[-2:] == widths(ran)[-2:]


def test_a_forked_worker_that_ends_in_the_middle_of_a_step_leaves_it_whole(scripts: Any, tmp_path: Path) -> None:
    text = (
        TRAIN
        + """
def begin(width):
    network(width)(torch.randn(5, width)).sum()

if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=begin, args=(8,))
    process.start()
    process.join()
"""
    )
    ran = quick(scripts, tmp_path, text)
    assert ran.forwards(0) == [f"Module.{name}.forward.0" for name in ("0.Linear", "1.ReLU", "2.Linear")]
    assert not list(ran.folder.rglob("dump.journal"))


def test_a_worker_that_is_killed_leaves_its_journal_to_the_same_run(scripts: Any, tmp_path: Path) -> None:
    text = (
        TRAIN
        + f"""
def die(width):
    train(width, 1)
    network(width)(torch.randn(5, width)).sum()
    os.kill(os.getpid(), {int(signal.SIGKILL)})

if __name__ == "__main__":
    several = [multiprocessing.get_context("fork").Process(target=each, args=(8,)) for each in (die, train)]
    [each.start() for each in several]
    [each.join() for each in several]
    assert [each.exitcode for each in several] == [-9, 0]
"""
    )
    ran = quick(scripts, tmp_path, text)
    assert ran.status == 0, ran.err
    found = probe.read(ran.folder)
    assert isinstance(found, probe.Run) and len(found) == 4 and len(found.processes) == 2
    assert [found[1, name].died for name in found.processes] == [True, False]
    assert all(any(FIRST_LAYER.fullmatch(record.name) for record in dump.records) for dump in found)


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_spawned_processes_are_one_run_with_those_of_a_server(tmp_path: Path) -> None:
    ran = run(tmp_path, program("process", methods=["spawn", "forkserver"]), "--level", "L0")
    assert (ran.status, ran.warnings) == (0, []), ran.err
    assert len(runs_of(ran)) == 1 and list(folders(ran).values()) == [["step0", "step1"]] * 4
    found = widths(ran)
    assert sorted(width for _, width in found) == [8, 8, 12, 12]
    # In the order in which they were started.
    assert [width for _, width in found] == [8, 12, 8, 12]


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_commands_that_a_program_starts_are_collected_from_when_they_are_followed(tmp_path: Path) -> None:
    """By subprocess, by a shell, by a forked process, in the place of one, and by a launcher of ranks."""
    (tmp_path / "child.py").write_text(TRAIN + "print('trained', train(int(sys.argv[1])))\n")
    (tmp_path / "ranks.py").write_text(
        TRAIN + "torch.distributed.init_process_group('gloo')\ntrain(4 + torch.distributed.get_rank())\n"
    )
    text = """
import os, subprocess, sys
child = [sys.executable, "child.py"]
assert subprocess.check_output([*child, "8"], stderr=subprocess.STDOUT, text=True) == "trained 8\\n"
assert subprocess.check_output(f"{sys.executable} child.py 9", shell=True, text=True) == "trained 9\\n"
pid = os.fork()
if not pid:
    os.execv(sys.executable, [*child, "10"])
os.waitpid(pid, 0)
launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "ranks.py"]
subprocess.run(launcher, check=True)
watching = [sys.executable, "-c", "import sys; print('_msprobe' in str([type(each) for each in sys.meta_path]))"]
assert subprocess.check_output(watching, text=True) == "True\\n"
assert subprocess.check_output(watching, env={"PATH": os.environ["PATH"]}, text=True) == "False\\n"
"""
    ran = run(tmp_path, text, "--follow-children", "--level", "L0")
    assert ran.status == 0, ran.err
    assert len(runs_of(ran)) == 1
    found = [width for _, width in widths(ran)]
    # The ranks were started at once.
    assert found[:3] == [8, 9, 10] and sorted(found[3:]) == [4, 5]
    assert all(steps == ["step0", "step1"] for steps in folders(ran).values()) and len(folders(ran)) == 5
    said = (ran.out + ran.written_to_err).splitlines()
    ended = next(line for line in said if "processes that the program started" in line)
    assert set(re.findall(r"(\w+) \(step 0-1\)", ended)) == set(folders(ran))


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
@pytest.mark.parametrize("call", ["os.execl(*words)", "os.execve(words[0], words[1:], dict(os.environ))"])
def test_a_program_that_replaces_itself_is_followed_without_a_flag(tmp_path: Path, call: str) -> None:
    (tmp_path / "child.py").write_text(TRAIN + "print('trained', train(8))\n")
    program = f"import os, sys\nwords = [sys.executable, sys.executable, 'child.py']\n{call}"
    ran = run(tmp_path, program, "--level", "L0")
    assert ran.status == 0 and "trained 8" in ran.out, ran.err
    assert list(folders(ran).values()) == [["step0", "step1"]]


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_workers_of_a_launcher_that_have_no_ranks_are_one_run(tmp_path: Path) -> None:
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    text = TRAIN + "train(8 + 4 * int(os.environ['RANK']))\n"
    for _ in range(2):
        ran = run(tmp_path, text, "--level", "L0", launcher=launcher)
        assert ran.status == 0, ran.err
    assert len(folders(ran)) == 4 and len(runs_of(ran)) == 2
    found = probe.read(ran.folder)
    assert isinstance(found, probe.Run) and len(found) == 4
    shapes = [found[0, name]["Module.0.Linear.forward.0"].items()[0].shape for name in found.processes]
    assert shapes == [(5, 8), (5, 12)]


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_a_program_that_runs_another_under_msprobe_run_leaves_that_to_it(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(TRAIN + "train(8)\n")
    text = """
import subprocess, sys
subprocess.run([sys.executable, "-m", "msprobe", "run", "-o", "inner", "--step", "0", "child.py"], check=True)
"""
    ran = run(tmp_path, text, "--follow-children")
    assert ran.status == 0, ran.err
    assert folders(ran) == {} and len(list((tmp_path / "inner").glob("step*/*"))) == 1


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_a_notebook_is_collected_from_when_it_is_followed(tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    text = f"""
import nbclient, nbformat
notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell(text) for text in ({TRAIN!r}, "train(8)", "train(12, 1)")]
nbclient.NotebookClient(notebook, timeout=120).execute()
print([len(cell.outputs) for cell in notebook.cells])
"""
    ran = run(tmp_path, text, "--follow-children", "--step", "all")
    assert ran.status == 0 and "[0, 1, 1]" in ran.out, ran.err
    assert list(folders(ran).values()) == [["step0", "step1", "step2", "step3"]]
    assert [width for _, width in widths(ran, 0) + widths(ran, 3)] == [8, 12]
    # The cells have their numbers, and nothing has a name of this kernel alone.
    stacks = next(ran.folder.glob("step0/*/stack.json")).read_text()
    assert "File Cell In[1], line " in stacks and "File Cell In[2], line 1, in <module>" in stacks
    assert not re.search(r"ipykernel_\d", stacks)
    (environment,) = (json.loads(path.read_text()) for path in ran.folder.glob("environment_*.json"))
    assert environment["command"] == ["python", "ipykernel_launcher.py"]


def test_two_runs_are_compared_process_by_process(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process numbers differ, and the second run started them in another order, and one learns faster."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    golden = quick(scripts, one, program("process", methods=["fork"]), "--level", "L1")
    other = program("process", methods=["fork"]).replace("(8, 12)", "(12, 8)").replace("rate=0.1", "rate=0.2")
    target = quick(scripts, two, other, "--level", "L1")
    assert main(["compare", "-tp", str(target.folder), "-gp", str(golden.folder), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    text = said.out + said.err
    assert "first divergence: step" in text, text
    found = {path.name.split("_")[2] for path in (tmp_path / "out").glob("step*/compare_result_*.csv")}
    assert found == set(folders(target)) and len(found) == 2
    paired = dict(re.findall(r"(proc\d+) with (proc\d+)", text))
    width = {
        name: shape for ran in (target, golden) for name, shape in
        ((f"proc{processes.read(str(path)).pid}", probe.read(path).records[0].items()[0].shape)  # type: ignore[union-attr]
         for path in ran.folder.glob("step0/*"))
    }  # fmt: skip
    assert len(paired) == 2 and all(width[mine] == width[theirs] for mine, theirs in paired.items())


# Its values are filled in by `str.format`.
POOL = (
    TRAIN.replace("{", "{{").replace("}", "}}")
    + """
def task(seed):
    torch.manual_seed(seed)
    net = network()
    optimizer = torch.optim.SGD(net.parameters(), {rate})
    for _ in range(2):
        net(torch.full((5, 8), float(seed))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

if __name__ == "__main__":
    for taken in {taken}:
        pid = os.fork()
        if not pid:
            [task(seed) for seed in taken]
            os._exit(0)
        os.waitpid(pid, 0)
"""
)


def compared_pools(
    scripts: Any, folder: Path, capsys: pytest.CaptureFixture[str], one: dict[str, Any], two: dict[str, Any]
) -> tuple[int, str]:
    """The status and the text of a comparison of two runs of `POOL`."""
    found = []
    for name, values in (("one", one), ("two", two)):
        (folder / name).mkdir(parents=True)
        text = POOL.format(**{"rate": 0.1, **values})
        found.append(str(quick(scripts, folder / name, text, "--level", "L1", "--step", "all").folder))
    options = ["-o", str(folder / "compared"), "--fail-on", "divergence"]
    status = main(["compare", "-tp", found[0], "-gp", found[1], *options])
    return status, "".join(capsys.readouterr())


@pytest.mark.parametrize("taken", [((1, 3), (2, 4)), ((1,), (3, 2, 4)), ((1, 3, 4, 2),)])
def test_no_divergence_is_named_where_a_pool_took_its_tasks_in_another_order(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], taken: Any
) -> None:
    one, two = {"taken": ((1, 2), (3, 4))}, {"taken": taken}
    status, text = compared_pools(scripts, tmp_path, capsys, one, two)
    assert "first divergence" not in text and "no divergence" not in text, text
    assert status == 2 and "the processes of a pool took other tasks in each run" in text, text


@pytest.mark.sampled(least=2, each=False, group="several processes with a framework")
def test_a_divergence_in_a_pool_is_named(scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tasks are the same in both runs, and one run updates by more, by less, or not at all."""
    for rate in (0.2, 0.0):
        one, two = {"taken": ((1, 2), (3, 4)), "rate": rate}, {"taken": ((1, 2), (3, 4))}
        status, text = compared_pools(scripts, tmp_path / str(rate), capsys, one, two)
        assert status == 1 and "first divergence: step" in text and "other tasks" not in text, text


def test_a_second_run_into_the_same_folder_is_told_apart(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = quick(scripts, tmp_path, program("process", methods=["fork"]))
    earlier = set(folders(first))
    second = quick(scripts, tmp_path, program("pool"))
    later = set(folders(second)) - earlier
    assert len(later) == 2
    assert any("holds an earlier run already" in line for line in second.warnings)
    reset()
    found = probe.read(tmp_path / "out")
    assert isinstance(found, probe.Run) and set(found.processes) == later and len(found) == 4
    text = "".join(capsys.readouterr())
    assert "also holds another run" in text and all(name in text for name in earlier)


def test_two_runs_in_one_process_are_two_runs(scripts: Any, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN + "train(8)\n")
    text = """
import sys
from probe.api.cli import main
argv = list(sys.argv)
for output in ("one", "two"):
    assert main(["run", "-o", output, "--level", "L0", "train.py"]) == 0
    assert sys.modules["probe.api.run"].RunningProgram.present is None
"""
    ended = scripts.run(tmp_path, text)
    assert ended.status == 0, ended.err
    one, two = (Ran(0, "", "", tmp_path / name) for name in ("one", "two"))
    assert list(folders(one).values()) == list(folders(two).values()) == [["step0", "step1"]]
    assert len(runs_of(one) | runs_of(two)) == 2


def test_a_pool_of_which_no_worker_trains_is_no_collection(scripts: Any, tmp_path: Path) -> None:
    text = program("process", methods=["fork"]).replace("target=train", "target=abs")
    ran = quick(scripts, tmp_path, text)
    (line,) = ran.warnings
    assert "collected nothing" in line and "of the 2 that it started none has collected" in line
