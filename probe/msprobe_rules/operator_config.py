"""The configuration file of msProbe's generator of single-operator scripts, release 8.1."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from probe.calls.cases import Case
from probe.common import files, log
from probe.common.config.fields import Location, one_of, parse_path
from probe.common.config.json_file import read_object
from probe.common.dump.naming import BACKWARD, FORWARD, is_module, parse
from probe.common.dump.reading.dump import Dump

T = TypeVar("T")
_MOST_TIMES = 1000
_MOST_SEED = 2**32 - 1


@dataclass(frozen=True)
class OperatorConfig:
    """What such a file asks for."""

    dump: str
    """The dump.json."""
    name: str
    """``Functional.softmax.0``."""
    direction: str
    """``forward`` or ``backward``."""
    extract: str
    """Where the record is written on its own; empty for nowhere."""
    generate: bool
    """True if inputs are random numbers in the range of the recorded ones."""
    seed: int
    times: int
    """How many sets of random inputs are tried."""

    @property
    def record(self) -> str:
        """The record that is run again."""
        return f"{self.name}.{self.direction}"


def read_operator_config(path: str) -> OperatorConfig:
    """The settings of the file at `path`.

    Raises:
        FileCheckException: there is no such file.
        MsprobeException: a key is missing, or its value is wrong; the message names both, and what is allowed.
    """
    content = read_object(path)
    for key in content:
        if key not in _PARSERS:
            log.warning(f'{path}: "{key}" has no effect; known: {", ".join(_PARSERS)}.')
    found = {key: _value(path, content, key) for key in _PARSERS}
    generate = found["data_mode"] == "random_data"
    return OperatorConfig(
        found["dump_json_path"], found["api_name"], found["propagation"], found["extract_api_path"], generate,
        found["random_seed"], found["iter_times"] if generate else 1,
    )  # fmt: skip


def _value(path: str, content: dict[str, object], key: str) -> Any:
    parser, default = _PARSERS[key]
    return parser(content.get(key, default), Location(path, key))


def _api_name(value: object, location: Location) -> str:
    named = parse(f"{value}.{FORWARD}") if isinstance(value, str) else None
    if named is None or is_module(str(value)):
        raise location.wrong(value, 'the name of a call without its direction, such as "Functional.softmax.0"')
    return str(value)


def _optional_path(value: object, location: Location) -> str:
    return "" if value == "" else parse_path(value, location)


def _dump_path(value: object, location: Location) -> str:
    if not isinstance(value, str) or not value:
        raise location.wrong(value, "the path of a dump.json")
    return value


def _whole(least: int, most: int) -> Callable[[object, Location], int]:
    def parse_number(value: object, location: Location) -> int:
        if type(value) is not int or not least <= value <= most:
            raise location.wrong(value, f"a whole number from {least} to {most}")
        return value

    return parse_number


_PARSERS: dict[str, tuple[Callable[[object, Location], Any], object]] = {
    "dump_json_path": (_dump_path, None),
    "api_name": (_api_name, None),
    "extract_api_path": (_optional_path, ""),
    "propagation": (one_of(FORWARD, BACKWARD), FORWARD),
    "data_mode": (one_of("random_data", "real_data"), "random_data"),
    "random_seed": (_whole(0, _MOST_SEED), 1234),
    "iter_times": (_whole(1, _MOST_TIMES), 1),
}
"""The way in which each key is read, and what it is without."""


def extract(dump: Dump, case: Case, path: str) -> None:
    """Write the records of one call as a dump of its own, without tensors.

    Raises:
        FileCheckException: the folder cannot be made.
        OSError: the file cannot be written.
    """
    records = [record for record in (case.forward, case.backward) if record is not None]
    content = {
        "task": dump.task, "level": dump.level, "framework": dump.framework, "dump_data_dir": "",
        "data": {record.name: record.fields for record in records},
    }  # fmt: skip
    files.make_folder(os.path.dirname(os.path.abspath(path)))
    with files.replacing(path) as stream:
        stream.write(json.dumps(content, indent=1).encode())
