"""``bench_path``: find the calls whose inputs are those of a reference run and whose outputs are not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from probe.common import log
from probe.common.dump.layout import DUMP_FILE, is_without_rank
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import processes_of
from probe.common.errors import DumpFormatError, FileCheckException


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
        self._dump: Dump | None = None
        self._compared = 0
        """The calls of this step that the reference has as well."""
        self._other_inputs: list[str] = []
        """The calls whose inputs differ from the reference; their outputs are not compared."""

    def load(self, relative: str) -> None:
        """Read one folder of the reference, such as ``step0/rank0``."""
        self._dump = None
        self._compared, self._other_inputs = 0, []
        path = _dump_file(self._bench_path, relative)
        if path is None:
            log.warning(f"bench_path {self._bench_path} has no dump of {relative}: nothing to compare this step with.")
            return
        try:
            self._dump = read(path)
        except (DumpFormatError, FileCheckException) as error:
            log.warning(f"{error} There is nothing to compare this step with.")

    def differs(self, name: str, fields: dict[str, Any]) -> bool:
        """True if the call has the reference's inputs but not its outputs; counted."""
        if self._dump is None or name not in self._dump or "output" not in fields:
            return False
        reference = self._dump[name].fields
        if not isinstance(reference, dict):
            return False
        self._compared += 1
        for part in ("input_args", "input_kwargs"):
            if _checksums(fields.get(part)) != _checksums(reference.get(part)):
                self._other_inputs.append(name)
                return False
        if _checksums(fields["output"]) == _checksums(reference.get("output")):
            return False
        self._found += 1
        return True

    def log_other_inputs(self, step: str) -> None:
        """Log how many calls of the step `step` have other inputs than in the reference, and the first of them."""
        if self._other_inputs:
            count, first = len(self._other_inputs), self._other_inputs[0]
            log.info(
                f"{step}: {count} of {self._compared} calls have other inputs than in bench_path, so their outputs are "
                f"not compared; the first is {first}."
            )
        self._compared, self._other_inputs = 0, []

    def enough(self) -> bool:
        return self._limit != -1 and self._found >= self._limit


def _dump_file(bench_path: str, relative: str) -> str | None:
    """The reference's dump.json. Process numbers of two runs differ, so that of a lone process stands for any."""
    step, process = os.path.split(relative)
    folder = os.path.join(bench_path, step)
    if not os.path.isdir(folder):
        return None
    if is_without_rank(process):
        found = [each.name for each in processes_of(folder).folders if not each.has_rank]
        if len(found) != 1:
            return None
        process = found[0]
    path = os.path.join(folder, process, DUMP_FILE)
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
