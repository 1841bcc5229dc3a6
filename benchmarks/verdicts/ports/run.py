"""Ports of five networks from PyTorch to MindSpore and to mindtorch, right ones and ones with a fault, judged.

    python benchmarks/verdicts/ports/run.py --torch PY --mindspore PY --msadapter PY --out DIR

PY are interpreters that have the framework and this package. Right is silence about a right port, and of a fault its
place: the module, or the step of the optimizer. A `cause` says that the words tell what is wrong there, too.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
for folder in (ROOT, HERE):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from port_faults import FAULTS, Fault  # noqa: E402
from port_settings import LEVELS, NETWORKS, OPTIMIZERS, Job, write_jobs  # noqa: E402

from probe.common.dump.reading.dump import read  # noqa: E402
from probe.compare.comparison import compare_dumps  # noqa: E402
from probe.compare.output.summary import summarise  # noqa: E402
from probe.compare.output.summary_text import UNTOLD  # noqa: E402
from probe.compare.result import ComparisonResult  # noqa: E402

PORTS = ("mindspore", "msadapter")
NO_DUMPS = "no dumps"
STEPS = 3
STEPS_WITH_FAULT = 2


class Row(NamedTuple):
    """One pair of runs and what was said of it."""

    name: str
    truth: str
    said: str
    right: bool
    cause: bool = False
    """Whether the words tell what is wrong."""


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
            found[folder] = Job(fault.network, fault.optimizer, level, fault.name, STEPS_WITH_FAULT, str(folder))
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


def judged(out: Path, ports: Iterable[str] = PORTS, levels: Iterable[str] = LEVELS, only: str = "") -> Iterator[Row]:
    """What is said of each pair whose dumps are in `out`."""
    for port in ports:
        for level in levels:
            for network in NETWORKS:
                for optimizer in OPTIMIZERS:
                    name = f"{port} {level} {network} {optimizer}"
                    if only in name:
                        yield verdict_of_right_port(out, port, level, network, optimizer)
            for fault in FAULTS:
                if only in f"{port} {level} {fault.network} {fault.name}" and level in fault.levels:
                    yield verdict_of_fault(out, port, level, fault)


def _verdict(out: Path, port: str, level: str, network: str, optimizer: str, fault: str, step: int) -> tuple[str, str]:
    """The record that is named first, and what is said of it; no record where nothing is."""
    folders = [
        _folder(out, port, network, optimizer, level, fault), _folder(out, "torch", network, optimizer, level, "")
    ]  # fmt: skip
    result = compare_step(folders, step)
    if result.divergence is None:
        untold = summarise(result).untold
        return "", f"{UNTOLD}: {untold}" if untold else ""
    first = result.divergence.first
    places = [first.record or first.golden_record, first.module, first.golden_record]
    return " ".join(dict.fromkeys(filter(None, places))), f"{first.cause or ''} | {first.reason}"


def compare_step(folders: list[Path], step: int) -> ComparisonResult:
    """One step of two runs compared, of target and golden side."""
    target, golden = (_dump(folder, step) for folder in folders)
    before = tuple(_dump(folder, step - 1) for folder in folders) if step else None
    return compare_dumps(read(target), read(golden), before=before)


def _are_there(out: Path, port: str, network: str, optimizer: str, level: str, fault: str, steps: int) -> bool:
    folders = (
        _folder(out, port, network, optimizer, level, fault), _folder(out, "torch", network, optimizer, level, "")
    )  # fmt: skip
    return all(any((folder / f"step{step}").glob("*/dump.json")) for folder in folders for step in range(steps))


def _dump(folder: Path, step: int) -> str:
    return str(next((folder / f"step{step}").glob("*/dump.json")))


def verdict_of_right_port(out: Path, port: str, level: str, network: str, optimizer: str) -> Row:
    """What is said of the steps of a right port."""
    if not _are_there(out, port, network, optimizer, level, "", STEPS):
        return Row(f"{port} {level} {network} {optimizer}", "right", NO_DUMPS, False)
    said = []
    for step in range(STEPS):
        record, words = _verdict(out, port, level, network, optimizer, "", step)
        if record or words:
            said.append(f"step {step}: {record} {words}".strip())
    return Row(f"{port} {level} {network} {optimizer}", "right", said[0] if said else "silent", not said)


def verdict_of_fault(out: Path, port: str, level: str, fault: Fault) -> Row:
    """What is said of the first step in which a port with a fault differs."""
    name = f"{port} {level} {fault.network} {fault.name}"
    if not _are_there(out, port, fault.network, fault.optimizer, level, fault.name, STEPS_WITH_FAULT):
        return Row(name, fault.name, NO_DUMPS, False)
    for step in range(STEPS_WITH_FAULT):
        record, words = _verdict(out, port, level, fault.network, fault.optimizer, fault.name, step)
        if record or words:
            said = f"step {step}: {record} {words}".strip()
            cause = fault.tells(words)
            right = bool(record) and fault.names(f"{record} {words}")
            return Row(name, fault.name, said, right, right and cause)
    return Row(name, fault.name, "silent", False)


def table(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown."""
    lines = ["| pair | truth | what was said | right |", "|---|---|---|---|"]
    for row in rows:
        right = ("yes, with its cause" if row.cause else "yes") if row.right else "no"
        lines.append(f"| {row.name} | {row.truth} | {row.said.replace('|', ';')} | {right} |")
    return "\n".join(lines)


def rows(interpreters: dict[str, str], out: Path, levels: Iterable[str] = LEVELS) -> list[Row]:
    """Train in all frameworks and judge: name, truth, what was said, and whether it is right.

    Args:
        interpreters: of ``torch`` and the ports.
        out: a folder for the dumps.
        levels: those of the dumps.
    """
    for framework, python in interpreters.items():
        dump(framework, python, out, levels)
    return list(judged(out, [name for name in interpreters if name in PORTS], levels))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", metavar="PY", help="interpreter with PyTorch")
    parser.add_argument("--mindspore", metavar="PY", help="interpreter with MindSpore")
    parser.add_argument("--msadapter", metavar="PY", help="interpreter with MindSpore and mindtorch")
    parser.add_argument("--out", type=Path, required=True, help="folder for the dumps")
    parser.add_argument("--levels", nargs="+", default=LEVELS, choices=LEVELS)
    parser.add_argument("--only", default="", help="a part of the names of the pairs to judge")
    parser.add_argument("--ports", nargs="+", default=PORTS, choices=PORTS)
    options = parser.parse_args()
    for framework in ("torch", *PORTS):
        python = getattr(options, framework)
        if python is not None:
            start = time.time()
            dump(framework, python, options.out, options.levels)
            print(f"{framework}: {time.time() - start:.0f} s", file=sys.stderr)
    found = list(judged(options.out, options.ports, options.levels, options.only))
    print(table(found))
    clean = [row for row in found if row.truth == "right"]
    faults = [row for row in found if row.truth != "right"]
    causes = sum(row.cause for row in faults)
    print(f"\nclean: {sum(row.right for row in clean)} of {len(clean)} silent")
    print(f"faults: {sum(row.right for row in faults)} of {len(faults)} named, {causes} of these with their cause")


if __name__ == "__main__":
    main()
