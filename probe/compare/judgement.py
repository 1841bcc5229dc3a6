"""The column ``Result``: the judgement of a comparison on each row, and the questions of a comparison to other rules.

An object of such rules is sent to other processes by the name of its class, which they import.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Optional

import msgspec
from typing_extensions import Protocol

from probe.common.align.calls import ERROR, PASS, WARNING, Calls, Row
from probe.common.align.mapping import MatchOptions
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import are_comparable, is_same
from probe.compare.result import ComparisonResult, Mode

FIRST_DIVERGENCE = "The first divergence is here"
"""The beginning of the message of the row that shows the first divergence."""

SAME, EXPLAINED, UNTOLD, ONE_SIDE, SUSPECT, DIVERGED = (
    "same", "explained", "structure", "one side only", "suspect", "diverged",
)  # fmt: skip
"""Our judgement of a row, from the best to the worst.

`UNTOLD` has another argument, dtype or shape, or a difference of which nobody can tell. `DIVERGED` shows the first
divergence, and `SUSPECT` a later one.
"""
RESULTS: Mapping[str, str] = MappingProxyType(
    {SAME: PASS, EXPLAINED: PASS, UNTOLD: WARNING, ONE_SIDE: WARNING, SUSPECT: ERROR, DIVERGED: ERROR}
)
"""The result of a row, in msProbe's words, for each judgement."""


class Otherwise(Protocol):
    """Matching and measuring as another tool does, where that is not ours."""

    def check(self, target: Dump, golden: Dump) -> None:
        """Refuse dumps that the tool does not compare.

        Raises:
            MsprobeException: these are such dumps.
        """

    def renumbers_target(self, options: MatchOptions) -> bool:
        """True if backward records of the target are numbered anew."""

    def match(
        self, dumps: tuple[Dump, Dump], calls: Calls, options: MatchOptions
    ) -> tuple[list[Row], dict[str, str] | None]:
        """The rows of the target, and the data mapping that a layer mapping became."""

    def statistics(self, target: Item, golden: Item) -> tuple[Any, ...]:
        """The metrics of statistics, as `probe.common.numerics.statistics.compare_items` has them."""

    def values(self, target: Any, golden: Any) -> Any:
        """The metrics of two arrays, as `probe.common.numerics.values.compare_values` has them."""


class RowRules(Protocol):
    """Rules that give rows their results and messages, where these are not those of our judgement."""

    @property
    def otherwise(self) -> Otherwise:
        """Matching and measuring."""

    def classify_rows(self, rows: list[Row], mode: Mode) -> None:
        """Give the rows of one record of the target their results and messages."""


class Judgement:
    """Our judgement of the rows of a comparison, which follows its answer: a row is an error if the runs diverge there.

    Args:
        result: The comparison, of which the answer is known.
    """

    def __init__(self, result: ComparisonResult) -> None:
        self._result = result
        divergence = result.divergence
        found = [] if divergence is None else [divergence.first, *divergence.suspects]
        marks = [(id(row), (SUSPECT, each.reason)) for row, each in zip(result.diverging, found)]
        # The first of several findings on one row says what its call is named for.
        self._marked = dict(reversed(marks))
        if divergence is not None:
            self._marked[marks[0][0]] = DIVERGED, f"{FIRST_DIVERGENCE}: {divergence.first.reason}"
        known = (*result.without_effect, *result.with_effect)
        self._reasons = {each.item: each.reason for each in known if each.item}
        self._undecided = {each.item: each.reason for each in result.undecided if each.item}
        self._are_unpaired = result.divergence is None and result.without_sketches not in ("", "one program")
        self._open = _open(result)

    def of(self, row: Row) -> tuple[str, str]:
        """The judgement of a row, and its reason; empty where there is nothing to say."""
        marked = self._marked.get(id(row))
        if marked is not None:
            return marked
        target, golden = row.target, row.golden
        if target is None or golden is None:
            item = target or golden
            return ONE_SIDE, "" if item is None else self._undecided.get(item.name) or self._reasons.get(item.name, "")
        if not row.judged:
            return UNTOLD, "its values could not be compared"
        if target is golden:
            return SAME, ""
        reason = self._undecided.get(target.name, "") or self._kind(target, golden)
        if not reason and is_equal(row):
            return SAME, ""
        reason = reason or self._untold(row)
        return (UNTOLD, reason) if reason else (EXPLAINED, "")

    def _kind(self, target: Item, golden: Item) -> str:
        """The difference of two items in an argument, the dtype or the shape, if it is none that is by design."""
        if target.dtype == golden.dtype and target.shape == golden.shape and target.value == golden.value:
            return ""
        if self._result.debug:
            names = [name for name in ("dtype", "shape", "value") if getattr(target, name) != getattr(golden, name)]
            return f"another {names[0]} than in the golden run"
        return self._reasons.get(target.name, "")

    def _untold(self, row: Row) -> str:
        """The reason why nobody can tell that inputs and rounding explain the difference of a row."""
        apart, explained = row.relative_difference, row.explained
        if apart == math.inf:
            return "it is finite in one run only"
        if explained is None or self._are_unpaired:
            return self._open
        if self._result.divergence is None and apart is not None and apart > explained:
            return f"a relative error of {apart:.1e}, expected at most {explained:.1e}; it has no effect that is seen"
        return ""


def _open(result: ComparisonResult) -> str:
    """The reason why a difference that was not judged may be one that nothing explains; empty if it is not."""
    if result.divergence is not None:
        return ""
    if result.debug:
        return "a dump does not record which saved value is computed from which"
    if result.without_sketches not in ("", "one program"):
        return f"statistics do not tell which values of {result.without_sketches} belong together"
    if result.undecided or result.gradients_agree or not result.coverage.is_enough:
        return "nothing tells whether it is explained"
    return ""


def judge_rows(result: ComparisonResult) -> None:
    """Give every row its result by our judgement, with the reason."""
    judgement = Judgement(result)
    for row in result.rows:
        level, reason = judgement.of(row)
        row.result = RESULTS[level]
        if reason or row.notes:
            said = (f"{row.result}: {reason}.",) if reason else ()
            row.messages = (*said, *(text for note in row.notes if (text := _lowered(note, row.result)) not in said))


_LEVELS = ("note", WARNING, ERROR)


def _lowered(note: str, result: str) -> str:
    """A note of measuring, whose level is at most that of the result: a message does not contradict its row."""
    level, _, text = note.partition(": ")
    most = "note" if result == PASS else result
    return note if _LEVELS.index(level) <= _LEVELS.index(most) else f"{most}: {text}"


def is_equal(row: Row) -> bool:
    """True if nothing tells the two items of a row apart: neither what dumps say of both, nor their elements."""
    target, golden, apart = row.target, row.golden, row.relative_difference
    if target is None or golden is None or apart:
        return False
    return is_same(target, golden) or (apart is not None and not are_comparable(target, golden))


# --- sentences


_ITEM = re.compile(r"(input|output)\.(\w+)(.*)")
FROM_INPUTS, NOT_FROM_INPUTS, NOT_RECORDED = (
    ("that comes from its inputs", "it comes from the inputs"),
    ("that does not come from its inputs", "the inputs have none"),
    ("what was recorded before does not explain it", "no earlier recorded call made it"),
)
"""The origins of a NaN or an infinity, in both forms."""


class Sentence(msgspec.Struct, frozen=True):
    """A difference; false if there is none.

    Example:
        >>> other_value("eps", 0.01, 1e-05).shown
        'argument eps = 0.01 (golden: 1e-05)'
    """

    text: str
    """The sentence."""
    labelled: str = ""
    """The sentence in labels and numbers; empty if it has no other form."""
    values: Optional[tuple[str, str]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The values of an argument or a setting in target and golden run; ``None`` of a difference of another kind."""
    calls: tuple[str, str] = ("", "")
    """The records of the call that it names, of target and golden run; empty where it names no other call."""

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def shown(self) -> str:
        """The form for people."""
        return self.labelled or self.text

    def followed_by(self, text: str) -> Sentence:
        """The sentence with another one behind it, if there is one."""
        if not text:
            return self
        labelled = f"{self.labelled}; {text}" if self.labelled else ""
        return Sentence(f"{self.text}; {text}", labelled, self.values, self.calls)

    def inside(self, record: str, calls: tuple[str, str] = ("", "")) -> Sentence:
        """The sentence with the name of the call `record` in it; `calls` are its records on both sides."""
        return Sentence(f"in {record}, {self.text}", f"{record}: {self.shown}", calls=calls)


NOTHING = Sentence("")
OTHER_RANDOM_NUMBERS = "other random numbers"
"""The content of a value behind which nothing can be judged until both runs are seeded."""
THERE = "there"
"""The value of a tensor, in words."""


@lru_cache(maxsize=1024)
def item_words(name: str) -> str:
    """An item without the dot: ``output 0``; of a keyword ``argument eps``."""
    found = _ITEM.fullmatch(name)
    if found is None:
        return name
    kind, index, rest = found.groups()
    return f"{kind if index.isdigit() or kind == 'output' else 'argument'} {index}{rest}"


def _argument(name: str) -> str:
    """A plain value by its name, or by its position if the name is not known."""
    found = _ITEM.fullmatch(name)
    if found is None:
        return f"argument {name}"
    return item_words(name) if found[1] == "output" else f"argument {found[2]}{found[3]}"


def other_value(name: str, value: object, golden: object) -> Sentence:
    """A plain argument with another value; `name` is ``input.1`` where nobody knows the argument's own."""
    labelled = f"{_argument(name)} = {value} (golden: {golden})"
    return Sentence(f"{name} is {value} and in the golden run {golden}", labelled, (str(value), str(golden)))


def other_setting(name: str, value: object, golden: object, parameter: str) -> Sentence:
    """A setting of an optimizer with another value, seen at the update of a parameter."""
    of = f", for parameter {parameter}" if parameter else ""
    return Sentence(f"{name} is {value} and in the golden run {golden}{of}", f"{name} = {value} (golden: {golden}){of}")


def other_dtype(name: str, dtype: str, golden: str) -> Sentence:
    """A tensor of another dtype."""
    labelled = f"{item_words(name)} has dtype {dtype} (golden: {golden})"
    return Sentence(f"{name} is {dtype} and in the golden run {golden}", labelled)


def other_shape(name: str, shape: str, golden: str) -> Sentence:
    """A tensor of another shape."""
    labelled = f"{item_words(name)} has shape {shape} (golden: {golden})"
    return Sentence(f"{name} has shape {shape} and in the golden run {golden}", labelled)


def on_one_side(name: str, value: str, side: str) -> Sentence:
    """An item that one side alone has: a plain argument with its value, or a tensor that is ``there``."""
    if value == THERE:
        return Sentence(f"{name} is {value} in the {side} only", f"{item_words(name)} is in the {side} only")
    return Sentence(f"{name} is {value} in the {side} only", f"{_argument(name)} = {value} in the {side} only")


def not_finite(name: str, what: str, origin: tuple[str, str], taker: str = "") -> Sentence:
    """A tensor with ``a NaN in the target only``; `origin` is one of those above, `taker` a record of another call."""
    text, labelled = origin
    of = f" of {taker}" if taker else ""
    return Sentence(f"{name}{of} has {what}; {text}", f"{item_words(name)}{of} has {what}; {labelled}")


def beyond_inputs(name: str, size: str, of_inputs: str, allowed: str, other: str = "") -> Sentence:
    """An output that differs by more than its inputs and rounding explain; sizes are relative differences.

    `other` is what inputs of the same values may have otherwise: ``shape``, ``dtype``; empty if nothing.
    """
    alike = f"inputs of another {other}" if other else "identical inputs"
    given = alike if of_inputs == "0" else f"inputs have a relative error of {of_inputs}"
    explanation = f"its inputs, which differ by {of_inputs}, and rounding explain {allowed}"
    labelled = f"{_error(name, size)}; expected at most {allowed} ({given})"
    return Sentence(f"{name} differs by {size} of its size; {explanation}", labelled)


def beyond_peers(name: str, size: str, allowed: str, peers: int) -> Sentence:
    """An output whose relative error is larger than that of so many calls like it; of none, than rounding makes."""
    text = (
        f"{name} has a relative error of {size}; {f'{peers} calls like it' if peers else 'rounding'}, and its inputs,"
    )
    like = f"{peers} similar calls" if peers else "rounding"
    labelled = f"{_error(name, size)}; expected at most {allowed} (from {like} and the inputs)"
    return Sentence(f"{text} explain {allowed}", labelled)


def beyond_recorded(name: str, size: str, allowed: str = "", taker: str = "") -> Sentence:
    """An input or a parameter that no recorded call made so.

    Args:
        name: ``input.0``, or ``parameter`` and its name.
        size: the relative difference.
        allowed: the relative difference that is explained; empty of a parameter.
        taker: the record that takes it where that is not the one to blame.
    """
    of, explained = f" of {taker}" if taker else "", f"; what was recorded before explains {allowed}"
    before = f"; the calls before it explain at most {allowed}"
    return Sentence(
        f"{name}{of} differs by {size} of its size already{explained if allowed else ''}",
        f"{_error(f'{item_words(name)}{of}', size, already=True)}{before if allowed else ''}",
    )


def _error(name: str, size: str, already: bool = False) -> str:
    of_norm = "1.0 (all of its norm)" if size == "all" else size
    return f"{item_words(name)} {'already ' if already else ''}has a relative error of {of_norm}"
