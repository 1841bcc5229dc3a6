"""The files in which users say what corresponds to what: YAML, checked entry by entry."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from probe.common import files, log
from probe.common.dump.frameworks import of_dump
from probe.common.errors import MsprobeException
from probe.common.show import show
from probe.common.yaml_file import load_yaml

# Texts that YAML reads without quotes; N/A is one.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./]*\Z")
_NO_TEXTS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))

# Keys of an entry of an API mapping, by what they number; the second spelling is what msProbe reads in fact.
_POSITIONS = {
    "input": ("args",),
    "output": ("outputs", "output"),
    "parameters": ("parameters",),
    "parameters_grad": ("parameters_grad",),
}


@dataclass(frozen=True)
class ApiEntry:
    """One API of the target, its counterpart, and which of its items correspond."""

    target: str
    golden: str
    positions: dict[str, dict[str, str]]
    """The golden position or name for each one of the target, by state."""


def load_mapping(path: str, expected: str) -> dict[Any, Any]:
    """The keys and values of a YAML file, which may be empty; `expected` says in words what they should be.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise MsprobeException(f"{path}: expected {expected}, found a {type(content).__name__}.")
    return content


@cache
def api_names() -> dict[str, str]:
    """APIs of MindSpore and their counterparts in PyTorch, where the names in a dump differ."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_names.yaml")
    return load_names(path)


def translated_names(framework: str) -> dict[str, str]:
    """The names of `api_names` where the APIs of the framework have names of their own, else none."""
    return api_names() if of_dump(framework).has_own_names else {}


def load_names(path: str) -> dict[str, str]:
    """A file of names to names: a cell mapping or a data mapping.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_mapping(path, "lines of the form `name: name`")
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise MsprobeException(f"{path}: {show(key)}: {show(value)}: both sides are names.")
    return content


def load_api_entries(path: str) -> list[ApiEntry]:
    """A file of API mappings, one entry or a list of them; what is wrong in one is logged and the entry left out.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else.
    """
    content = load_yaml(path)
    if isinstance(content, dict):
        content = [content]
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise MsprobeException(f"{path}: expected one entry with ms_api and pt_api, or a list of such entries.")
    entries = (_api_entry(path, number, entry) for number, entry in enumerate(content))
    return [entry for entry in entries if entry is not None]


def _api_entry(path: str, number: int, entry: dict[str, Any]) -> ApiEntry | None:
    target, golden = entry.get("ms_api"), entry.get("pt_api")
    if not isinstance(target, str) or not isinstance(golden, str):
        text = f"{path}: entry {number} is left out: ms_api and pt_api must be names."
        log.warning(text, once=text)
        return None
    positions = {}
    for state, spellings in _POSITIONS.items():
        ours, theirs = _listed(entry, "ms", spellings), _listed(entry, "pt", spellings)
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            kinds = f"ms_{spellings[0]} and pt_{spellings[0]}"
            text = f"{path}: entry {number} ({target}) is left out: {kinds} must be lists of one length."
            log.warning(text, once=text)
            return None
        positions[state] = {str(mine): str(other) for mine, other in zip(ours, theirs)}
    return ApiEntry(target, golden, positions)


def _listed(entry: dict[str, Any], side: str, spellings: tuple[str, ...]) -> Any:
    return next((entry[f"{side}_{word}"] for word in spellings if f"{side}_{word}" in entry), [])


def write_names(path: str, names: dict[str, str]) -> None:
    """Write names to names, in a form that `load_names` reads."""
    with files.replacing(path) as stream:
        for name, other in names.items():
            stream.write(f"{scalar(name)}: {scalar(other)}\n".encode())


def scalar(text: str) -> str:
    """`text` as a YAML scalar that is read as the same text."""
    # A JSON text is one of YAML too.
    return text if _PLAIN.match(text) and text.lower() not in _NO_TEXTS else json.dumps(text)
