"""Two packs, or two dumps by the environments next to them, compared check by check."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from probe.common import files
from probe.common.archives import first_member
from probe.common.dump.reading.unpacked import MANIFEST, unpacked
from probe.common.environment import environment_file as environment_files
from probe.common.environment.environment_file import Environment
from probe.common.environment.gathered import clean_variables
from probe.common.errors import FileCheckException, MsprobeException
from probe.configcheck.findings import ERROR, Check, Comparison, Finding
from probe.configcheck.hyperparameters import check_hyperparameters
from probe.configcheck.model import check_dataset, check_random, check_states, check_weights
from probe.configcheck.pack import DYNAMIC, Pack, read_pack
from probe.configcheck.platform import check_packages, check_platform, check_variables, withheld_differences
from probe.configcheck.settings_files import flat
from probe.configcheck.sources import Sources, entries, left_to_settings, world_size

_LARGEST_BASELINE = 64 << 20
"""Bytes of a baseline that are read; a guess."""


def read_side(path: str) -> Pack:
    """A pack, or the dump or the pack of a run, which has the environment files next to its steps.

    Raises:
        MsprobeException: it is neither, or cannot be read.
    """
    if os.path.isdir(path):
        return _pack_of_dump(path)
    if first_member(path) == MANIFEST:
        return _pack_of_dump(unpacked(path))
    return read_pack(path)


def _pack_of_dump(path: str) -> Pack:
    environments = environment_files.all_in(path)
    (_, first), *others = environments.items()
    found = _pack_of_environment(path, first)
    for name, each in others:
        found.further[name[len("environment_") : -len(".json")]] = _pack_of_environment(path, each)
    return found


def _pack_of_environment(path: str, first: Environment) -> Pack:
    pack = Pack(path, dict(first.get("variables") or {}), dict(first.get("packages") or {}))
    pack.environment = dict(first)
    pack.manifest = {"withheld": first.get("withheld", 0)}
    if isinstance(first.get("optimizers"), list):
        pack.hyperparameters[os.path.basename(DYNAMIC)] = flat({"optimizer": first["optimizers"]})
    return pack


def compare_packs(golden: Pack, target: Pack) -> Comparison:
    """Compare what both packs have; the first is the baseline."""
    checks: list[Check] = []
    missing: list[str] = []

    def add(name: str, is_there: tuple[Any, Any], make: Any) -> None:
        if all(is_there):
            checks.append(make())
        elif any(is_there):
            missing.append(name)

    one, other = golden, target
    withheld = 0
    sources = settings_of_both(one, other)
    variables = clean_variables(one.env or {})[0], clean_variables(other.env or {})[0]
    left = left_to_settings(variables, sources)
    settings = [entries(*each, left) for each in zip(sources, variables)]
    worlds = [world_size(each) for each in settings]
    if one.env is not None and other.env is not None:
        checks.append(check_variables(one.env, other.env, left, worlds[0] is not None and worlds[0] == worlds[1]))
        withheld = withheld_differences(one.env, other.env)
    if one.environment is not None and other.environment is not None:
        checks.append(check_platform(one.environment, other.environment))
    if one.pip is not None and other.pip is not None:
        checks.append(check_packages(one.pip, other.pip))
    if all(sources) or not any(sources):
        found = check_hyperparameters(*settings)
        checks += [found] if all(sources) or found.rows else []
    else:
        missing.append("hyperparameters")
    add("dataset", (one.dataset, other.dataset), lambda: check_dataset(one, other))
    add("weights", (one.weights, other.weights), lambda: check_weights(one, other))
    ours = bool(one.random_calls and other.random_calls)
    calls = (one.random_calls, other.random_calls) if ours else (one.random, other.random)
    add("random", (one.random, other.random), lambda: check_random(*calls, ours))
    if states := check_states(one, other):
        known = next((check for check in checks if check.name == "random"), None)
        checks[:] = [check for check in checks if check is not known]
        checks.append(Check("random", [*(known.rows if known else ()), *states]))
    checks[:] = with_further(one, other, checks)
    if not checks:
        raise MsprobeException(f"{golden.path} and {target.path} have nothing in common that could be compared.")
    return Comparison(golden.path, target.path, checks, withheld, missing)


def with_further(golden: Pack, target: Pack, checks: Sequence[Check]) -> list[Check]:
    """The checks with what differs between further processes of two dumps and not between their first ones.

    Processes are compared by rank; without ranks their names are numbers of processes, which are in order. If the
    numbers of processes differ, that is one row.
    """
    pairs = list(zip(golden.further.items(), target.further.items()))
    if golden.further.keys() & target.further.keys():
        pairs = [((name, pack), (name, target.further[name])) for name, pack in golden.further.items()
                 if name in target.further]  # fmt: skip
    rows: dict[str, list[Finding]] = {check.name: list(check.rows) for check in checks}
    told = {(check.name, row.name, str(row.golden), str(row.target)) for check in checks for row in check.rows}
    for (_, mine), (name, theirs) in pairs:
        for check in compare_packs(mine, theirs).checks:
            for row in check.rows:
                entry = check.name, row.name, str(row.golden), str(row.target)
                if entry not in told:
                    # Ranks that differ in the same way are one row.
                    told.add(entry)
                    where = re.sub(r"\A(rank|proc)(?=\d)", r"\1 ", name)
                    rows.setdefault(check.name, []).append(dataclasses.replace(row, name=f"{where}: {row.name}"))
    counts = len(golden.further) + 1, len(target.further) + 1
    if counts[0] != counts[1]:
        why = "world size: data and gradients are split in another way"
        rows.setdefault("platform", []).append(Finding("number of processes", *counts, ERROR, why))
    return [Check(name, listed) for name, listed in rows.items()]


def settings_of_both(golden: Pack, target: Pack) -> tuple[Sources, Sources]:
    """The settings of two runs by file; settings in use are compared with settings in use, if both packs have them."""
    running = os.path.basename(DYNAMIC)
    packs = golden, target
    asked = [
        pack.settings or {name: each for name, each in pack.hyperparameters.items() if name != running}
        for pack in packs
    ]
    used = [{name: each for name, each in pack.hyperparameters.items() if name == running} for pack in packs]
    kinds = [both for both in (asked, used) if all(both)] or [[{**one, **two} for one, two in zip(asked, used)]]
    one, other = ({name: each for both in kinds for name, each in both[side].items()} for side in (0, 1))
    return one, other


def without(comparison: Comparison, ignored: Sequence[str], baseline: str | None) -> Comparison:
    """The comparison without rows whose names match a pattern of `ignored`, or that a baseline file has as they are.

    Args:
        ignored: Names with ``*`` and ``?``, as ``pip/pytest`` or ``NCCL_*``.
        baseline: A ``config_check.json`` whose differences are accepted.

    Raises:
        MsprobeException: the baseline cannot be read.
    """
    accepted = _accepted(baseline) if baseline is not None else set()
    checks = []
    for check in comparison.checks:
        rows = [
            row
            for row in check.rows
            if not any(
                fnmatch.fnmatchcase(name, each)
                for own in (row.name, *row.names)
                for name in (own, f"{check.name}/{own}")
                for each in ignored
            )
            and (check.name, row.name, json.dumps(row.golden), json.dumps(row.target)) not in accepted
        ]
        checks.append(Check(check.name, rows))
    return dataclasses.replace(comparison, checks=checks)


def _accepted(path: str) -> set[tuple[str, str, str, str]]:
    try:
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST_BASELINE))
        return {
            (name, row["name"], json.dumps(row["golden"]), json.dumps(row["target"]))
            for name, check in content["checks"].items()
            for row in check["rows"]
        }
    except OSError as error:
        raise FileCheckException(f"--accept: {path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise MsprobeException(f"--accept: {path} is no config_check.json of an earlier comparison.") from None
