"""The sections of `benchmarks/verdicts.py`, and what they have in common.

``ports``, ``fused`` and ``packages`` are programs of their own, ``run.py`` in the folder of that name, with functions
that make their dumps and judge them; the report says so where one is not there.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.compare.output.summary_text import UNTOLD


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    truth: str
    """What is true of the two runs: ``silent`` where nothing diverges, else a pattern that is looked for, or words."""
    said: str
    """What the comparison says first."""
    right: bool
    setting: str = ""
    """Level and task, as ``mix:statistics``, where a section has several."""
    kind: str = ""
    is_unjudged: bool = False
    """True if it says that it cannot be told, which is an answer of its own."""
    next_right: bool = False
    """Whether one of the next calls that it names is what is true, of a wrong one."""


@dataclass(frozen=True)
class Work:
    """What a section is asked for."""

    dumps: Path
    """Where its dumps are."""
    makes: bool
    """Whether dumps that are missing are to be made; what is there is taken as it is."""
    pythons: Mapping[str, str]
    """Environments of tox.ini with their interpreters, as far as there are any."""


def plugged(name: str, work: Work, pairs: Sequence[str] = ()) -> list[Row] | None:
    """The rows of a section that is a program of its own; ``None`` where there is no such program.

    It makes what it has not made, and marks what is complete. `pairs` are those that are taken, all by default; only
    ``packages`` is asked for some.
    """
    script = _script(name)
    if not script.exists():
        return None
    if not work.makes and not work.dumps.is_dir():
        return [Row(name, "dumps", "no dumps", False)]
    module = loaded(name, script)
    found = _packages(module, script, work, pairs) if name == "packages" else _PLUGS[name](module, script, work)
    return [row if isinstance(row, Row) else _row(*row[:4]) for row in found]


def names_of_packages() -> list[str]:
    """The names of the pairs of packages."""
    script = _script("packages")
    return [pair for pairs in loaded("packages", script).PAIRS.values() for pair in pairs] if script.exists() else []


def _script(name: str) -> Path:
    return Path(__file__).parent / name / "run.py"


def loaded(name: str, script: Path) -> Any:
    """The program of a section as a module of its own name; all of them are called run.py."""
    if str(script.parent) not in sys.path:
        sys.path.append(str(script.parent))  # The modules beside it have names of their own.
    specification = importlib.util.spec_from_file_location(f"verdicts_{name}", script)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses look their module up.
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def _row(name: str, truth: str, said: str, right: bool) -> Row:
    return Row(name, "silent" if truth == "right" else truth, said, right, is_unjudged=UNTOLD in said)


def _ports(module: Any, script: Path, work: Work) -> Iterable[Any]:
    frameworks = {name: work.pythons[name] for name in ("torch", *module.PORTS) if name in work.pythons}
    if work.makes:
        found: Iterable[Any] = module.rows(frameworks, work.dumps)
        return found
    there: Iterable[Any] = module.judged(work.dumps, [name for name in module.PORTS if (work.dumps / name).exists()])
    return there


def _fused(module: Any, script: Path, work: Work) -> Iterable[Any]:
    if work.makes:
        # In a process of its own, which the debugger may change as it likes.
        subprocess.run([work.pythons["torch"], script, work.dumps], check=True, stdout=sys.stderr)
    for dtype in module.TYPES:
        for row in module.judge(work.dumps / dtype):
            network, level, fault = row.name.split(" ", 2)
            name, setting = f"{network} {fault}", f"{dtype} {level}"
            yield Row(name, row.truth, row.said, row.right, setting, is_unjudged=UNTOLD in row.said)


def _packages(module: Any, script: Path, work: Work, pairs: Sequence[str]) -> Iterable[Any]:
    # Its environments have packages that nothing else needs, so it makes them itself.
    environments = script.parents[3] / ".tox" / "verdicts_packages"
    for row in module.rows(work.dumps, environments, pairs) if work.makes else module.judge(work.dumps, pairs):
        pair, type_, setting, fault = row.name.split(" ", 3)
        yield Row(f"{pair} {fault}", row.truth, row.said, row.right, f"{type_} {setting}", is_unjudged=row.unsure)


_PLUGS: dict[str, Callable[[Any, Path, Work], Iterable[Any]]] = {
    "ports": _ports,
    "fused": _fused,
}
