"""Versions, switches, seeds and devices, by what the framework itself says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.common.environment.differences import MINOR, RANDOM, OutsideDifference, differences
from probe.configcheck.findings import ERROR, INFO, WARNING, Check, Finding
from probe.configcheck.tables import NO_EFFECT, SWITCH_WHY

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
