"""Installed packages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from probe.common.environment.differences import base_version
from probe.configcheck.findings import INFO, LEVELS, Check, Finding
from probe.configcheck.tables import OTHER_PACKAGE, PACKAGES, SAME_BASE


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
