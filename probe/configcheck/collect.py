"""Collecting a pack without a running program: variables, packages, and hyper-parameters of files."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.common.environment.gathered import all_versions, gathered
from probe.common.environment.secrets import clean_settings, clean_variables, is_secret_value
from probe.common.errors import MsprobeException
from probe.configcheck.hyper.settings_files import read_settings, referenced_files
from probe.configcheck.hyper.shell import PROGRAM
from probe.configcheck.pack import ENV, ENVIRONMENT, PIP, STATIC, encoded, write_pack
from probe.configcheck.sources import conflicts


@dataclass(frozen=True)
class Collected:
    """The members of a pack.

    Args:
        members: Content by name.
        names: The names of what was collected.
        withheld: The number of values that may be secrets or decide nothing.
        notes: Sentences about settings with several values, and about what was not followed.
    """

    members: dict[str, bytes]
    names: list[str]
    withheld: int
    notes: list[str]


def static_members(paths: Sequence[str], environment: Mapping[str, Any] | None = None) -> Collected:
    """Collect the environment of this process, its packages, and the hyper-parameters in files.

    Variables that a start script exports belong to the environment. Settings files that its launches name are read too.

    Args:
        paths: Start scripts and settings files.
        environment: As `gathered` gives it; ``None`` gathers it here.

    Raises:
        MsprobeException: a file cannot be read, or is of no known kind.
    """
    # Before any work: a wrong file is the user's to put right.
    sources, exported, notes = _read(paths)
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
    kept: dict[str, dict[str, Any]] = {}
    for name, settings in sources.items():
        kept[name], left_out = clean_settings(settings)
        withheld += left_out
        members[f"settings/{name}.json"] = encoded(kept[name])
        merged.update(kept[name])
    if paths:
        members[STATIC] = encoded({name: value for name, value in merged.items() if name != PROGRAM})
        names.append("hyperparameters")
    return Collected(members, names, withheld, [*conflicts(kept), *notes])


def _read(paths: Sequence[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str], list[str]]:
    """The settings of each place, the variables that scripts export, and notes."""
    sources: dict[str, dict[str, Any]] = {}
    exported: dict[str, str] = {}
    notes: list[str] = []
    for path in paths:
        found = read_settings(path)
        exported.update(found.exported)
        notes += found.notes
        sources.update({_free(name, sources): settings for name, settings in found.sources.items()})
    known = {os.path.realpath(path) for path in paths}
    for path in paths:
        for further in [each for settings in list(sources.values()) for each in referenced_files(path, settings)]:
            if os.path.realpath(further) not in known:
                known.add(os.path.realpath(further))
                try:
                    found = read_settings(further)
                except MsprobeException as error:
                    notes.append(f"{further}, which {path} names, is not read: {error}")
                    continue
                notes.append(f"{further} is read as well: {path} names it.")
                sources.update({_free(name, sources): settings for name, settings in found.sources.items()})
    return sources, exported, notes


def _free(name: str, known: Container[str]) -> str:
    """A name that no other place has: a second file of one name gets a number."""
    stem, dot, suffix = name.partition(".")
    number = 1
    while name in known:
        number += 1
        name = f"{stem}-{number}{dot}{suffix}"
    return name


def collect(paths: Sequence[str], output: str) -> Collected:
    """Write the pack `output`.

    Raises:
        MsprobeException: a file cannot be read, or the pack cannot be written.
    """
    found = static_members(paths)
    write_pack(output, found.members, found.names, found.withheld)
    return found
