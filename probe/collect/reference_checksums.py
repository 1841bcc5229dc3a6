"""``bench_path``: find the calls whose inputs are those of a reference run and whose outputs are not."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from probe.common import files, log


class ReferenceChecksums:
    """The checksums of a reference run.

    Args:
        bench_path: The dump path of the reference run.
        limit: Differences after which collection ends; -1 for never.
    """

    def __init__(self, bench_path: str, limit: int) -> None:
        self._bench_path = bench_path
        self._limit = limit
        self._found = 0
        self._data: dict[str, Any] = {}

    def load(self, relative: str) -> None:
        """Read one folder of the reference, such as ``step0/rank0``."""
        self._data = {}
        path = _dump_file(self._bench_path, relative)
        if path is None:
            log.warning(f"bench_path {self._bench_path} has no dump of {relative}: nothing to compare this step with.")
            return
        try:
            with files.open_for_reading(path) as stream:
                content = json.load(stream)
        except (OSError, ValueError, RecursionError) as error:
            log.warning(f"{path} cannot be read ({error}): nothing to compare this step with.")
            return
        data = content.get("data") if isinstance(content, dict) else None
        if isinstance(data, dict):
            self._data = data
        else:
            log.warning(f"{path} is no dump: nothing to compare this step with.")

    def differs(self, name: str, fields: dict[str, Any]) -> bool:
        """Whether the call has the reference's inputs but not its outputs; counted."""
        reference = self._data.get(name)
        if not isinstance(reference, dict) or "output" not in fields:
            return False
        for part in ("input_args", "input_kwargs"):
            if _checksums(fields.get(part)) != _checksums(reference.get(part)):
                return False
        if _checksums(fields["output"]) == _checksums(reference.get("output")):
            return False
        self._found += 1
        return True

    def enough(self) -> bool:
        return self._limit != -1 and self._found >= self._limit


def _dump_file(bench_path: str, relative: str) -> str | None:
    """The reference's dump.json; process numbers of two runs differ, so a lone ``proc`` folder stands for any."""
    step, process = os.path.split(relative)
    folder = os.path.join(bench_path, step)
    if not os.path.isdir(folder):
        return None
    if process.startswith("proc"):
        found = sorted(name for name in os.listdir(folder) if name.startswith("proc"))
        if len(found) != 1:
            return None
        process = found[0]
    path = os.path.join(folder, process, "dump.json")
    return path if os.path.isfile(path) else None


def _checksums(value: Any) -> list[Any]:
    return list(_each_checksum(value))


def _each_checksum(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        if "md5" in value:
            yield value["md5"]
        else:
            for item in value.values():
                yield from _each_checksum(item)
    elif isinstance(value, list):
        for item in value:
            yield from _each_checksum(item)
