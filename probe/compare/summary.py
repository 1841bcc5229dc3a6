"""Summary of a comparison: the first divergence, counts, the first findings, unmatched records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Optional

import msgspec
from msgspec.structs import replace

from probe.common.align.calls import ERROR, PASS, WARNING, Row
from probe.common.dump import sketch_file
from probe.common.dump.layout import step_and_rank
from probe.common.dump.naming import is_forward, is_module
from probe.common.dump.reading.items import INPUT, Item, shape_text
from probe.common.environment import environment_file as environment_files
from probe.common.environment.differences import DATA, OPTIMIZER, SEED, OutsideDifference, differences
from probe.common.numerics.error_bounds import is_same, relative_difference
from probe.common.numerics.formats import unit_roundoff
from probe.compare.judgement import is_equal
from probe.compare.result import (
    CANNOT_TELL,
    DIVERGENCE,
    NONE,
    Answer,
    ComparisonResult,
    Difference,
    Findings,
    Mode,
    Origin,
)

_LOOKED_AT = 1000
"""Rows at the beginning among which the batch is looked for."""
BATCH_SHAPE = "data.first_batch.shape"
ROUNDED = 1e-5
"""Relative difference of statistics that sums of float32 in another order may have: 80 unit roundoffs, a guess."""
MOST_SHOWN = 5
"""Differences that the text of an answer has."""


def outside_of(result: ComparisonResult) -> list[OutsideDifference]:
    """Differences outside of the model, the most likely cause first; empty if one run has no environment file."""
    target, golden = map(environment_files.environment_of_file, (result.target, result.golden))
    if target is None or golden is None:
        return []
    found = differences(target, golden)
    data = [] if result.debug else _data(result.rows)
    if step_and_rank(result.target)[0] == 0:
        # No update has had an effect yet.
        late = [each for each in found if each.kind == OPTIMIZER]
        found = [each for each in found if each.kind != OPTIMIZER] + late
    return _inserted(found, data)


def _inserted(found: list[OutsideDifference], data: list[OutsideDifference]) -> list[OutsideDifference]:
    """Data behind the seeds, which may decide its order."""
    seeds = [each for each in found if each.kind == SEED]
    return [*seeds, *data, *(each for each in found if each.kind != SEED)]


def _data(rows: Sequence[Row]) -> list[OutsideDifference]:
    """The batch, if it differs: the inputs of the first call that takes no gradient."""
    # A gradient takes no gradient either, and is no batch.
    forward = (row for row in islice(rows, _LOOKED_AT) if is_forward(row.record))
    batches = [row for row in forward if _is_batch(row.target) and _is_batch(row.golden)]
    # Where data are known as such, another tensor whose maker is not known is likely made from them.
    batches = [row for row in batches if _is_data(row.target) and _is_data(row.golden)] or batches
    # A module gets the batch as it is; functions before it may prepare it.
    first = next((row for row in batches if is_module(row.record)), batches[0] if batches else None)
    if first is None:
        return []
    found = []
    for row in batches:
        target, golden = row.target, row.golden
        if row.record != first.record or target is None or golden is None:
            continue
        if target.shape != golden.shape:
            shapes = shape_text(target.shape or ()), shape_text(golden.shape or ())
            text = f"first batch has shape {shapes[0]} (golden: {shapes[1]})"
            found.append(OutsideDifference(DATA, BATCH_SHAPE, text, *shapes))
        elif not _is_rounded(target, golden) and not is_same(target, golden):
            found.append(_difference(_how(target, golden), target, golden))
    # The arguments of one call are one batch.
    return found[:1]


def _is_rounded(target: Item, golden: Item) -> bool:
    """True if the batches may be the same one, rounded to two dtypes, or their statistics by two frameworks."""
    have_checksums = target.md5 is not None or golden.md5 is not None
    if target.dtype == golden.dtype:
        return not have_checksums and 0 < relative_difference(target, golden) <= ROUNDED
    # One rounding moves no element by more than the unit roundoff. Checksums of two dtypes always differ.
    shorter = max(unit_roundoff(each.dtype) for each in (target, golden))
    return shorter > 0 and (have_checksums or relative_difference(target, golden) <= max(ROUNDED, shorter))


def _how(target: Item, golden: Item) -> str:
    mine, theirs = ((item.max, item.min, item.mean, item.norm) for item in (target, golden))
    if mine == theirs and target.max is not None:
        may_be = "it may have the same elements in another order"
        # One element that is rounded otherwise changes no statistic.
        rounded = ", or differ by rounding" if unit_roundoff(target.dtype) else ""
        return f"first batch differs: its statistics agree, so {may_be}{rounded}"
    if target.dtype == golden.dtype and target.max is not None and relative_difference(target, golden) <= ROUNDED:
        return "first batch differs by rounding, or has the same elements in another order: its statistics agree"
    return "first batch differs: other data, or another order of the data"


def _difference(text: str, target: Item, golden: Item) -> OutsideDifference:
    return OutsideDifference(DATA, "data.first_batch", text, target.md5 or target.norm, golden.md5 or golden.norm)


def _is_batch(item: Item | None) -> bool:
    """True of an input that takes no gradient, and of which nothing recorded says that it is no data."""
    if item is None or item.state != INPUT or not item.is_tensor or item.requires_grad:
        return False
    return item.made_by is None or _is_data(item)


def _is_data(item: Item | None) -> bool:
    return item is not None and (item.made_by or "").startswith(sketch_file.DATA)


def lines(found: Sequence[OutsideDifference]) -> list[str]:
    """One line, or none if nothing differs."""
    if not found:
        return []
    texts = [each.text for each in found[:MOST_SHOWN]]
    more = f"; {len(found) - MOST_SHOWN} more (--json lists them)" if len(found) > MOST_SHOWN else ""
    return [f"  outside of the model: {'; '.join(texts)}{more}"]


# --- summary


SUSPECTS = 5
"""The number of records with a finding that a summary lists, and of calls that its text names after the first that
diverges."""
EXAMPLES = 3
"""The number of records without match, and of renamed layers, that a summary lists."""


RECORD_SKETCHES = "record both runs with sketches"
"""The end of the reason where statistics cannot decide."""
TOO_LITTLE = "not enough in common"
"""The beginning of the reason where too little was compared to say that nothing diverges."""

_NO_DIVERGENCE: dict[str, Any] = {
    "first": None,
    "stack": [],
    "golden_stack": [],
    "suspects": [],
    "merged": None,
}
"""The keys of a divergence where there is none."""


def in_words(step: str, label: str) -> str:
    """A step and a rank: ``step 1, rank 0`` of ``step1`` and ``rank0``."""
    found = (re.sub(r"^(step|rank|copy)(\d+)$", r"\1 \2", each) for each in (step, label) if each)
    return ", ".join(re.sub(r"^proc(\d+)$", r"process \1", each) for each in found)


def undecided_in_words(difference: Difference) -> str:
    """A difference whose effect is not known, with the smallest effect that would be visible."""
    record = difference.record or difference.golden_record
    if difference.is_value:
        # The reason says what was looked for.
        return f"{record}: {difference.shown_reason}"
    if difference.shows_from is not None:
        seen = f"only an effect of {difference.shows_from:.1e} or more on what is computed from it would be visible"
    elif difference.record and difference.golden_record:
        seen = "its effect was looked for in the results of this call, of the module around it and of the calls "
        seen += "that use them; none of these could be compared"
    else:
        seen = "its effect was looked for in the values of the other run and in what is computed from this call; "
        seen += "none of these shows or excludes one"
    return f"{record}: {difference.shown_reason}; {seen}"


class Suspect(msgspec.Struct, frozen=True):
    """A record with a finding on it, beyond having no match."""

    record: str
    golden_record: str
    verdict: str
    """The result of its row."""
    message: str
    stack: list[str]


class Unmatched(msgspec.Struct, frozen=True):
    """Records that one side has alone."""

    records: int = 0
    """Records of which no item has a match."""
    first: list[str] = msgspec.field(default_factory=list)
    """The first of them."""


class Unjudged(msgspec.Struct, frozen=True):
    """Tensors whose values could not be compared."""

    items: int = 0
    first: list[str] = msgspec.field(default_factory=list)
    """The names of the first of them."""


class Summary(Findings):
    """One pair of dumps, without its rows."""

    rows: int = 0
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of rows that have each result, from the best to the worst."""
    differs: bool = False
    """True if anything is not the same, however little."""
    suspects: list[Suspect] = msgspec.field(default_factory=list)
    suspect_records: int = 0
    """The number of records that have a finding; `suspects` are the first of them."""
    target_only: int = 0
    """Items of the target without a match."""
    golden_only: int = 0
    target_unmatched: Unmatched = msgspec.field(default_factory=Unmatched)
    golden_unmatched: Unmatched = msgspec.field(default_factory=Unmatched)
    unjudged: Unjudged = msgspec.field(default_factory=Unjudged)
    """The values that were to be compared and could not be."""
    follows: Optional[Origin] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The step and rank whose divergence has reached this one, which is not judged anew then."""
    outside: list[OutsideDifference] = msgspec.field(default_factory=list)
    """Differences outside of the model: environment and data, the most likely cause first."""

    @property
    def has_matches(self) -> bool:
        """True if anything of one side was matched with anything of the other."""
        return self.rows > self.target_only + self.golden_only

    @property
    def is_too_little_in_common(self) -> bool:
        """True if nothing diverges because too little was compared."""
        is_enough = self.coverage.is_enough or bool(self.gradients_agree)
        return self.divergence is None and self.has_matches and not is_enough

    @property
    def uncompared(self) -> str:
        """The reason why the runs may differ in a part that was not, or could not be, compared; empty if all was."""
        if not self.has_matches and not self.gradients_agree:
            return "no record of one dump matches a record of the other"
        if self.is_too_little_in_common:
            compared, records = self.coverage.compared_records, self.coverage.records
            return f"{TOO_LITTLE}: only {compared} of {records} records match ({100 * compared // records} %)"
        if self.left_out:
            return f"{TOO_LITTLE}: the processes of a pool took other tasks in each run, starting at {self.left_out}"
        if self.missing:
            return "; ".join(self.missing)
        if self.unjudged.items:
            number = self.unjudged.items
            return f"the values of {number} tensor{'' if number == 1 else 's'} could not be judged"
        return ""

    @property
    def answer(self) -> Answer:
        """The answer: ``divergence``, ``none`` or ``cannot_tell``."""
        if self.divergence is not None:
            return DIVERGENCE
        return CANNOT_TELL if self.untold else NONE

    @property
    def why(self) -> str:
        """The reason of the answer: the cause or the value that diverges, what explains all, or why nobody can tell."""
        if self.divergence is not None:
            return self.divergence.first.cause or self.divergence.first.reason
        return self.untold or self.explanation

    @property
    def explanation(self) -> str:
        """The differences of a run that does not diverge, in words."""
        if self.gradients_agree:
            return self.gradients_agree
        return "all differences are within rounding error" if self.differs else "nothing differs"

    @property
    def untold(self) -> str:
        """The reason why nobody can tell that these do not diverge; empty if they do, or if it is known."""
        if self.divergence is not None:
            return ""
        if self.follows is not None:
            where = in_words(self.step, self.label) or "it"
            return f"{where} is not judged: {in_words(self.follows.step, self.follows.label)} diverges before it"
        if self.uncompared:
            return self.uncompared
        if self.debug and self.differs:
            return "saved values differ, and a dump does not record which value is computed from which; see the table"
        found = undecided_in_words(self.undecided[0]) if self.undecided else ""
        if not found and self.differs and self.without_sketches not in ("", "one program"):
            found = f"statistics do not tell which values of {self.without_sketches} belong together"
        return f"{found}; {RECORD_SKETCHES}" if found and self.without_sketches else found

    @property
    def worst(self) -> str:
        """The worst result of any row."""
        return next((result for result in (ERROR, WARNING) if self.counts.get(result)), PASS)

    def as_json(self) -> dict[str, Any]:
        """The summary as values that JSON has, under the keys that scripts read."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        del found["carried"], found["outside"], found["without_sketches"], found["gradients_agree"]
        found["environment"] = [
            {"kind": each.kind, "name": each.name, "target": each.target, "golden": each.golden, "text": each.text}
            for each in self.outside
        ]
        follows = found.pop("follows")
        found["divergence"] = {**(found["divergence"] or _NO_DIVERGENCE), "answer": self.answer, "why": self.why}
        found["divergence"]["follows"] = follows
        found["mode"], found["missing"] = self.mode.value, list(self.missing)
        found["endings"], found["saved_values"] = found.pop("truncations"), found.pop("debug")
        return found


def summarise(result: ComparisonResult) -> Summary:
    """The summary of `result`, with those suspects that have the worst result.

    Args:
        result: the comparison, in whose rows records are whole.
    """
    rows, stacks = result.rows, result.stacks or {}
    target_only = sum([row.golden is None for row in rows])
    golden_only = sum([row.target is None for row in rows])
    alone = (
        _alone(row for row in rows if row.target is not None) if target_only else [],
        _alone(rows, of_golden=True) if golden_only else [],
    )
    unjudged = [row.target.name for row in rows if not row.judged and row.target is not None]
    counts = Counter([row.result for row in rows])
    suspects = _suspects(rows)
    return Summary(
        **{name: getattr(result, name) for name in Findings.__struct_fields__},
        rows=len(rows),
        counts={each: counts[each] for each in (PASS, WARNING, ERROR)},
        differs=any(_differs(row, result.mode) for row in rows),
        suspects=[replace(each, stack=stacks.get(each.record, [])) for each in suspects[:SUSPECTS]],
        suspect_records=len(suspects),
        target_only=target_only,
        golden_only=golden_only,
        target_unmatched=Unmatched(len(alone[0]), alone[0][:EXAMPLES]),
        golden_unmatched=Unmatched(len(alone[1]), alone[1][:EXAMPLES]),
        unjudged=Unjudged(len(unjudged), unjudged[:EXAMPLES]),
        outside=outside_of(result),
    )


def _suspects(rows: Sequence[Row]) -> list[Suspect]:
    """The records whose rows have the worst result of all, each with its first such row."""
    found: dict[str, dict[str, Suspect]] = {ERROR: {}, WARNING: {}}
    for row in rows:
        of_result = found.get(row.result)
        # To have no match is counted by itself.
        if of_result is None or row.target is None or (row.golden is None and row.result != ERROR):
            continue
        if row.record not in of_result:
            message = next(text for text in row.messages if text.startswith(row.result))
            of_result[row.record] = Suspect(row.record, row.golden_record or "", row.result, message, [])
    return list(next((those for those in found.values() if those), {}).values())


def _alone(rows: Iterable[Row], of_golden: bool = False) -> list[str]:
    matched: dict[str, bool] = {}
    for row in rows:
        record = row.record if not of_golden or row.target is None else row.golden_record
        if record is not None:
            matched[record] = matched.get(record, False) or (row.target is not None and row.golden is not None)
    return [record for record, has_match in matched.items() if not has_match]


def first_of(summaries: Iterable[Summary]) -> Summary | None:
    """The pair that diverges first; ``None`` if none does.

    Of the earliest step that diverges, the rank with the fewest calls before it. One that got the difference from
    another rank is named only where there is no other.
    """
    found = [(summary, summary.divergence.first) for summary in summaries if summary.divergence is not None]
    if not found:
        return None
    same_step = [(summary, call) for summary, call in found if summary.step == found[0][0].step]
    return min(same_step, key=lambda pair: (pair[1].communicates, pair[1].place))[0]


def _differs(row: Row, mode: Mode) -> bool:
    target, golden = row.target, row.golden
    if target is None or golden is None or target.dtype != golden.dtype or target.shape != golden.shape:
        return True
    if (target is not golden or row.relative_difference) and not is_equal(row):
        return True
    return mode is Mode.TENSOR and type(row.metrics[1]) is float and row.metrics[1] != 0


def fails(summaries: Iterable[Summary], level: str) -> bool:
    """True if the runs differ by as much as `level`: ``divergence``, ``error``, ``warning``, or ``never``.

    Of runs that have nothing in common, and of what could not be judged, that cannot be told; see `Summary.uncompared`
    and `is_unjudged`.
    """
    if level == "divergence":
        return any(summary.divergence is not None for summary in summaries)
    failing = {"never": (), "error": (ERROR,), "warning": (ERROR, WARNING)}[level]
    return any(summary.worst in failing for summary in summaries)


def is_unjudged(summaries: Sequence[Summary]) -> bool:
    """True if the runs may diverge though nothing is seen to: it cannot be told of one of them at least."""
    return any(summary.answer == CANNOT_TELL for summary in summaries)
