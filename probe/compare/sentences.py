"""Differences in two forms: a sentence, which programs read in JSON, and labels with numbers, which people read.

Both are made here at once, so that nobody takes a sentence apart to know what it says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Optional

_ITEM = re.compile(r"(input|output)\.(\w+)(.*)")
FROM_INPUTS, NOT_FROM_INPUTS, NOT_RECORDED = (
    ("that comes from its inputs", "it comes from the inputs"),
    ("that does not come from its inputs", "the inputs have none"),
    ("what was recorded before does not explain it", "no earlier recorded call made it"),
)
"""The origins of a NaN or an infinity, in both forms."""


@dataclass(frozen=True)
class Sentence:
    """A difference; false if there is none.

    Example:
        >>> other_value("eps", 0.01, 1e-05)
        Sentence(text='eps is 0.01 and in the golden run 1e-05', labelled='argument eps = 0.01 (golden: 1e-05)')
    """

    text: str
    """The sentence."""
    labelled: str = ""
    """The sentence in labels and numbers; empty if it has no other form."""
    values: Optional[tuple[str, str]] = field(default=None, repr=False)  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The values of an argument or a setting in target and golden run; ``None`` of a difference of another kind."""

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def shown(self) -> str:
        """The form for people."""
        return self.labelled or self.text

    def inside(self, record: str) -> Sentence:
        """The sentence with the name of the call `record` in it."""
        return Sentence(f"in {record}, {self.text}", f"{record}: {self.shown}")


NOTHING = Sentence("")
THERE = "there"
"""The value of a tensor, in words."""


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


def not_finite(name: str, what: str, origin: tuple[str, str], where: str = "") -> Sentence:
    """A tensor with ``a NaN in the target only``; `origin` is one of those above."""
    text, labelled = origin
    return Sentence(f"{name} has {what}{where}; {text}", f"{item_words(name)} has {what}{where}; {labelled}")


def beyond_inputs(name: str, size: str, of_inputs: str, allowed: str) -> Sentence:
    """An output that differs by more than its inputs and rounding explain; sizes are relative differences."""
    given = "identical inputs" if of_inputs == "0" else f"inputs have a relative error of {of_inputs}"
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


def beyond_recorded(name: str, size: str, allowed: str = "", called: str = "") -> Sentence:
    """An input or a parameter that no recorded call made so.

    Args:
        name: ``input.0``, or ``parameter`` and its name.
        size: the relative difference.
        allowed: the relative difference that is explained; empty of a parameter.
        called: the record that takes it where that is not the one to blame.
    """
    where, explained = f" where it calls {called}" if called else "", f"; what was recorded before explains {allowed}"
    labelled = f"{_error(name, size, already=True)}{f', where it calls {called}' if called else ''}"
    before = f"; the calls before it explain at most {allowed}"
    return Sentence(
        f"{name} differs by {size} of its size already{where}{explained if allowed else ''}",
        f"{labelled}{before if allowed else ''}",
    )


def _error(name: str, size: str, already: bool = False) -> str:
    of_norm = "1.0 (all of its norm)" if size == "all" else size
    return f"{item_words(name)} {'already ' if already else ''}has a relative error of {of_norm}"
