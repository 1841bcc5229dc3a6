"""Reading what a run has written, for the tests.

Plain json and no code of the package: what is read here is what any other reader of the files sees. Everything that
is read is also held against the JSON Schemas, so that no test can pass with a file that breaks the format.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema

from probe.common.dump import schema

try:
    import jsonschema_rs  # a fifth of the time of these tests was validation by jsonschema
except ImportError:
    jsonschema_rs = None


class Dump:
    """The files of one step and process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.head = read_file(folder / "dump.json")
        self.data: dict[str, Any] = self.head["data"]
        self.names = list(self.data)
        self.tree: dict[str, Any] = read_optional(folder / "construct.json")
        self.stacks: dict[str, Any] = read_optional(folder / "stack.json")
        self.journals = sorted(path.name for path in folder.glob("*journal*"))

    @property
    def forward(self) -> list[str]:
        """Names of forward records in their order."""
        return [name for name in self.names if ".forward" in name]

    @property
    def backward(self) -> list[str]:
        return [name for name in self.names if ".backward" in name]

    @property
    def parameter_gradients(self) -> list[str]:
        return [name for name in self.names if ".parameters_grad" in name]

    @property
    def files(self) -> list[str]:
        """Names of the tensor files; an error when there is no folder for them."""
        return sorted(path.name for path in (self.folder / "dump_tensor_data").iterdir())

    @property
    def errors(self) -> str:
        """The tool's own failures; empty when there were none."""
        path = self.folder / "dump_error_info.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def stack_of(self, name: str) -> list[str]:
        """The frames of one record, innermost first."""
        found = [frames for names, frames in self.stacks.values() if name in names]
        assert len(found) == 1, f"{name} stands in {len(found)} entries of stack.json"
        return found[0]


def folders(path: Path) -> list[str]:
    """Everything two levels down, such as ``step0/proc17`` with the process number replaced by N."""
    found = []
    for folder in sorted(path.glob("step*/*")):
        name = "procN" if folder.name.startswith("proc") else folder.name
        found.append(f"{folder.parent.name}/{name}")
    return found


def read(path: Path, step: int = 0, process: str = "proc*") -> Dump:
    """The one dump of a step, validated."""
    found = sorted((path / f"step{step}").glob(process))
    assert len(found) == 1, f"{path} has {folders(path)}"
    return Dump(found[0])


def read_debug(path: Path, step: int = 0) -> Any:
    """The validated content of debug.json, the only json file of its folder."""
    (folder,) = (path / f"step{step}").iterdir()
    assert [file.name for file in folder.glob("*.json")] == ["debug.json"]
    return read_file(folder / "debug.json")


def read_file(path: Path) -> Any:
    """The content of a file of a dump, validated."""
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    seen = path.stem, hash(text)
    if seen not in _valid and not _is_surely_valid(path.stem, content):
        # Values may be nested 400 levels deep, and a validator of jsonschema takes a dozen calls for each.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(20_000)
        try:
            error = next(iter(validator(path.stem).iter_errors(content)), None)
        finally:
            sys.setrecursionlimit(limit)
        assert error is None, f"{path}: at {list(error.absolute_path)}: {error.message}"
    _valid.add(seen)
    return content


_valid: set[tuple[str, int]] = set()
"""Texts that were found valid: most are read several times, and validating takes long."""


def read_optional(path: Path) -> Any:
    return read_file(path) if path.exists() else None


def _is_surely_valid(name: str, content: Any) -> bool:
    """Ask the faster library, which does not read NaN and deep nesting: what it refuses is judged by the other."""
    try:
        return jsonschema_rs is not None and bool(_fast_validator(name).is_valid(content))
    except ValueError:
        return False


@functools.cache
def _fast_validator(name: str) -> Any:
    return jsonschema_rs.validator_for(schema.load(name))


@functools.cache
def validator(name: str) -> Any:
    content = schema.load(name)
    kind = jsonschema.validators.validator_for(content)
    kind.check_schema(content)
    return kind(content)


def tensors(value: Any) -> list[dict[str, Any]]:
    """Every tensor entry below `value`, in order."""
    if isinstance(value, dict):
        if "dtype" in value and "shape" in value:
            return [value]
        return [entry for item in value.values() for entry in tensors(item)]
    if isinstance(value, list):
        return [entry for item in value for entry in tensors(item)]
    return []
