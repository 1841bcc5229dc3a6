"""Sentences of a comparison as labelled values: ``argument eps = 0.01 (golden: 1e-05)``.

The search writes a sentence for each difference, which programs read in JSON. A terminal shows the same as labels and
numbers, so that each number has its name. A sentence of another form stays as it is.
"""

from __future__ import annotations

import re
from typing import Callable

from probe.common.numerics.formats import FORMATS

_IN_CALL = re.compile(r"in (?P<record>[\w.~]+), (?P<rest>.+)", re.DOTALL)
_SETTING = re.compile(
    r"(?P<name>\w[\w ]*) is (?P<value>\S+) and in the golden run (?P<golden>[^\s,;]+)(?P<more>, for parameter \S+)?"
)
"""A setting of an optimizer; several are one sentence, of which the first has the parameter."""
_ITEM = re.compile(r"(input|output)\.(\w+)(.*)")
_NAME, _SIZE = r"(?P<name>(?:parameter )?[^\s;,]+)", r"(?P<error>[\d.e+-]+|all)"


_ORIGINS = {
    "that comes from its inputs": "it comes from the inputs",
    "that does not come from its inputs": "the inputs have none",
    "what was recorded before does not explain it": "no earlier recorded call made it",
}


def spoken(sentence: str) -> str:
    """A sentence of the search in labels and values.

    Example:
        >>> spoken("eps is 0.01 and in the golden run 1e-05")
        'argument eps = 0.01 (golden: 1e-05)'
        >>> spoken("output.0 differs by 1.4e-02 of its size; its inputs, which differ by 0, and rounding explain 2e-06")
        'output 0 has a relative error of 1.4e-02; expected at most 2e-06 (identical inputs)'
    """
    parts = sentence.split("; ")
    settings = [each for each in map(_SETTING.fullmatch, parts) if each is not None]
    if len(settings) == len(parts) and (len(settings) > 1 or settings[0]["more"]):
        return "; ".join(map(_of_setting, settings))
    within = _IN_CALL.fullmatch(sentence)
    if within is not None:
        return f"{within['record']}: {spoken(within['rest'])}"
    for form, words in _FORMS:
        found = form.fullmatch(sentence)
        if found is not None:
            return words(found)
    return sentence


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


def _of_two_values(found: re.Match[str]) -> str:
    name, value, golden, more = found.group("name", "value", "golden", "more")
    if value in FORMATS or golden in FORMATS:
        return f"{item_words(name)} has dtype {value} (golden: {golden}){more}"
    # A setting of an optimizer says for which parameter it is.
    return f"{name if more else _argument(name)} = {value} (golden: {golden}){more}"


def _of_setting(found: re.Match[str]) -> str:
    return f"{found['name']} = {found['value']} (golden: {found['golden']}){found['more'] or ''}"


def _of_output(found: re.Match[str]) -> str:
    inputs = "identical inputs" if found["inputs"] == "0" else f"inputs have a relative error of {found['inputs']}"
    return f"{_error(found)}; expected at most {found['allowed']} ({inputs})"


def _of_peers(found: re.Match[str]) -> str:
    like = "rounding" if found["peers"] is None else f"{found['peers']} similar calls"
    return f"{_error(found)}; expected at most {found['allowed']} (from {like} and the inputs)"


def _of_input(found: re.Match[str]) -> str:
    called = f", where it calls {found['called']}" if found["called"] else ""
    before = f"; the calls before it explain at most {found['allowed']}" if found["allowed"] else ""
    return f"{_error(found, already=bool(found['already']))}{called}{before}"


def _error(found: re.Match[str], already: bool = False) -> str:
    size = "1.0 (all of its norm)" if found["error"] == "all" else found["error"]
    return f"{item_words(found['name'])} {'already ' if already else ''}has a relative error of {size}"


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(rf"{_NAME} has shape (?P<value>.+) and in the golden run (?P<golden>.+)"),
        lambda found: f"{item_words(found['name'])} has shape {found['value']} (golden: {found['golden']})",
    ),
    (
        re.compile(
            r"(?P<name>[^\s;,]+) is (?P<value>.+) and in the golden run (?P<golden>[^;]+?)"
            r"(?P<more>(?:,? (?:for|of) parameter .+)?)"
        ),
        _of_two_values,
    ),
    (
        re.compile(rf"{_NAME} is (?P<value>.+) in the (?P<side>target|golden run) only"),
        lambda found: f"{_argument(found['name'])} = {found['value']} in the {found['side']} only",
    ),
    (
        re.compile(
            rf"{_NAME} differs by {_SIZE} of its size; its inputs, which differ by (?P<inputs>\S+), and rounding "
            r"explain (?P<allowed>\S+)"
        ),
        _of_output,
    ),
    (
        re.compile(
            rf"{_NAME} has a relative error of {_SIZE}; (?:(?P<peers>\d+) calls like it|rounding), and its inputs, "
            r"explain (?P<allowed>\S+)"
        ),
        _of_peers,
    ),
    (
        re.compile(
            rf"{_NAME} differs by {_SIZE} of its size(?P<already> already)?(?: where it calls (?P<called>[\w.~]+))?"
            r"(?:; what was recorded before explains (?P<allowed>\S+))?"
        ),
        _of_input,
    ),
    (
        re.compile(rf"{_NAME} has (?P<what>an? .+); (?P<origin>{'|'.join(_ORIGINS)})"),
        lambda found: f"{item_words(found['name'])} has {found['what']}; {_ORIGINS[found['origin']]}",
    ),
)
