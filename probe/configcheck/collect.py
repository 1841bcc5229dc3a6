"""Collecting a pack without a running program: variables, packages, and hyper-parameters of files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.common.environment.gathered import gathered
from probe.common.environment.packages import all_versions
from probe.common.environment.secrets import clean_settings, clean_variables, is_secret_value
from probe.configcheck.hyper.settings_files import exported_in, settings_of
from probe.configcheck.pack import ENV, ENVIRONMENT, PIP, STATIC, encoded, write_pack


@dataclass(frozen=True)
class Collected:
    """The members of a pack.

    Args:
        members: Content by name.
        names: The names of what was collected.
        withheld: The number of values that may be secrets or decide nothing.
    """

    members: dict[str, bytes]
    names: list[str]
    withheld: int


def static_members(paths: Sequence[str], environment: Mapping[str, Any] | None = None) -> Collected:
    """Collect the environment of this process, its packages, and the hyper-parameters in files.

    Variables that a start script exports belong to the environment.

    Args:
        paths: Start scripts and settings files.
        environment: As `gathered` gives it; ``None`` gathers it here.

    Raises:
        MsprobeException: a file cannot be read, or is of no known kind.
    """
    # Before any work: a wrong file is the user's to put right.
    read = {path: settings_of(path) for path in paths}
    exported = {name: value for path in paths for name, value in exported_in(path).items()}
    # A script exports into the environment in which it starts; a program that runs has its environment.
    both = {**os.environ, **exported} if environment is None else {**exported, **os.environ}
    variables, withheld = clean_variables(both)
    packages = {name: version for name, version in all_versions().items() if not is_secret_value(version)}
    members = {
        ENV: encoded(variables),
        PIP: "\n".join(f"{name}={version}" for name, version in packages.items()).encode(),
        ENVIRONMENT: encoded(gathered() if environment is None else environment),
    }
    names = ["env", "pip", "environment"]
    merged: dict[str, Any] = {}
    for name, settings in zip(_member_names(paths), read.values()):
        kept, left_out = clean_settings(settings)
        withheld += left_out
        members[f"settings/{name}.json"] = encoded(kept)
        merged.update(kept)
    if paths:
        members[STATIC] = encoded(merged)
        names.append("hyperparameters")
    return Collected(members, names, withheld)


def _member_names(paths: Sequence[str]) -> list[str]:
    """The names of the files, without folders; two of one name get a number."""
    found: list[str] = []
    for path in paths:
        base = name = os.path.basename(path)
        number = 1
        while name in found:
            number += 1
            name = f"{base}.{number}"
        found.append(name)
    return found


def collect(paths: Sequence[str], output: str) -> Collected:
    """Write the pack `output`.

    Raises:
        MsprobeException: a file cannot be read, or the pack cannot be written.
    """
    found = static_members(paths)
    write_pack(output, found.members, found.names, found.withheld)
    return found
