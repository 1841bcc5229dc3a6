"""Environment variables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from probe.common.environment.secrets import clean_variables, withheld_values
from probe.configcheck.findings import ERROR, INFO, Check, Finding
from probe.configcheck.meanings import TABLE, Setting, variables_of
from probe.configcheck.tables import NO_EFFECT, VISIBLE_DEVICES
from probe.configcheck.values import are_equal

_OTHER_DEVICES = "other devices, and as many of them"
_SAME_PROCESSES = "as many processes as in the other run, on other devices"


def check_variables(
    golden: Mapping[str, str], target: Mapping[str, str], left_out: Collection[str] = (), is_same_world: bool = False
) -> Check:
    """Compare the variables that may be shown; each known one with its default if it is not set.

    A variable of an NPU is compared with that of a GPU of the same meaning.

    Args:
        golden: The environment of the baseline.
        target: That of the run under test.
        left_out: Variables that are compared with options of launchers.
        is_same_world: True if both runs are known to have as many processes.
    """
    one, other = clean_variables(golden)[0], clean_variables(target)[0]
    known = {name for setting in TABLE for name in variables_of(setting)}
    rows: list[Finding] = []
    for setting in TABLE:
        names = [name for name in variables_of(setting) if name not in left_out]
        for alike in [[name] for name in names] if setting.is_family else [names] if names else []:
            rows += _known(setting, alike, one, other, is_same_world)
    for name in sorted({*one, *other} - known):
        if one.get(name) != other.get(name):
            rows.append(Finding(name, one.get(name), other.get(name), INFO, NO_EFFECT, (name, name)))
    return Check("env", rows)


def withheld_differences(golden: Mapping[str, str], target: Mapping[str, str]) -> int:
    """The number of variables that may be secrets and differ, or are on one side only."""
    one, other = withheld_values(golden), withheld_values(target)
    return sum(one.get(name) != other.get(name) for name in {*one, *other})


def _known(
    setting: Setting, names: Sequence[str], golden: Mapping[str, str], target: Mapping[str, str], is_same_world: bool
) -> Iterator[Finding]:
    mine, theirs = (next((name for name in names if name in side), names[0]) for side in (golden, target))
    values = golden.get(mine), target.get(theirs)
    one, other = (setting.default if value is None else value for value in values)
    if values == (None, None) or are_equal(one, other):
        return
    level, why = ERROR, setting.reason
    if names[0] in VISIBLE_DEVICES:
        if is_same_world:
            level, why = INFO, _SAME_PROCESSES
        elif one is not None and other is not None and _count(str(one)) == _count(str(other)):
            level, why = INFO, _OTHER_DEVICES
    name = theirs if values[0] is None else mine
    title = f"{theirs} (golden: {mine})" if mine != theirs and None not in values else name
    yield Finding(title, values[0], values[1], level, why, (mine, theirs))


def _count(devices: str) -> int:
    return len([each for each in devices.split(",") if each.strip()])
