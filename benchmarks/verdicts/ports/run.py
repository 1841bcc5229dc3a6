"""Ports of five networks from PyTorch to MindSpore and to mindtorch, right ones and ones with a fault."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from judging import Case

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from port_faults import FAULTS  # noqa: E402
from port_settings import LEVELS, NETWORKS, OPTIMIZERS, Job, write_jobs  # noqa: E402

PORTS = ("mindspore", "msadapter")
STEPS = 2


def jobs(framework: str, out: Path, levels: Iterable[str], only: str = "") -> list[Job]:
    """What is trained in a framework."""
    found: dict[Path, Job] = {}
    for level in levels:
        for network in NETWORKS:
            for optimizer in OPTIMIZERS:
                folder = _folder(out, framework, network, optimizer, level, "")
                found[folder] = Job(network, optimizer, level, "", STEPS, str(folder))
        for fault in FAULTS if framework != "torch" else ():
            folder = _folder(out, framework, fault.network, fault.optimizer, level, fault.name)
            found[folder] = Job(fault.network, fault.optimizer, level, fault.name, STEPS, str(folder))
    return [job for folder, job in found.items() if only in str(folder)]


def _folder(out: Path, framework: str, network: str, optimizer: str, level: str, fault: str) -> Path:
    return out / framework / level / "-".join(part for part in (network, optimizer, fault.replace(" ", "_")) if part)


def dump(framework: str, python: str, out: Path, levels: Iterable[str], only: str = "") -> None:
    """Train everything in one framework that is not there yet, in one process of its interpreter."""
    weights = out / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    wanted = [job for job in jobs(framework, out, levels, only) if not _marker(job).exists()]
    if not wanted:
        return
    for job in wanted:
        shutil.rmtree(job.folder, ignore_errors=True)
    path = out / f"{framework}.json"
    write_jobs(path, wanted)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": paths, "GLOG_v": "3"}
    command = [python, "-W", "ignore", str(HERE / f"train_{framework}.py"), str(path), str(weights)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{framework}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    for job in wanted:
        _marker(job).touch()


def _marker(job: Job) -> Path:
    """The file that says that a dump is complete."""
    return Path(f"{job.folder}.done")


def cases(out: Path, port: str) -> Iterator[Case]:
    """The pairs of a port and the network in PyTorch."""
    for level in LEVELS:
        right = [(network, optimizer) for network in NETWORKS for optimizer in OPTIMIZERS]
        for network, optimizer in right:
            yield _case(out, port, level, network, optimizer, "", f"{network}-{optimizer}-right", None, "")
        for fault in FAULTS:
            if level in fault.levels:
                name = f"{fault.network}-{fault.name.replace(' ', '_')}"
                names = fault.network, fault.optimizer, fault.name, name
                yield _case(out, port, level, *names, fault.where, fault.cause)


def _case(
    out: Path, port: str, level: str, network: str, optimizer: str, fault: str, name: str, right: str | None, cause: str
) -> Case:
    of_port, of_torch = (port, fault), ("torch", "")
    sides = (_folder(out, framework, network, optimizer, level, each) for framework, each in (of_port, of_torch))
    target, golden = (str(side.relative_to(out.parent)) for side in sides)
    name, planted = f"{port}-{name}@{level}", right is not None
    return Case("ports", name, target, golden, right, "float32", level, planted, cause=cause)
