"""Environment variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from probe.common.environment.secrets import clean_variables, withheld_values
from probe.configcheck.findings import INFO, Check, Finding
from probe.configcheck.tables import UNLISTED, VARIABLES, VISIBLE_DEVICES, Variable
from probe.configcheck.values import are_equal


def check_variables(golden: Mapping[str, str], target: Mapping[str, str]) -> Check:
    """Compare the variables that may be shown; each known one with its default if it is not set.

    A variable of an NPU is compared with that of a GPU of the same meaning.
    """
    kept = clean_variables(golden)[0], clean_variables(target)[0]
    known = {name for line in VARIABLES for name in (line.npu, line.gpu)}
    rows = [row for line in VARIABLES for row in _known(line, *kept)]
    for name in sorted({*kept[0], *kept[1]} - known):
        one, other = kept[0].get(name), kept[1].get(name)
        if one != other:
            rows.append(Finding(name, one, other, INFO, UNLISTED))
    return Check("env", rows)


def withheld_differences(golden: Mapping[str, str], target: Mapping[str, str]) -> int:
    """The number of variables that may be secrets and differ, or are on one side only."""
    one, other = withheld_values(golden), withheld_values(target)
    return sum(one.get(name) != other.get(name) for name in {*one, *other})


def _known(line: Variable, golden: Mapping[str, str], target: Mapping[str, str]) -> Iterator[Finding]:
    names = _name(line, golden), _name(line, target)
    values = golden.get(names[0]), target.get(names[1])
    if values == (None, None):
        return
    one, other = (line.default if value is None else value for value in values)
    if are_equal(one, other):
        return
    level = line.level
    if names[0] in VISIBLE_DEVICES and one is not None and other is not None and _count(one) == _count(other):
        level = INFO  # as many devices, only others
    name = names[1] if names[0] == names[1] or values[0] is None else names[0]
    title = f"{names[1]} (golden: {names[0]})" if names[0] != names[1] and None not in values else name
    yield Finding(title, values[0], values[1], level, line.why)


def _name(line: Variable, variables: Mapping[str, str]) -> str:
    """The name of the platform that has it set, and otherwise the first that there is."""
    names = [name for name in (line.npu, line.gpu) if name]
    return next((name for name in names if name in variables), names[0])


def _count(devices: str) -> int:
    return len([each for each in devices.split(",") if each.strip()])
