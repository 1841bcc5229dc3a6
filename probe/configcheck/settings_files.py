"""Settings files of any kind as flat names and plain values: shell, YAML, JSON, TOML; also Hydra's and OmegaConf's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.common import files
from probe.common.containers import MOST_LEVELS, is_too_deep
from probe.common.data_files import load_yaml, parse_yaml
from probe.common.environment.gathered import is_secret_name, is_secret_value
from probe.common.errors import FileCheckException, MissingDependency, MsprobeException
from probe.configcheck.meanings import REFERENCES, plain_name
from probe.configcheck.shell import read_script

SHELL, YAML, JSON, TOML = (".sh", ".bash", ".slurm", ".sbatch"), (".yaml", ".yml"), (".json",), (".toml",)
ALLOWED = "a shell script (.sh, .bash, .slurm, .sbatch), YAML (.yaml, .yml), JSON (.json) or TOML (.toml)"
_LARGEST = 16 << 20
"""Bytes of a file of settings; a guess beyond any known one."""


@dataclass
class SettingsFile:
    """The content of a settings file, or of a start script.

    Args:
        sources: Settings by the place in which they are written: the file, a further launch of a script, or a file that
            the script writes.
        exported: The environment variables that a script exports.
        notes: Sentences about what was not followed.
    """

    sources: dict[str, dict[str, Any]]
    exported: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_settings(path: str) -> SettingsFile:
    """The hyper-parameters in a file, with dots between the names of nested ones.

    Raises:
        FileCheckException: it cannot be read, or is of no known kind.
        MsprobeException: its content is not valid.
    """
    suffix = os.path.splitext(path)[1].lower()
    name = os.path.basename(path)
    if not path:
        raise FileCheckException(f"the path of a start script or settings file is empty; allowed: {ALLOWED}.")
    if os.path.isdir(path):
        raise FileCheckException(f"{path} is a folder; allowed: {ALLOWED}.")
    if suffix not in (*SHELL, *YAML, *JSON, *TOML):
        ending = f"ends with {suffix!r}" if suffix else "has no suffix"
        raise FileCheckException(f"{path}: the file name {ending}; allowed: {ALLOWED}.")
    if suffix in YAML:
        settings = flat(_mapping(path, load_yaml(path)))
        return SettingsFile({name: settings}, notes=_twice(path, suffix, _text(path)))
    text = _text(path)
    if suffix not in SHELL:
        return SettingsFile({name: _parsed(path, suffix, text)}, notes=_twice(path, suffix, text))
    try:
        script = read_script(text)
    except RecursionError:
        raise MsprobeException(f"{path}: quotes, brackets or commands are nested too deeply to be read.") from None
    found = SettingsFile({}, script.environment, [f"{path}: {note}." for note in script.notes])
    for number, launch in enumerate(script.launches, 1):
        found.sources[f"{name} ({number})" if number > 1 else name] = launch
    if not script.launches:
        found.sources[name] = {}
        found.notes.append(
            f"{path}: no command in it starts a training that is known: its variables alone are compared."
        )
    for document, content in script.documents.items():
        try:
            kind = os.path.splitext(document)[1].lower()
            found.sources[f"{name}: {document}"] = _parsed(path, kind, content)
        except MsprobeException as error:
            found.notes.append(f"{document}, which {path} writes, is not read: {error}")
    return found


def _twice(path: str, suffix: str, text: str) -> list[str]:
    """A sentence for each key that one mapping of a valid file has twice; the last one counts."""
    found: list[str] = []

    def note(key: str, values: list[Any]) -> None:
        if is_secret_name(key):
            return
        found.append(
            f"{path}: {key} is there {len(values)} times: {', '.join(map(str, values))}; the last one is compared."
        )

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        for key in {key: None for key, _ in items}:
            values = [value for each, value in items if each == key]
            if len(values) > 1:
                note(key, [value for value in values if not isinstance(value, (dict, list))])
        return dict(items)

    if suffix in JSON:
        json.loads(text, object_pairs_hook=pairs)
    elif suffix in YAML:
        import yaml

        waiting = [yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))]
        while waiting:
            node = waiting.pop()
            if isinstance(node, yaml.MappingNode):
                keys: dict[str, list[str]] = {}
                for key, value in node.value:
                    keys.setdefault(str(key.value), []).append(
                        str(value.value) if isinstance(value, yaml.ScalarNode) else "..."
                    )
                    waiting.append(value)
                for key, values in keys.items():
                    if len(values) > 1:
                        note(key, values)
            elif isinstance(node, yaml.SequenceNode):
                waiting += node.value
    return [sentence for sentence in found if not is_secret_value(sentence)]


def referenced_files(path: str, settings: Mapping[str, Any]) -> list[str]:
    """Settings files that options of a launch name and that exist, next to the script or in the working folder."""
    found = []
    for name, value in settings.items():
        if (
            plain_name(name).rpartition(".")[2] in REFERENCES
            and isinstance(value, str)
            and value.endswith((*YAML, *JSON))
        ):
            places = (os.path.join(os.path.dirname(path), value), value)
            found += [place for place in places if os.path.isfile(place)][:1]
    return found


def _parsed(path: str, suffix: str, text: str) -> dict[str, Any]:
    try:
        if suffix in YAML:
            return flat(_mapping(path, parse_yaml(path, text.encode())))
        return flat(_mapping(path, json.loads(text) if suffix in JSON else _toml(text)))
    except MsprobeException:
        raise
    except (ValueError, RecursionError) as error:  # of json and toml, which derive theirs from it
        reason = " ".join(str(error).split())
        raise MsprobeException(f"{path}: not valid {suffix[1:].upper()}: {reason}.") from None


def _text(path: str) -> str:
    try:
        with files.open_for_reading(path) as stream:
            content = stream.read(_LARGEST + 1)
    except OSError as error:
        raise FileCheckException(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > _LARGEST:
        raise FileCheckException(f"{path} is larger than {_LARGEST >> 20} MiB, more than a settings file may have.")
    return content.decode("utf-8-sig", "replace")


def _toml(text: str) -> Any:
    try:
        import tomllib
    except ImportError:  # before Python 3.11
        try:
            import tomli as tomllib  # type: ignore[import-not-found,no-redef]
        except ImportError:
            raise MissingDependency("TOML files need Python 3.11 or tomli: pip install tomli.") from None
    return tomllib.loads(text)


def _mapping(path: str, content: Any) -> Mapping[Any, Any]:
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise MsprobeException(f"{path} holds a {type(content).__name__}; allowed: names with values.")
    if is_too_deep(content):
        raise MsprobeException(f"{path} is nested too deeply; allowed: {MOST_LEVELS} levels.")
    return content


def flat(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Nested mappings with dots between the names; lists of plain values stay lists."""
    return dict(_items(content, ""))


def _items(content: Mapping[Any, Any], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _items(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(each, (Mapping, list)) for each in value):
            yield from _items(dict(enumerate(value)), f"{name}.")
        else:
            yield name, value if isinstance(value, (bool, int, float, str, list, type(None))) else str(value)
