"""Runs each program it is told of in a fork of itself, the modules of its command line imported; see ``forks.py``."""

import atexit
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import types
import warnings
from typing import Any, NoReturn

LIMIT_S = 30
"""How long is waited for a program to write ``> begin``."""


def start(job: dict[str, Any], process: dict[str, Any]) -> int:
    """Fork; return the child's process id. The child never returns: the program ends it, or its own end does."""
    with warnings.catch_warnings():
        # Since Python 3.12 a fork beside threads warns; those of the frameworks that are imported have nothing to do.
        warnings.simplefilter("ignore")
        child = os.fork()
    if child:
        return child
    # A program that does not end is ended by this signal.
    signal.alarm(job["timeout"])
    for path, descriptor in ((process["out"], 1), (process["err"], 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    added = [os.path.dirname(job["script"]), *job["environment"].get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = [path for path in added if path]
    sys.argv = [job["script"], *process["arguments"]]
    if job["without_warnings"]:
        warnings.simplefilter("ignore")
    program = types.ModuleType("__main__")
    vars(program).update(__file__=job["script"], server=sys.modules["__main__"])
    sys.modules["__main__"] = program
    code = compile(job["code"], job["script"], "exec")
    if job["tear_down"]:
        # Nothing is caught here: the program ends as if it had been started by itself.
        exec(code, vars(program))
        sys.exit()
    end(execute(code, vars(program)))


def execute(code: types.CodeType, names: dict[str, Any]) -> int:
    """Execute `code`; return the status with which an interpreter would end."""
    try:
        exec(code, names)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(status: int) -> NoReturn:
    """What an interpreter does at its end, but for freeing every object of the framework, which takes a while."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def wait_for_begin(path: str) -> None:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        with open(path, "ab+") as stream:
            stream.seek(0)
            if b"> begin" in stream.read():
                return
        time.sleep(0.001)


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # What is there from now on is not looked at again by the garbage collector of any program.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        children = [start(job, process) for process in job["processes"]]
        if job["kill_after"] is not None:
            wait_for_begin(job["processes"][0]["out"])
            time.sleep(job["kill_after"])
            for child in children:
                os.kill(child, signal.SIGKILL)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps([children, statuses]), file=answers, flush=True)


serve()
