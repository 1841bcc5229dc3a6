"""The sets: each makes the dumps that are missing and yields its cases."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from judging import Case
from pairs import dumping
from pairs.cases import LISTS

from verdicts import CASES, ROOT, Work

HERE = Path(__file__).parent
LEVELS = ("mix", "L0")


def _program(work: Work, name: str, *arguments: object) -> None:
    """Run a program of this folder, which the debugger may change as it likes, in a process of its own."""
    paths = os.pathsep.join(filter(None, (str(ROOT), str(HERE.parent), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [work.pythons["torch"], "-W", "ignore", str(HERE / name), *map(str, arguments)]
    subprocess.run(command, env=environment, check=True, stdout=sys.stderr)


def _recorded(work: Work, name: str) -> Iterator[Case]:
    """Two runs of a model of Transformers."""
    pairs = {
        pair: of_pair
        for pair, of_pair in LISTS[name].items()
        if {of_pair.target.environment, of_pair.golden.environment} <= set(work.pythons)
    }
    work.dumps.mkdir(parents=True, exist_ok=True)
    wanted = [(pair, f"{level}:statistics") for level in LEVELS for pair in pairs]
    dumping.make(work.dumps, wanted, work.pythons)
    for pair, setting in wanted:
        of_pair, folder = pairs[pair], dumping.folder_of(work.dumps, pair, setting).relative_to(work.dumps.parent)
        level = setting.partition(":")[0]
        yield Case(
            name, f"{pair}@{level}", str(folder / "target"), str(folder / "golden"), of_pair.right or None,
            of_pair.precision, level, of_pair.is_fault,
        )  # fmt: skip


def _precision(work: Work) -> Iterator[Case]:
    yield from _recorded(work, "precision")
    from verdicts.precision.networks import NETWORKS

    dumps = work.dumps / "networks"
    for level in LEVELS:
        if not (dumps / f"{level}.done").exists():
            _program(work, "precision/run.py", dumps, level)
            (dumps / f"{level}.done").touch()
        for name, network in NETWORKS.items():
            for run in ("right", *network.faults):
                right = network.faults[run][0] if run in network.faults else None
                precision = network.dtype if network.dtype == network.golden_dtype else "mixed"
                folder = Path("precision") / "networks" / name
                yield Case(
                    "precision", f"{name}-{run}@{level}", str(folder / run / level), str(folder / "golden" / level),
                    right, precision, level, right is not None,
                )  # fmt: skip


def _planted(work: Work) -> Iterator[Case]:
    """Single faults planted into ten networks, each of them in either run, and runs that only round differently."""
    from planted_faults import run

    run.make(work.dumps)
    yield from run.cases(work.dumps)


def _fused(work: Work) -> Iterator[Case]:
    """Training style against inference style."""
    _program(work, "fused/run.py", work.dumps)
    from verdicts.fused.run import FAULTS, NETWORKS, TYPES, folder_of

    for precision in (*TYPES, "mixed"):
        target, golden = (TYPES[1], TYPES[0]) if precision == "mixed" else (precision, precision)
        for network in NETWORKS:
            for level in LEVELS:
                for fault, (right, _) in FAULTS.items():
                    yield Case(
                        "fused", f"{network}-{fault.replace(' ', '_')}-{precision}@{level}",
                        str(folder_of(Path("fused"), target, network, level, fault)),
                        str(folder_of(Path("fused"), golden, network, level, "golden")),
                        right, precision, level, right is not None,
                    )  # fmt: skip


def _packages(work: Work) -> Iterator[Case]:
    """Independent packages that implement one network."""
    from verdicts.packages import run

    run.make(work.dumps, ROOT / ".tox" / "verdicts_packages")
    return run.cases(work.dumps)


def _ports(work: Work) -> Iterator[Case]:
    """Ports from PyTorch to MindSpore and to mindtorch."""
    from verdicts.ports import run

    ports = [port for port in run.PORTS if port in work.pythons]
    for framework in ("torch", *ports):
        run.dump(framework, work.pythons[framework], work.dumps, LEVELS)
    for port in ports:
        yield from run.cases(work.dumps, port)


def _field(work: Work) -> Iterator[Case]:
    """Programs rebuilt from what people report."""
    from verdicts.field import cases

    return cases.cases(work.dumps, work.pythons["torch"])


SETS: dict[str, Callable[[Work], Iterator[Case]]] = {
    "pairs": lambda work: _recorded(work, "pairs"),
    "heldout": lambda work: _recorded(work, "heldout"),
    "releases": lambda work: _recorded(work, "releases"),
    "precision": _precision,
    "planted": _planted,
    "fused": _fused,
    "packages": _packages,
    "ports": _ports,
    "field": _field,
}


def make(name: str, dumps: Path, work: Work) -> None:
    """Make a set below `dumps`, if its cases are not there yet."""
    if (dumps / name / CASES).exists():
        return
    (dumps / name).mkdir(parents=True, exist_ok=True)
    making = dumps / name / f"{CASES}.making"
    making.write_text("".join(f"{json.dumps(asdict(case))}\n" for case in SETS[name](work)), encoding="utf-8")
    shutil.move(making, dumps / name / CASES)


def cases_of(dumps: Path, name: str) -> list[Case]:
    """The cases of a set that is made."""
    lines = (dumps / name / CASES).read_text(encoding="utf-8").splitlines()
    return [Case.of(json.loads(line)) for line in lines]
