"""Two workers and a scheduler that msrun starts: `run` is for the test, the rest for the script.

MindSpore builds its cluster in seconds or in minutes. Its client registers a connection with the thread that waits for
events before it has noted the two addresses of it. Where that thread is the faster one, which depends on the load of
the machine, the connection is never taken as connected, is given up after 1.5 s, and all begins anew: `init` was seen
to take 3 s and 170 s on the same machine. So here the threads share one core meanwhile and do not interrupt one
another; those that begin there stay on it.

And a process of a cluster can crash when Python has ended, in MindSpore's own threads: one in ten did on a loaded
machine, with a debugger and without one. So what counts is that the script came to its end.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path

from free_port import free_port

import probe

START_LIMIT = 90.0
"""Seconds that a worker has until the cluster is up."""
WORK_LIMIT = 90.0
"""Seconds that a worker has from then on."""
TRIES = 3
WAITS, UP, DONE = "waits for the cluster", "the cluster is up", "the script is done"
TOO_LONG = "Timeout ("
"""What faulthandler writes before the stacks."""


def watch() -> None:
    """Let this process end with the stacks of all its threads in its log where it takes too long."""
    faulthandler.enable()
    is_worker = os.environ["MS_ROLE"] == "MS_WORKER"
    faulthandler.dump_traceback_later(START_LIMIT if is_worker else START_LIMIT + WORK_LIMIT, exit=True)


def join() -> None:
    """Call `init` of MindSpore, which makes this process a part of the cluster."""
    from mindspore.communication import init

    print(WAITS, flush=True)
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    init()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, cores)
    print(UP, flush=True)
    if os.environ["MS_ROLE"] == "MS_WORKER":
        faulthandler.dump_traceback_later(WORK_LIMIT, exit=True)


def end() -> None:
    """Say that the script is done."""
    print(DONE, flush=True)


def run(folder: Path, source: str) -> Path:
    """Run `source`, which calls `join`, in two workers and a scheduler; the folder they ran in, with their `logs`.

    They are started again, in a new folder and at another port, only where both workers waited for a cluster that did
    not come up, or where one was ended because the other crashed after its script. Any other failure is raised at once.
    """
    for number in range(TRIES):
        place = folder / f"try{number}"
        place.mkdir()
        lines = ["import mindspore_cluster", "mindspore_cluster.watch()", source, "mindspore_cluster.end()"]
        (place / "script.py").write_text("\n".join(lines), "utf-8")
        code, said = msrun(place)
        logs = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in place.glob("logs/*.log")}
        workers = [logs.get(f"worker_{rank}", "") for rank in (0, 1)]
        done = [DONE in log for log in workers]
        if code == 0 or all(done):
            return place
        if not any(done) and not all(WAITS in log and UP not in log and TOO_LONG in log for log in workers):
            break
    told = "\n".join(f"--- {name}\n{text}" for name, text in {"msrun": said, **logs}.items())
    raise AssertionError(f"try {number + 1} of {TRIES} ended with {code}:\n{told}")


def msrun(folder: Path) -> tuple[int, str]:
    """Run the script in `folder`; the code msrun ended with, and what it wrote to the terminal."""
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        # msrun starts the Python of its path, and that is to import the very package that is tested here.
        "PATH": os.pathsep.join([str(binaries), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(Path(probe.__file__).parents[1])]),
        "GLOG_v": "3",
        "OMP_NUM_THREADS": "1",
    }
    options = ["--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", "--join=True"]
    process = subprocess.Popen(
        [str(binaries / "msrun"), *options, "--log_dir=logs", "script.py"],
        cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=START_LIMIT + WORK_LIMIT + 60)
    except subprocess.TimeoutExpired:
        # The workers are not in this group: msrun gives each a session of its own, and they end themselves.
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    return process.returncode, said
