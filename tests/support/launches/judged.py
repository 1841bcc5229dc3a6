"""The answer of the command about a pair of launch settings, and whether it is right."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from launches import further, held_out, listed
from launches.pair import Pair

from probe.api import cli


def pairs(of: Any) -> Iterator[Pair]:
    """All pairs of `listed` or of `held_out`."""
    return chain(chain.from_iterable(family.pairs() for family in of.FAMILIES), of.PAIRS)


SETS = {"listed": tuple(pairs(listed)), "held out": tuple(pairs(held_out)), "further": tuple(pairs(further))}


def answer(pair: Pair, folder: Path) -> dict[str, Any]:
    """The content of ``config_check.json``; files are given in the order of their names."""
    packs = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for side, files in (("golden", pair.golden), ("target", pair.target)):
            (folder / side).mkdir(parents=True)
            for name, text in files.items():
                (folder / side / name).write_text(text)
            packs.append(str(folder / f"{side}.zip"))
            given = [str(folder / side / name) for name in sorted(files)]
            assert cli.main(["config_check", "-d", *given, "-o", packs[-1]]) == 0
        cli.main(["config_check", "-c", *packs, "-o", str(folder / "out")])
    found: dict[str, Any] = json.loads((folder / "out" / "config_check.json").read_text())
    return found


def is_right(pair: Pair, found: dict[str, Any]) -> bool:
    """True if the answer is an error that names what differs, or ``pass`` where nothing does that changes numbers."""
    if not pair.meaning:
        return bool(found["answer"] == "pass")
    texts = [f"{row['name']} {row['why']}".lower() for check in found["checks"].values() for row in check["rows"]
             if row["level"] == "error"]  # fmt: skip
    return found["answer"] == "error" and any(pair.meaning.lower() in text for text in texts)
