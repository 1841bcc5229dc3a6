"""The sections of `benchmarks/verdicts.py`, and what they have in common.

A section is a module or a package here with a function ``rows(work: Work) -> Iterable[Row]``. ``ports`` and ``fused``
are looked for by these names, and the report says so where one is not there.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    truth: str
    """What is true of the two runs: ``silent`` where nothing diverges, else the pattern that is looked for, or words."""
    said: str
    """What the comparison says first."""
    right: bool
    setting: str = ""
    """Level and task, as ``mix:statistics``, where a section has several."""
    kind: str = ""
    is_unjudged: bool = False
    """Whether it says that too little was compared: right where nothing diverges, and an answer of its own."""
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


def plugged(name: str, work: Work) -> list[Row] | None:
    """The rows of a section; ``None`` where there is no such section."""
    try:
        section = importlib.import_module(f"verdicts.{name}")
        find = section.rows
    except ModuleNotFoundError as error:
        if error.name != f"verdicts.{name}":
            raise
        return None
    except AttributeError:
        return None
    found: Iterable[Row] = find(work)
    return list(found)
