"""Settings files of any kind as flat names and plain values: shell, YAML, JSON, TOML; also Hydra's and OmegaConf's."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from probe.common import files, log
from probe.common.errors import FileCheckException, MissingDependency, MsprobeException
from probe.common.yaml_file import load_yaml
from probe.configcheck.hyper.shell import arguments_of, environment_of, uncertain_arguments

SHELL, YAML, JSON, TOML = (".sh", ".bash"), (".yaml", ".yml"), (".json",), (".toml",)
ALLOWED = "a shell script (.sh, .bash), YAML (.yaml, .yml), JSON (.json) or TOML (.toml)"
_LARGEST = 16 << 20


def settings_of(path: str) -> dict[str, Any]:
    """The hyper-parameters in a file, with dots between the names of nested ones.

    Raises:
        FileCheckException: it cannot be read, or is of no known kind.
        MsprobeException: its content is not valid.
    """
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in (*SHELL, *YAML, *JSON, *TOML):
        raise FileCheckException(f"{path}: the file name ends with {suffix or 'nothing'!r}; allowed: {ALLOWED}.")
    if suffix in YAML:
        return flat(_mapping(path, load_yaml(path)))
    text = _text(path)
    if suffix in SHELL:
        uncertain = uncertain_arguments(text)
        if uncertain:
            log.warning(
                f"{path}: {', '.join(uncertain)} depend{'s' if len(uncertain) == 1 else ''} on an if or a case. The "
                "script is not run: every branch is taken, and the last value is kept. Look at these values yourself."
            )
        return arguments_of(text)
    try:
        return flat(_mapping(path, json.loads(text) if suffix in JSON else _toml(text)))
    except (ValueError, RecursionError) as error:
        raise MsprobeException(f"{path}: not valid {suffix[1:].upper()}: {error}.") from None


def exported_in(path: str) -> dict[str, str]:
    """The environment variables that a start script exports; none for a file of another kind.

    Raises:
        FileCheckException: it cannot be read.
    """
    return environment_of(_text(path)) if os.path.splitext(path)[1].lower() in SHELL else {}


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
