"""The names in a configuration that a step did not have, in words, with the nearest names that it had."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from probe.common.config.config import Config
from probe.common.config.record_filter import api_pattern, module_pattern
from probe.common.dump import naming
from probe.common.dump.naming import nearest
from probe.common.harmless_text import show

_MOST_SHOWN = 3
"""Names in a sentence; a guess."""
_MOST_COMPARED = 5000
"""Names among which the nearest are looked for, which takes 0.1 s."""
_MOST_NUMBERS = 5000
"""Calls of one function whose names are looked through."""


class Met(NamedTuple):
    """The names that a step had; the step is over."""

    calls: Mapping[str, int]
    """The number of times that each API and module was called, by its name without number and direction, wanted or
    not."""
    first_of_scope: bool
    """True if the first name of ``scope`` was met."""
    last_of_scope: bool
    """True if its last name was met after that."""
    records: bool
    """True if anything was recorded."""
    tensors: bool
    """True if a tensor was saved."""


def unmatched(config: Config, met: Met) -> list[str]:
    """One sentence for each of ``scope``, ``list`` and ``tensor_list`` that names what a step did not have.

    Example:
        >>> unmatched(Config(names=("rellu",)), Met({"Torch.relu": 2}, False, False, False, False))
        ['nothing matches "rellu" of "statistics.list"; nearest names seen: "Torch.relu".']
    """
    section = config.task
    lines = [
        *_unmatched_scope(config.scope, f'"{section}.scope"', met),
        *_unmatched_texts(config.names, f'"{section}.list"', met.calls),
        *_unmatched_patterns(config.module, "module", met.calls),
        *_unmatched_patterns(config.api, "api", met.calls),
    ]
    if (config.module or config.api) and not met.records and not lines:
        lines.append(_sentence_on_filters(config))
    elif (config.names or config.scope) and not met.records and not lines:
        lines.append(
            f'nothing was recorded: no call selected by "{section}.list" and "{section}.scope" had a part that '
            f'"{section}.data_mode" selects.'
        )
    about_tensors = _unmatched_texts(config.tensor_list, f'"{section}.tensor_list"', met.calls)
    if config.tensor_list and not met.tensors and not about_tensors and not lines:
        about_tensors.append(
            f'no tensor was saved: records of "{section}.tensor_list" occurred, but other settings ("risk_level", '
            f'"{section}.list", "{section}.scope", "{section}.data_mode") exclude them.'
        )
    return lines + about_tensors


def _unmatched_scope(scope: Sequence[str], key: str, met: Met) -> list[str]:
    if not scope:
        return []
    first, last = scope
    if not met.first_of_scope:
        near = _near_in_scope(first, met.calls)
        return [f"nothing was collected, because {show(first)}, the first name of {key}, did not occur{near}."]
    if not met.last_of_scope:
        near = _near_in_scope(last, met.calls)
        return [f"collection did not end early: {show(last)}, the last name of {key}, did not occur after it{near}."]
    return []


def _near_in_scope(name: str, calls: Mapping[str, int]) -> str:
    parsed = naming.parse(name)
    if parsed is None or parsed.number >= calls.get(parsed.base, 0):
        return _nearest([name], calls)
    return "; its forward occurred" if parsed.direction == naming.BACKWARD else "; it occurred before"


def _unmatched_patterns(pattern: str | None, key: str, calls: Mapping[str, int]) -> list[str]:
    """`key` is ``module`` or ``api``."""
    if pattern is None:
        return []
    fits = module_pattern(pattern) if key == "module" else _fits_a_call(api_pattern(pattern), calls)
    if any(fits(base) for base in calls if naming.is_module(base) is (key == "module")):
        return []
    return [f'nothing matches {show(pattern)} of "{key}"{_nearest([pattern], calls)}.']


def _sentence_on_filters(config: Config) -> str:
    """The sentence about a step without records in which each filter fits something."""
    if config.module and config.api:
        return (
            f'nothing was recorded: no call of a function that matches {show(config.api)} of "api" ran inside a '
            f'module that matches {show(config.module)} of "module"; a call has to match both.'
        )
    return 'nothing was recorded: "module" or "api" matches calls that were made, but other settings exclude them.'


def _fits_a_call(fits: Callable[[str], bool], calls: Mapping[str, int]) -> Callable[[str], bool]:
    return lambda base: any(
        fits(name) for number in range(min(calls[base], _MOST_NUMBERS)) for name in _names(base, number)
    )


def _unmatched_texts(texts: Sequence[str], key: str, calls: Mapping[str, int]) -> list[str]:
    missing = [text for text in texts if not any(_occurs(text, base, count) for base, count in calls.items())]
    if not missing:
        return []
    more = len(missing) - _MOST_SHOWN
    shown = ", ".join(show(text) for text in missing[:_MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return [f"nothing matches {shown} of {key}{_nearest(missing[:_MOST_SHOWN], calls)}."]


def _occurs(text: str, base: str, count: int) -> bool:
    """True if `text` is in the name of a record that `count` calls of `base` may have."""
    if text in base:
        return True
    if not any(map(str.isdigit, text)):
        count = min(count, 1)  # it is in the names of all numbers or of none
    elif count > _MOST_NUMBERS:
        return True  # nothing is said of it
    return any(text in name for number in range(count) for name in _names(base, number))


def _names(base: str, number: int) -> Iterator[str]:
    directions = (naming.FORWARD, naming.BACKWARD)
    if naming.is_module(base):
        return (naming.module_name(base, number, part) for part in (*directions, naming.PARAMETERS_GRAD))
    return (naming.api_name(base, number, direction) for direction in directions)


def _nearest(texts: Sequence[str], calls: Mapping[str, int]) -> str:
    """The end of a sentence about `texts`, which are in no name: the names that are most like them."""
    if not calls:
        return "; no call was recorded"
    bases = list(islice(calls, _MOST_COMPARED))
    found: dict[str, None] = {}
    for text in texts:
        parsed = naming.parse(text)
        if parsed is None:
            parts = _parts(bases)
            found.update(dict.fromkeys(parts[part] for part in nearest(text, parts)))
        else:
            # Of a call that is known only the number is wrong.
            near = [parsed.base] if parsed.base in calls else nearest(parsed.base, bases)
            found.update(dict.fromkeys(_last_record(parsed, base, calls[base]) for base in near))
    if found:
        return "; nearest names seen: " + ", ".join(show(name) for name in islice(found, _MOST_SHOWN))
    among = "among others " if len(calls) > _MOST_SHOWN else ""
    return f"; names seen: {among}" + ", ".join(show(base) for base in islice(calls, _MOST_SHOWN))


def _last_record(wanted: naming.ParsedName, base: str, count: int) -> str:
    """The record of `base` whose number is next to that of `wanted`."""
    number = min(wanted.number, count - 1)
    return naming.record_name(naming.ParsedName(base, number, wanted.direction, naming.is_module(base)))


def _parts(bases: Sequence[str]) -> dict[str, str]:
    """Names that a user may have meant, with the API or module of each: whole names, and their parts."""
    parts = {part: base for base in reversed(bases) for part in base.split(".") if not part.isdecimal()}
    return {**parts, **{base: base for base in bases}}
