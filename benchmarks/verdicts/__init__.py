"""Pairs of runs with the right answer of each, in sets; `benchmarks/verdicts.py` makes, compares and counts them.

Each set is a folder of dumps with a file ``cases.jsonl``, a line for each pair, which is written last.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
for _folder in (ROOT, ROOT / "benchmarks", ROOT / "tests" / "support"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))

CASES = "cases.jsonl"
ENVIRONMENTS = ("torch", "transformers4", "mindspore", "msadapter")
"""The environments of tox.ini whose interpreters make dumps."""


@dataclass(frozen=True)
class Work:
    """What the makers of a set are given."""

    dumps: Path
    """The folder of the set."""
    pythons: Mapping[str, str]
    """The interpreters of the environments that are there."""
