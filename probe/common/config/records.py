"""Values of the configuration that name records of a dump."""

from __future__ import annotations

from probe.common.config.fields import Location, one_of, parse_texts, quoted
from probe.common.dump import naming
from probe.common.errors import MsprobeException, ScopeException
from probe.common.show import show

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
        ScopeException: It is not a pair of complete names, or the second cannot come after the first.
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
