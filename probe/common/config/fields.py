"""One value of a configuration at a time: check it, or say where it stands, what it is and what is allowed."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from probe.common.dump import naming
from probe.common.errors import FileCheckException, MsprobeException, ScopeException
from probe.common.harmless_text import show

MAX_NUMBER = 1_000_000
"""The largest step, rank or amount; a guess: longer trainings are not known."""
_LARGEST = 2.0**63
"""The bounds of intervals are at most as large as 64-bit integers."""

_RANGE = re.compile(r"\s*([0-9]{1,7})\s*(?:-\s*([0-9]{1,7})\s*)?")
_NUMBERS_ALLOWED = f'whole numbers from 0 to {MAX_NUMBER}, also as text: "3", or "4-6" for 4, 5 and 6'


@dataclass(frozen=True)
class Location:
    """The place of a value, for messages.

    Args:
        origin: the file's path, or the call that gave the value.
        key: the key as the user knows it, ``"statistics.data_mode"`` for one in a section.
    """

    origin: str
    key: str

    def item(self, index: int) -> Location:
        return Location(self.origin, f"{self.key}[{index}]")

    def wrong(self, value: object, allowed: str) -> MsprobeException:
        """The error for a value outside what is allowed."""
        return MsprobeException(f"{self.describe(value)}; allowed: {allowed}.")

    def describe(self, value: object) -> str:
        """The first half of every message: where, which key, which value."""
        return f'{self.origin}: "{self.key}" is {show(value)}'


def quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


class one_of:
    """Parser of an enumeration; case matters.

    Args:
        allowed: The words.
        unavailable: Words that msProbe knows besides these and that are not offered here, and why not.
    """

    def __init__(self, *allowed: str, unavailable: Mapping[str, str] | None = None) -> None:
        self.allowed = allowed
        self._unavailable = unavailable or {}

    def __call__(self, value: object, location: Location) -> str:
        if isinstance(value, str) and value in self.allowed:
            return value
        if isinstance(value, str) and value in self._unavailable:
            reason = self._unavailable[value]
            raise MsprobeException(f"{location.describe(value)}, which {reason}; use {quoted(self.allowed)}.")
        raise location.wrong(value, quoted(self.allowed))


class some_of:
    """Parser of a list of words; the empty list and `everything` alone give the empty set."""

    def __init__(self, *allowed: str, everything: str) -> None:
        self.allowed = (*allowed, everything)
        self.everything = everything
        self._parse_word = one_of(*self.allowed)

    def __call__(self, value: object, location: Location) -> frozenset[str]:
        if not isinstance(value, list):
            raise location.wrong(value, f"a list of {quoted(self.allowed)}")
        words = frozenset(self._parse_word(word, location.item(index)) for index, word in enumerate(value))
        if self.everything in words and len(words) > 1:
            raise MsprobeException(
                f'{location.origin}: "{location.key}" combines "{self.everything}" with other words; '
                f'give "{self.everything}" alone.'
            )
        return words - {self.everything}


def parse_flag(value: object, location: Location) -> bool:
    if isinstance(value, bool):
        return value
    raise location.wrong(value, "true, false")


def parse_path(value: object, location: Location) -> str:
    """A path that the operating system can be asked for; whether it exists is not looked at."""
    if isinstance(value, str) and value and "\0" not in value:
        try:
            os.fsencode(value)
        except UnicodeEncodeError:
            pass
        else:
            return value
    raise location.wrong(value, "the path of a folder as text")


def parse_folder(value: object, location: Location) -> str:
    path = parse_path(value, location)
    if os.path.isdir(path):
        return path
    raise location.wrong(value, "the path of an existing folder")


def parse_existing(value: object, location: Location) -> str:
    path = parse_path(value, location)
    if os.path.exists(path):
        return path
    raise location.wrong(value, "the path of an existing run")


def parse_new_folder(value: object, location: Location) -> str:
    """The path of a folder that is there or can be made.

    Raises:
        MsprobeException: `value` is no path, or one that a shell would have expanded.
        FileCheckException: a link or a file is in the way.
    """
    path = parse_path(value, location)
    if path.startswith("~"):
        raise MsprobeException(
            f'{location.describe(path)}; "~" is not expanded, so write the folder out, '
            'or "./~..." for one of such a name.'
        )
    problem = _in_the_way(os.path.abspath(path))
    if problem:
        raise FileCheckException(f"{location.describe(path)}{problem}.")
    return path


def _in_the_way(path: str) -> str:
    """The reason why there can be no folder `path`; empty where nothing speaks against it now."""
    if os.path.islink(path):
        return ", a symbolic link; give the folder it points to"
    part = path
    while True:
        try:
            is_folder = stat.S_ISDIR(os.stat(part).st_mode)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return f", which is not possible: {error.strerror}"
            # Else it is a link to nothing, or not there, or the system may say something else when it is used.
            if os.path.islink(part):
                return f', but "{part}" is a link whose target does not exist'
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                return ""
        else:
            if is_folder:
                return ""
            return ", which is not a folder" if part == path else f', but "{part}" is not a folder'
        above = os.path.dirname(part)
        if above == part:
            return ""
        part = above


def parse_texts(value: object, location: Location) -> tuple[str, ...]:
    """A list of texts; an empty one is refused since it is contained in every name and so selects all."""
    if not isinstance(value, list):
        raise location.wrong(value, "a list of texts")
    for index, text in enumerate(value):
        if not isinstance(text, str) or not text:
            raise location.item(index).wrong(text, "a text that is not empty")
    return tuple(value)


def parse_ascending(value: object, location: Location) -> tuple[float, ...]:
    """Check a list of finite numbers, each larger than the one before."""
    allowed = "a list of finite numbers, each larger than the one before"
    if not isinstance(value, list) or not value:
        raise location.wrong(value, allowed)
    numbers: list[float] = []
    for index, each in enumerate(value):
        is_number = isinstance(each, (int, float)) and not isinstance(each, bool)
        # A whole number may be too large for a float.
        if not is_number or abs(each) > _LARGEST or each != each or (numbers and each <= numbers[-1]):
            raise location.item(index).wrong(each, allowed)
        numbers.append(each)
    return tuple(numbers)


def parse_pattern(value: object, location: Location) -> str:
    """A pattern for names, with ``*`` and ``?``."""
    if not isinstance(value, str) or not value.strip():
        raise location.wrong(value, 'a name or a pattern such as "layers.1" or "*Norm"')
    return value


def parse_limit(value: object, location: Location) -> int:
    """A number of things, or -1 for no limit."""
    if isinstance(value, int) and not isinstance(value, bool) and (value == -1 or value >= 1):
        return value
    raise location.wrong(value, "whole numbers from 1, or -1 for no limit")


def parse_count(value: object, location: Location) -> int:
    """A number of things, at least one."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_NUMBER:
        return value
    raise location.wrong(value, f"whole numbers from 1 to {MAX_NUMBER}")


def parse_number_above(value: object, location: Location) -> float:
    """Any number above 0."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
    if 0 < number < float("inf"):
        return float(number)
    raise location.wrong(value, "a number above 0")


def parse_size(value: object, location: Location) -> int:
    """An amount in MiB."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
        return value
    raise location.wrong(value, f"whole numbers of MiB from 0 to {MAX_NUMBER}")


def parse_gib(value: object, location: Location) -> float:
    """An amount in GiB, or -1 for no limit; 0 is refused, since it could be meant as either nothing or anything."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
    if number == -1 or 0 < number <= MAX_NUMBER:
        return number
    raise location.wrong(value, f"a number of GiB above 0 and up to {MAX_NUMBER}, or -1 for no limit")


def parse_numbers(values: object, location: Location) -> tuple[int, ...]:
    """Steps or ranks, sorted and unique, from numbers, texts ``"3"`` and inclusive ranges ``"4-6"``.

    Args:
        values: a list (from Python also a tuple or range); empty means all and gives ``()``.
        location: where `values` stand, for the message.

    Raises:
        MsprobeException: not a list, or an element is not such a number or range.
    """
    if not isinstance(values, (list, tuple, range)):
        raise location.wrong(values, f"a list of {_NUMBERS_ALLOWED}")
    spans = sorted(_span(value, location.item(index)) for index, value in enumerate(values))
    # Overlaps are merged before anything is expanded: a file of "0-1000000" repeated costs as much as one.
    numbers: list[int] = []
    for first, last in spans:
        start = first if not numbers else max(first, numbers[-1] + 1)
        numbers.extend(range(start, last + 1))
    return tuple(numbers)


def numbers_text(numbers: Sequence[int]) -> str:
    """Sorted numbers as `parse_numbers` would take them.

    Example:
        >>> numbers_text((0, 4, 5, 6))
        '0, 4-6'
    """
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _span(value: object, location: Location) -> tuple[int, int]:
    if isinstance(value, str):
        match = _RANGE.fullmatch(value)
        if match:
            first = int(match[1])
            last = int(match[2] or first)
            if first > last:
                raise MsprobeException(f'{location.describe(value)}, which runs backwards; write "{last}-{first}".')
            if last <= MAX_NUMBER:
                return first, last
    elif isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER:
        return value, value
    raise location.wrong(value, _NUMBERS_ALLOWED)


# --- names of records

SUMMARY_MODES = ("statistics", "md5", "xor")

ABSENT = "is not available in this version"
"""The answer to a value that msProbe knows and this version does not offer: the user did not misspell anything."""
ASCEND = f"needs an Ascend device and {ABSENT}"
_COMPILED = f"is for graphs that MindSpore compiles; that {ASCEND}"
_KERNEL_PATTERN = "name-regex("
_KERNEL_STATISTICS = ("max", "min", "mean", "l2norm", "count", "hash")

# Longer names are no records, and parsing would convert any number of digits.
_LONGEST_NAME = 1000
_NAME_EXAMPLES = '"Module.fc.Linear.forward.0" or "Functional.relu.0.backward"'


def parse_names(value: object, location: Location) -> tuple[str, ...]:
    """Parts of names of records; a pattern for the kernels of a compiled graph is refused."""
    names = parse_texts(value, location)
    for index, name in enumerate(names):
        if name.startswith(_KERNEL_PATTERN):
            described = location.item(index).describe(name)
            raise MsprobeException(f"{described}, which {_COMPILED}. Give parts of record names.")
    return names


def parse_summary_mode(value: object, location: Location) -> str:
    """The statistics to compute of a tensor; a list of statistics for the kernels of a compiled graph is refused."""
    if isinstance(value, list) and any(word in value for word in _KERNEL_STATISTICS):
        raise MsprobeException(f"{location.describe(value)}, which {_COMPILED}. Use {quoted(SUMMARY_MODES)}.")
    return one_of(*SUMMARY_MODES)(value, location)


def parse_scope(value: object, location: Location) -> tuple[str, ...]:
    """The names of the first and the last record to collect, or neither.

    Raises:
        MsprobeException: `value` is no list.
        ScopeException: `value` is not a pair of complete names, or the second cannot come after the first.
    """
    if not isinstance(value, list):
        raise location.wrong(value, "a list of two names of records, or an empty one")
    if not value:
        return ()
    if len(value) != 2:
        raise ScopeException(
            f'{location.origin}: "{location.key}" has length {len(value)}; name the first and the last record, or none.'
        )
    first, last = (_record_name(name, location.item(index)) for index, name in enumerate(value))
    if _comes_after(first, last):
        raise ScopeException(
            f'{location.origin}: "{location.key}" runs backwards: {show(first)} comes after {show(last)}; '
            "exchange them."
        )
    return first, last


def check_scope(scope: tuple[str, ...], level: str, location: Location) -> None:
    """Refuse names of records that `level` does not collect.

    Raises:
        ScopeException: There is one.
    """
    for index, name in enumerate(scope):
        is_module = naming.is_module(name)
        if level == "L1" and is_module:
            raise ScopeException(
                f'{location.item(index).describe(name)}, a module, but level "L1" collects APIs; '
                'name an API or use level "L0" or "mix".'
            )
        if level == "L0" and not is_module:
            raise ScopeException(
                f'{location.item(index).describe(name)}, an API, but level "L0" collects modules; '
                'name a module or use level "L1" or "mix".'
            )


def _comes_after(first: str, last: str) -> bool:
    """True if `first` cannot be before `last`, as far as two names tell: forward calls of one thing are numbered.

    Of backwards nothing is known: they run in any order, and before later forward calls where gradients accumulate.
    """
    one, other = naming.parse(first), naming.parse(last)
    if one is None or other is None or one.base != other.base or other.direction != naming.FORWARD:
        return False
    return one.number > other.number or (one.number == other.number and one.direction == naming.BACKWARD)


def _record_name(name: object, location: Location) -> str:
    parsed = naming.parse(name) if isinstance(name, str) and len(name) <= _LONGEST_NAME else None
    complete = parsed is not None and parsed.direction in (naming.FORWARD, naming.BACKWARD)
    if not isinstance(name, str) or not complete or name != name.strip():
        described = location.describe(name)
        raise ScopeException(f"{described}; allowed: complete names as in dump.json, such as {_NAME_EXAMPLES}.")
    return name


# --- keys


T = TypeVar("T")


def _always_used(config: Any) -> str:
    return ""


@dataclass(frozen=True)
class Key:
    """One key.

    Args:
        parse: Checks and converts the value that stands in the file.
        tasks: The tasks in whose section the key stands; empty for a key at the top.
        unused: Why the key has no effect in a given configuration; an empty text where it has one.
        name: The key in the file; where it is empty, the name of the field.
        attribute: The name of the field.
        default: The value where the file has no such key.
    """

    parse: Callable[[object, Location], Any]
    tasks: tuple[str, ...]
    unused: Callable[[Any], str]
    name: str
    attribute: str = ""
    default: Any = None


def key(
    default: T,
    parse: Callable[[object, Location], T],
    tasks: tuple[str, ...] = (),
    unused: Callable[[Any], str] = _always_used,
    name: str = "",
) -> T:
    """The field of a dataclass that one key of the file sets; see `Key`."""
    metadata = {"key": Key(parse, tasks, unused, name)}
    return dataclasses.field(default=default, metadata=metadata)


def keys_of(config: type[Any]) -> dict[str, Key]:
    """The keys of a dataclass whose fields were made with `key`, by their names in the file."""
    table = {}
    for field in dataclasses.fields(config):
        entry: Key = field.metadata["key"]
        name = entry.name or field.name
        table[name] = dataclasses.replace(entry, name=name, attribute=field.name, default=field.default)
    return table
