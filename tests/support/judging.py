"""Pairs of dumps with the right answer of each, and what `compare` says of them in one word."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import Where
from probe.compare.runner import summaries
from probe.compare.summary_text import headline

SILENT, CANNOT_TELL = "silent", "cannot_tell"
RIGHT, NEAR, CANNOT, ELSEWHERE, UNSEEN, ACCUSED = "right", "near", "cannot tell", "elsewhere", "unseen", "accused"
"""The right answer; another place in the same module or one call off; an answer that it cannot be told; another place;
no divergence although there is a fault; a divergence of two right runs."""

Finding = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Two dumps and the right answer."""

    set: str
    case: str
    target: str
    """A path, taken from the folder that the cases are in."""
    golden: str
    right: str | None
    """Pattern that the text of the right first divergence fits, its step and rank included; ``None`` where nothing
    diverges, and ``cannot_tell`` where that is the right answer."""
    precision: str
    level: str
    planted: bool
    """True if there is a fault to name."""
    right_records: Mapping[str, Sequence[str]] | None = None
    """Records of target and golden run of which each is a right place; they replace the pattern."""
    cause: str = ""
    """Pattern that the words of the right cause fit, where it is known."""
    refused: str = ""
    """Pattern that the error fits, where two runs are rightly not compared."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Case:
        """The case that an object of a JSON file describes; other keys are notes."""
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


@dataclass(frozen=True)
class Judged:
    """A case and what was said of it."""

    case: Case
    word: str
    said: str
    """The first line for people."""
    cause: str = ""
    is_told: bool = False
    """True if the place is right and the cause is, too."""
    contradicts: bool = False
    """True if the line for people and the values for programs are of two minds."""


def judge(case: Case, root: Path) -> Judged:
    """Compare the dumps of a case, which are below `root`, in this process."""
    try:
        found = list(summaries(str(root / case.target), str(root / case.golden), where=Where(1)))
    except MsprobeException as error:
        word = RIGHT if case.refused and re.search(case.refused, str(error)) else CANNOT
        return Judged(case, word, f"refused: {error}")
    line = headline(found)[0][0]
    results = [each.as_json() for each in found]
    said, result = _first(results)
    first: Finding = result["divergence"]["first"] if result else {}
    word = _word(case, root, said, result)
    words = " | ".join(str(first.get(key) or "") for key in ("cause", "labelled_cause", "reason", "labelled_reason"))
    is_told = word == RIGHT and bool(case.cause and re.search(case.cause, words))
    contradicts = (said == SILENT) != line.startswith("no divergence")
    return Judged(case, word, line, first.get("cause") or "", is_told, contradicts)


def _first(results: list[Finding]) -> tuple[str, Finding | None]:
    """All texts of what is named first in any step, and its step; else why it cannot be told, or silence."""
    unsure = ""
    for result in results:
        divergence = result["divergence"]
        if divergence["first"]:
            texts = [value for value in divergence["first"].values() if isinstance(value, str) and value]
            return f"{result['step']} {result['label']} {' | '.join(texts)}", result
        if divergence["answer"] == CANNOT_TELL:
            unsure = unsure or f"{CANNOT_TELL}: {divergence['why']}"
    return unsure or SILENT, None


def _word(case: Case, root: Path, said: str, result: Finding | None) -> str:
    if said.startswith(CANNOT_TELL):
        return RIGHT if case.right == CANNOT_TELL else CANNOT
    if result is None:
        return UNSEEN if case.planted or case.right == CANNOT_TELL else RIGHT
    first = result["divergence"]["first"]
    named = [(side, first[key]) for side, key in (("target", "record"), ("golden", "golden_record")) if first[key]]
    if case.right_records is not None:
        records = case.right_records
        if any(record in records[side] for side, record in named):
            return RIGHT
        fits = [record for side in records for record in records[side]].__contains__
    elif case.right and re.search(case.right, said):
        return RIGHT
    else:
        fits = _fitting(f"{result['step']} {result['label']} ", case.right or "")
    if not case.planted:
        return ACCUSED
    near = (_around(_dump(root / getattr(case, side), result), record) for side, record in named)
    return NEAR if any(fits(name) for names in near for name in names) else ELSEWHERE


def _fitting(where: str, pattern: str) -> Callable[[str], bool]:
    return lambda name: re.search(pattern, where + name) is not None


def _dump(folder: Path, result: Finding) -> Path:
    """The dump of the step and rank of a result, or of the step where the other run has its processes."""
    dumps = sorted(path.parent for path in folder.rglob("dump.json"))
    of_step = [path for path in dumps if path.parent.name == result["step"]] or dumps
    return next((path for path in of_step if path.name == result["label"]), of_step[0])


def _around(dump: Path, record: str) -> Iterator[str]:
    """The calls before and after a record, the module around it, and what else that module holds inside of a layer."""
    names = list(json.loads((dump / "dump.json").read_text(encoding="utf-8"))["data"])
    if record in names:
        place = names.index(record)
        yield from names[max(0, place - 1) : place + 2]
    if not (dump / "construct.json").exists():
        return
    tree = json.loads((dump / "construct.json").read_text(encoding="utf-8"))
    parents = {name: above[0] if isinstance(above, list) else above for name, above in tree.items()}
    parent = parents.get(record)
    if parent:
        yield parent
        # A layer has a number in its path, apart from that of the call.
        if re.search(r"\.\d+\.", re.sub(r"\.(forward|backward)\.\d+$", "", parent)):
            yield from (name for name, above in parents.items() if above == parent)
