"""``msprobe run`` is Python to the program: its arguments, imports, errors, output and exit status. No framework."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_packages import package
from scripts import CHECKOUT, python

from probe.api.cli import main
from probe.common import log
from probe.common.dump.frameworks import FRAMEWORKS, all_tested_text


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return python(*command, folder=folder, timeout=60, **{"MSPROBE_LOG_LEVEL": "4", **variables})


def both(folder: Path, *program: str) -> list[subprocess.CompletedProcess[str]]:
    """What a program does by itself, and under ``msprobe run``."""
    return [run(folder, *program), run(folder, "-m", "msprobe", "run", *program)]


PROGRAM = """
import atexit, concurrent.futures, dataclasses, importlib.util, pickle, sys, threading, time
import helper

@dataclasses.dataclass
class A:
    x: int

print(sys.argv, sys.path[0], __file__, __name__, __doc__, __package__, __annotations__, helper.x)
print(__package__, __cached__)
print(pickle.loads(pickle.dumps(A(3))), importlib.util.find_spec("multiprocessing.spawn").loader.get_filename())
atexit.register(print, "exit")
main, thread = threading.Event(), threading.Event()
threading.Thread(target=lambda: (main.wait(), time.sleep(0.2), print("thread"), thread.set())).start()
pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(lambda: (thread.wait(), print("pool")))
print("main")
main.set()
"""
HELPER = "x = 5\n"


@pytest.mark.parametrize("way", [["program.py"], ["link.py"], ["-m", "package"], ["-m", "package.program"]])
def test_a_script_a_link_a_module_and_a_package_run_as_by_themselves(tmp_path: Path, way: list[str]) -> None:
    folder = tmp_path / ("package" if "-m" in way else "")
    folder.mkdir(exist_ok=True)
    if "-m" in way:
        (folder / "__init__.py").write_text("")
        (tmp_path / "helper.py").write_text(HELPER)
    (folder / "helper.py").write_text(HELPER)
    for name in ("program.py", "__main__.py"):
        (folder / name).write_text(PROGRAM)
    if way == ["link.py"]:
        # It imports from the folder of what it leads to.
        (tmp_path / "real").mkdir()
        for name in ("helper.py", "program.py"):
            (tmp_path / name).rename(tmp_path / "real" / name)
        (tmp_path / "link.py").symlink_to(tmp_path / "real" / "program.py")
    alone, ran = both(tmp_path, *way, "--lr", "0.1")
    assert (ran.returncode, ran.stdout, ran.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert (alone.returncode, alone.stdout.splitlines()[-3:]) == (0, ["thread", "pool", "exit"]), alone.stderr


ENDINGS = {
    "exit": "import sys\nsys.exit(3)",
    "exit with text": "raise SystemExit('wrong')",
    "error": "def f():\n    1 / 0\n\nf()",
    "syntax": "def f(:\n",
    "interrupt": "import os\nos.kill(os.getpid(), 2)",
    "closed output": "import sys\nprint('written')\nsys.stdout.close()",
    "no output": "import sys\nsys.stdout = None",
    "excepthook": "import sys\nsys.excepthook = lambda *error: print('own', error[0])\nraise OSError(5)",
}


@pytest.mark.sampled(least=4, each=False)
@pytest.mark.parametrize("end", ENDINGS)
def test_a_program_ends_as_by_itself(tmp_path: Path, end: str) -> None:
    (tmp_path / "program.py").write_text(ENDINGS[end])
    alone, ran = both(tmp_path, "program.py")
    assert ran.returncode == alone.returncode, "also by a signal, as an interrupted Python does"
    assert (ran.stdout, ran.stderr) == (alone.stdout, alone.stderr)


def test_nothing_that_a_program_can_set_is_imported_before_it(tmp_path: Path) -> None:
    """Variables of numpy's libraries count until numpy is imported."""
    (tmp_path / "program.py").write_text("import sys\nprint({'numpy', 'torch', 'multiprocessing'} & set(sys.modules))")
    assert run(tmp_path, "-m", "msprobe", "run", "program.py").stdout == "set()\n"


def told(done: subprocess.CompletedProcess[str], level: str = "") -> list[str]:
    """The texts of the tool's lines of a level, or of all."""
    return [line.partition("] ")[2] for line in done.stderr.splitlines() if f"[{level}" in line]


def test_a_program_without_a_framework_is_told_of(tmp_path: Path) -> None:
    """Standard output holds what the program writes, and nothing else."""
    (tmp_path / "program.py").write_text("print('loss 0.5')")
    done = run(tmp_path, "-m", "msprobe", "run", "program.py", MSPROBE_LOG_LEVEL="0")
    assert done.stdout == "loss 0.5\n" and len(told(done, "INFO")) == 1
    (line,) = told(done, "WARNING")
    assert "collected nothing: the program imported none of torch, mindspore, mindtorch" in line
    assert all_tested_text() in line and " Installed: " in line
    assert [path.name for path in tmp_path.iterdir()] == ["program.py"]


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import absent_launcher", "ModuleNotFoundError: No module named 'absent_launcher' ({}, line 1)"),
        ("import sys\nsys.exit(4)", "exit status 4"),
        ("import subprocess\nsubprocess.run(['absent'])", "FileNotFoundError: [Errno 2] No such file or directory"),
    ],
)
@pytest.mark.parametrize("task", ["statistics", "monitor"])
def test_what_ended_the_program_comes_first(tmp_path: Path, program: str, reason: str, task: str) -> None:
    (tmp_path / "program.py").write_text(program)
    done = run(tmp_path, "-m", "msprobe", "run", "--task", task, "program.py", MSPROBE_LOG_LEVEL="2")
    (line,) = told(done, "WARNING")
    assert f"the program failed before its first step ({reason.format(tmp_path / 'program.py')}" in line
    assert "launcher in front" not in line and "Installed" not in line


def test_a_launcher_that_is_given_as_the_script_is_to_stand_in_front(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "msprobe", "run", "env", "program.py")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "A launcher stands in front: env ... -m msprobe run train.py." in done.stderr


def test_a_program_that_cannot_be_replaced_goes_on_as_by_itself(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import os, sys\nbefore = dict(os.environ)\nopen('no_program', 'w').close()\nos.chmod('no_program', 0o700)\n"
        "for call in (os.execv, lambda *a: os.execve(*a, env={}), lambda *a: os.execve(*a, {})):\n"
        "    try:\n        call('./no_program', ['x'])\n    except OSError as error:\n        print(error)\n"
        "try:\n    os.execvp('absent-program', ['x'])\nexcept OSError as error:\n    print(error)\n"
        "print(os.environ == before)"
    )
    alone, ran = both(tmp_path, "program.py")
    assert (ran.returncode, ran.stdout, ran.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    assert ran.stdout.endswith("True\n")


@pytest.mark.parametrize(
    ("flag", "variable", "configured", "threshold"),
    [("-q", "0", "info", log.WARNING), ("--quiet", "1", "error", log.WARNING), ("-q", "", "error", log.ERROR)],
)
def test_quiet_leaves_warnings_and_errors_unless_even_less_is_asked_for(
    tmp_path: Path, flag: str, variable: str, configured: str, threshold: int
) -> None:
    (tmp_path / "program.py").write_text(CHILD)
    (tmp_path / "config.json").write_text(f'{{"level": "L1", "task": "statistics", "log_level": "{configured}"}}')
    command = ["-m", "msprobe", "run", "--config", "config.json", "-o", "out", flag, "program.py"]
    done = run(tmp_path, *command, MSPROBE_LOG_LEVEL=variable)
    assert re.findall(r"\[([A-Z]+)\]", done.stderr) == ["WARNING"] * (threshold == log.WARNING)
    # A process that the program starts says as little.
    assert done.stdout == f"{threshold}\n"


CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "from probe.common import log; print(log.threshold())"])
"""


# --- a framework that cannot be watched

BROKEN = {
    "cannot be imported": ("raise ImportError('libcudart.so.12: absent')", "ImportError: libcudart.so.12: absent"),
    "lacks a part": ("", "Error: "),
}
TRIES = "try:\n    import torch\nexcept ImportError:\n    pass\nprint('done')"


@pytest.mark.parametrize("how", BROKEN)
def test_a_framework_that_cannot_be_watched_is_the_reason_with_its_version(tmp_path: Path, how: str) -> None:
    source, error = BROKEN[how]
    package(tmp_path / "broken", "torch", "2.99.1", source)
    (tmp_path / "program.py").write_text(TRIES)
    path = f"{tmp_path / 'broken'}{os.pathsep}{CHECKOUT}"
    done = run(tmp_path, "-m", "msprobe", "run", "--strict", "program.py", MSPROBE_LOG_LEVEL="2", PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "done\n")
    line = told(done, "WARNING")[-1]
    assert "the tool cannot work with PyTorch 2.99.1: " in line and error in line
    assert FRAMEWORKS["torch"].tested_text in line and "msprobe doctor" in line
    assert "imported none" not in done.stderr and "Traceback" not in done.stderr


def test_a_debugger_for_a_framework_that_cannot_be_used_is_one_error(tmp_path: Path) -> None:
    package(tmp_path / "broken", "torch", "2.99.1", "")
    (tmp_path / "program.py").write_text(DEBUGGER)
    done = run(tmp_path, "program.py", PYTHONPATH=f"{tmp_path / 'broken'}{os.pathsep}{CHECKOUT}")
    first, second = done.stdout.splitlines()
    # A second attempt in one process says the same, and nothing of the first is half there.
    assert first.startswith("FrameworkError the tool cannot work with PyTorch 2.99.1: ") and first == second, done
    assert f"Tested: {FRAMEWORKS['torch'].tested_text}" in first
    assert done.stderr.count("Traceback") == 1, "the error, and not what it comes from"


DEBUGGER = """
from msprobe.pytorch import PrecisionDebugger
from probe.common.errors import MsprobeException
for _ in range(2):
    try:
        PrecisionDebugger()
    except MsprobeException as error:
        print(type(error).__name__, error)
PrecisionDebugger()
"""


ENDS = [("", 2), ("raise SystemExit(0)", 2), ("raise SystemExit(3)", 3), ("1 / 0", 1)]


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_strict_is_2_where_nothing_was_collected_and_the_script_ended_well(
    tmp_path: Path, end: str, status: int
) -> None:
    (tmp_path / "program.py").write_text(end)
    assert run(tmp_path, "-m", "msprobe", "run", "--strict", "program.py").returncode == status


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--level", "L9", "program.py"], '--level: "level" is "L9"; allowed: "L0", "L1", "mix".'),
        (["--level", "debug", "program.py"], '--level: "level" is "debug"'),
        (["--step", "a", "program.py"], '--step: "step[0]" is "a"; allowed: whole numbers'),
        (["--task", "a", "program.py"], '--task: "task" is "a"; allowed: "statistics", '),
        (["-o", "~/dump", "program.py"], '-o: "dump_path" is "~/dump"'),
        (["absent.py"], 'absent.py" cannot be read'),
        (["-m", "absent.module"], 'module "absent.module"'),
        (["--"], "no program was given"),
    ],
)
def test_wrong_options_end_before_the_program_begins(
    tmp_path: Path, arguments: list[str], message: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "program.py").write_text("print('begun')")
    monkeypatch.chdir(tmp_path)
    # The first of it is replaced by the folder of the program.
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err and "begun" not in said.out
    assert len(said.err.splitlines()) == 1 and [path.name for path in tmp_path.iterdir()] == ["program.py"]


def test_pools_take_work_after_a_program_that_was_run_inside_of_another(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import concurrent.futures, threading, time\n"
        "pool = concurrent.futures.ThreadPoolExecutor(1)\npool.submit(print, 'pool').result()\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
    )
    (tmp_path / "notebook.py").write_text(
        "import concurrent.futures, threading\nfrom probe.api.cli import main\nstay = threading.Event()\n"
        "threading.Thread(target=stay.wait).start()\n"
        "for _ in range(2):\n    print(main(['run', 'program.py']))\n"
        "print(concurrent.futures.ThreadPoolExecutor(1).submit(len, 'abc').result())\nstay.set()\n"
    )
    done = run(tmp_path, "notebook.py")
    assert (done.returncode, done.stdout.split()) == (0, ["pool", "thread", "0"] * 2 + ["3"]), done.stderr


def test_what_raises_at_the_end_of_a_program_does_not_change_its_status(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import concurrent.futures, sys, threading\n"
        "threading._register_atexit(print, 'last')\nthreading._register_atexit(lambda: 1 / 0)\nsys.exit(3)\n"
    )
    done = run(tmp_path, "-m", "msprobe", "run", "program.py")
    assert (done.returncode, done.stdout) == (3, "last\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n") and "probe" not in done.stderr


FAILURES = {
    "it cannot stop watching imports": "import sys\nsys.meta_path = tuple(sys.meta_path)\n",
    "it cannot let go of the framework": """
from probe.api.run import RunningProgram
class Broken:
    forwards = steps = inferred = 0
    session, failure, refused, step_open = None, "", "", False
    def finish(self, failed): pass
    def unended_text(self): return ""
    uneven_text = unended_text
    def end(self): raise RuntimeError("broken")
RunningProgram.present._loops["torch"] = Broken()
""",
    "it cannot say what was collected": (
        "from probe.api.run import RunningProgram\nRunningProgram.present._arguments.clear()\n"
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize(("end", "status"), ENDS)
def test_a_failure_of_the_tool_at_the_end_leaves_the_program_its_status(
    tmp_path: Path, failure: str, end: str, status: int
) -> None:
    (tmp_path / "program.py").write_text(FAILURES[failure] + end)
    done = run(tmp_path, "-m", "msprobe", "run", "--strict", "program.py", MSPROBE_LOG_LEVEL="3")
    assert done.returncode == status
    assert any("failed to end the collection (" in line for line in told(done, "ERROR")), done.stderr
