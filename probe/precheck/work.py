"""The part of a pre-check that one process does: some cases of one dump."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from probe.backends.protocol import Execution, FrameworkAdapter, execution_of
from probe.calls.cases import Case, Selection, cases_of, may_end_process, unchecked
from probe.calls.prepared import RECORDED
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.common.parallel.tasks import ProcessDied
from probe.precheck.check import CheckOptions, check
from probe.precheck.result import CaseResult

LoadAdapter = Callable[[str], FrameworkAdapter]
"""Gives the adapter of a framework by the name that dumps have for it; a function at the top of a module."""
CASES_OF_A_PART = 64
"""Cases that one process takes at once: a tenth of a second of small ones."""
MOST_OF_A_PART = 512
"""Cases that one of several processes takes at once at most, ..."""
PARTS_OF_A_PROCESS = 6
"""... and so many parts are there for each."""


@dataclass(frozen=True)
class Part:
    """Some cases of one dump."""

    path: str
    """The dump."""
    first: int
    last: int
    """The numbers of its cases, the last one exclusive."""
    selection: Selection
    options: CheckOptions
    load: LoadAdapter
    version: tuple[int, int]
    """The time when the dump was changed, and its size: a process that has read an older one reads it again."""

    def absolute(self) -> Part:
        """The same for a process that runs in another folder."""
        error_data = self.options.error_data
        options = replace(self.options, error_data=None if error_data is None else os.path.abspath(error_data))
        return replace(self, path=os.path.abspath(self.path), options=options)


@dataclass(frozen=True)
class Opened:
    """A dump, its cases, and the framework that runs them."""

    dump: Dump
    cases: Sequence[Case]
    adapter: FrameworkAdapter


@lru_cache(maxsize=1)
def opened(path: str, selection: Selection, load: LoadAdapter, version: tuple[int, int] = (0, 0)) -> Opened:
    """The objects that a process needs for all parts of one dump, of this `Part.version`."""
    dump = read(path)
    cases = cases_of(dump, selection)
    adapter = load(dump.framework)
    return Opened(dump, cases, adapter)


def device_for(execution: Execution, wanted: str) -> str:
    """The device of that name; for an empty one the accelerator that is there, or else the CPU.

    Raises:
        MsprobeException: it is not there.
    """
    there = execution.devices()
    if not wanted:
        return there[0]
    if wanted == RECORDED or wanted in there:
        return wanted
    # Scripts written for msProbe give the number alone.
    of_number = [name for name in there if name.rpartition(":")[2] == wanted]
    if wanted.isdecimal() and of_number:
        return of_number[0]
    if wanted == "0" and there == ["cpu"]:
        return "cpu"
    raise MsprobeException(f"--device is {wanted!r}; this machine has {', '.join(there)}; {RECORDED} is allowed too.")


def check_part(part: Part) -> list[CaseResult]:
    """Check the cases of a part, in order; the process has the random states and threads that it had before."""
    found = opened(part.path, part.selection, part.load, part.version)
    execution = execution_of(found.adapter)
    options = replace(part.options, device=device_for(execution, part.options.device))
    states = execution.random_states()
    try:
        with execution.one_thread():
            return [_checked(found, case, part.selection, options) for case in found.cases[part.first : part.last]]
    finally:
        execution.set_random_states(states)


def try_elsewhere(path: str, case: Case, options: CheckOptions, load: LoadAdapter) -> None:
    """Run a call in a process of its own if it may end that, before it is run in this one.

    Raises:
        ProcessDied: it ended it.
    """
    if not may_end_process(case) or unchecked(case):
        return
    from probe.common.parallel.worker_processes import in_processes

    selection = Selection()
    number = [each.name for each in cases_of(read(path), selection)].index(case.name)
    part = Part(path, number, number + 1, selection, options, load, (0, 0)).absolute()
    for outcome in in_processes(check_part, [part], 1):
        if isinstance(outcome.error, ProcessDied):
            raise ProcessDied(f"{case.name} is not run: {outcome.error}", outcome.error.pid)


def _checked(found: Opened, case: Case, selection: Selection, options: CheckOptions) -> CaseResult:
    left_out = selection.leaves_out(case.base)
    if left_out is not None:
        return CaseResult(case.name, case.base, not_run=left_out, stands_for=case.stands_for)
    return check(found.adapter, found.dump, case, options)
