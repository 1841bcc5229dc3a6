"""Versions, switches, seeds, devices, installed packages and environment variables of a run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from probe.common.environment.differences import MINOR, RANDOM, OutsideDifference, base_version, differences
from probe.common.environment.gathered import clean_variables, withheld_values
from probe.configcheck.findings import ERROR, INFO, LEVELS, WARNING, Check, Finding
from probe.configcheck.meanings import TABLE, Setting, variables_of
from probe.configcheck.tables import (
    NO_EFFECT,
    OTHER_PACKAGE,
    PACKAGES,
    SAME_BASE,
    SWITCH_WHY,
    VISIBLE_DEVICES,
    are_equal,
)

_LEFT_TO_OTHERS = ("packages", "variables", "optimizers")
"""Sections that other checks have."""
_OTHER = "the runs have another platform, whose kernels may differ"


def check_platform(golden: Mapping[str, Any], target: Mapping[str, Any]) -> Check:
    """Compare two environments as `probe.common.environment` has them."""
    rows = []
    if golden.get("framework") != target.get("framework"):
        why = "functions of two frameworks round differently: compare with tolerance"
        rows.append(Finding("framework", golden.get("framework"), target.get("framework"), WARNING, why))
    for each in differences(target, golden):
        section = each.name.partition(".")[0]
        if section not in _LEFT_TO_OTHERS:
            level, why = _judged(each)
            rows.append(Finding(each.title, each.golden, each.target, level, why))
    return Check("platform", rows)


def _judged(each: OutsideDifference) -> tuple[str, str]:
    if each.kind == MINOR:
        return INFO, NO_EFFECT
    return WARNING if each.kind == RANDOM else ERROR, SWITCH_WHY.get(each.name.partition(".")[0], _OTHER)


# --- packages


def check_packages(golden: Mapping[str, str], target: Mapping[str, str]) -> Check:
    """Compare all packages; those that matter most come first."""
    one, other = _normal(golden), _normal(target)
    rows = []
    for key in {*one, *other}:
        name = (one.get(key) or other[key])[0]
        versions = one.get(key, (name, None))[1], other.get(key, (name, None))[1]
        if versions[0] == versions[1]:
            continue
        level, why = PACKAGES.get(key, OTHER_PACKAGE)
        if None not in versions and base_version(versions[0]) == base_version(versions[1]):
            level, why = INFO, SAME_BASE
        rows.append(Finding(name, *versions, level, why))
    return Check("pip", sorted(rows, key=lambda row: (-LEVELS.index(row.level), row.name.lower())))


def _normal(packages: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Name and version by the name as PyPI normalises it."""
    return {re.sub(r"[-_.]+", "-", name).lower(): (name, version) for name, version in packages.items()}


# --- variables


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
