"""Makes the dumps of pairs: an interpreter for each environment imports its framework once and forks for every run.

python dumping.py FILE      the jobs of one environment; it prints a line for each
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from pairs.cases import NEW, OLD, PAIRS

SIDES = ("golden", "target")
ROOT = Path(__file__).parents[3]


def folder_of(dumps: Path, name: str, setting: str) -> Path:
    """Where the two dumps of a pair are; `setting` is ``mix:statistics``."""
    return dumps / name / setting.replace(":", "-")


def is_made(dumps: Path, name: str, setting: str, side: str) -> bool:
    folder = folder_of(dumps, name, setting)
    return (folder / f"{side}.done").exists()


def make(dumps: Path, wanted: Sequence[tuple[str, str]], pythons: Mapping[str, str]) -> None:
    """Make the dumps that are not there yet.

    Args:
        wanted: names of pairs, each with a setting.
        pythons: the interpreters of the environments.
    """
    weights = dumps / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    models = dict.fromkeys(PAIRS[name].model for name, _ in wanted)
    # Both releases load what the older one saves, which therefore comes first.
    drawing = OLD if OLD in pythons else NEW
    missing = [model for model in models if not (weights / model).exists()]
    jobs: dict[str, list[dict[str, Any]]] = {drawing: [{"weights": model} for model in missing]}
    for name, setting in wanted:
        for side in SIDES:
            if not is_made(dumps, name, setting, side):
                run = getattr(PAIRS[name], side)
                jobs.setdefault(run.environment, []).append({"pair": name, "side": side, "setting": setting})
    for environment, of_environment in jobs.items():
        _run(pythons[environment], dumps, of_environment)


def _run(python: str, dumps: Path, jobs: Sequence[dict[str, Any]]) -> None:
    if not jobs:
        return
    file = dumps / f"jobs-{os.getpid()}.json"
    file.write_text(json.dumps({"dumps": str(dumps.resolve()), "jobs": jobs}), encoding="utf-8")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "2"}
    if "PROBE_TEST_INSTALLED" not in environment:
        environment["PYTHONPATH"] = str(ROOT)
    subprocess.run([python, __file__, str(file)], env=environment, check=True, stdout=sys.stderr)
    file.unlink()


# --- in the interpreter that does them


def work(file: Path) -> None:
    from pairs import models

    given = json.loads(file.read_text(encoding="utf-8"))
    dumps = Path(given["dumps"])
    # Before the forks, which then start in no time.
    models.import_classes({job.get("weights") or PAIRS[job["pair"]].model for job in given["jobs"]})
    for job in given["jobs"]:
        start = time.perf_counter()
        if "weights" in job:
            name = f"weights of {job['weights']}"
            done = _forked([lambda job=job: models.save_weights(job["weights"], dumps / "weights")], dumps / "weights")
        else:
            name = f"{job['pair']} {job['setting']} {job['side']}"
            done = _dump(dumps, job)
        print(f"{'ok ' if done else 'BAD'} {time.perf_counter() - start:5.1f} s {name}", flush=True)


def _dump(dumps: Path, job: Mapping[str, str]) -> bool:
    from pairs.training import train

    pair, side = PAIRS[job["pair"]], job["side"]
    run = getattr(pair, side)
    folder = folder_of(dumps, job["pair"], job["setting"])
    output = folder / side
    shutil.rmtree(output, ignore_errors=True)
    Path(f"{output}.rendezvous").unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    level, _, task = job["setting"].partition(":")

    def of_rank(rank: int | None) -> Any:
        return lambda: train(pair.model, run, dumps / "weights", level, task, output, rank)

    done = _forked([of_rank(rank) for rank in range(run.ranks)] or [of_rank(None)], output)
    if done:
        Path(f"{output}.done").touch()
    return done


def _forked(works: Sequence[Any], log: Path) -> bool:
    """Do each in a process of its own, all at once; what they print goes to ``<log>.log``."""
    processes = []
    for number, each in enumerate(works):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                flags = os.O_CREAT | os.O_WRONLY | (os.O_APPEND if number else os.O_TRUNC)
                stream = os.open(f"{log}.log", flags)
                os.dup2(stream, 1)
                os.dup2(stream, 2)
                each()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                # The debugger writes what it still has at exit, which `_exit` leaves out.
                with contextlib.suppress(Exception):
                    atexit._run_exitfuncs()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        processes.append(process)
    # All of them are waited for, whatever the first comes to.
    ends = [os.waitpid(process, 0)[1] for process in processes]
    return not any(ends)


if __name__ == "__main__":
    work(Path(sys.argv[1]))
