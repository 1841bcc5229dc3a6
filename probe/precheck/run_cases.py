"""Checks the cases of a dump, here or in several processes, and writes down each as soon as it is done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache

from probe.backends.protocol import Execution, FrameworkAdapter, execution_of
from probe.calls import prepared
from probe.calls.cases import Case, Selection, cases_of, may_end_process, unchecked
from probe.calls.prepared import RECORDED
from probe.common import log
from probe.common.dump.naming import nearest
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.common.parallel.run_tasks import run
from probe.common.parallel.tasks import Outcomes, ProcessDied, Where, attempt, machine_bytes, processors
from probe.common.progress import ProgressCallback
from probe.precheck.case_results import CaseResult
from probe.precheck.check import CheckOptions, check
from probe.precheck.options import PrecheckOptions
from probe.precheck.report import Report, RunSettings
from probe.precheck.run_output import Output, OutputFiles

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
        """The part for a process that runs in another folder."""
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
            return [_checked_case(found, case, part.selection, options) for case in found.cases[part.first : part.last]]
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


def _checked_case(found: Opened, case: Case, selection: Selection, options: CheckOptions) -> CaseResult:
    left_out = selection.leaves_out(case.base)
    if left_out is not None:
        return CaseResult(case.name, case.base, not_run=left_out, stands_for=case.stands_for)
    return check(found.adapter, found.dump, case, options)


def precheck(path: str, options: PrecheckOptions, load: LoadAdapter, watch: ProgressCallback | None = None) -> Report:
    """Run every recorded call of a dump again alone and judge it.

    Args:
        path: A dump.json, a journal, or the folder that holds one.
        options: The cases to check, and how.
        load: Gives the adapter of the framework that the dump names.
        watch: Called with how many cases are done.

    Raises:
        MsprobeException: the dump is none that can be checked, or an option does not fit.
    """
    dump = read(path)
    cases = cases_of(dump, options.selection)
    if not cases:
        raise MsprobeException(f"{dump.path} has no call of a function; collect at level L1 or mix.")
    _check_names(options.selection, cases)
    execution = execution_of(load(dump.framework))
    devices = [device_for(execution, wanted) for wanted in options.devices or ("",)]
    began = time.monotonic()
    with _output(dump, devices, options) as output:
        other = output.done.difference(case.name for case in cases)
        if other:
            table = f"{options.resume} contains {min(other)}, which {dump.path} does not contain"
            raise MsprobeException(f"{table}. The table belongs to another dump; give that dump, or no -csv_path.")
        jobs = options.where.jobs or processors()
        parts = _parts(cases, output.done, jobs)
        checked = 0
        found = _checked(dump.path, cases, parts, devices, options, load, output.error_data)
        for checked, result in enumerate(found, 1):
            output.add(result)
            if watch is not None:
                rate = checked / (time.monotonic() - began)
                watch(f"cases, {rate:.0f} a second", len(output.done) + checked, len(cases))
        results = output.results(case.name for case in cases)
        seconds = time.monotonic() - began
        report = Report(dump.path, dump.framework, ", ".join(devices), results, seconds, checked, dump.ending)
        return output.finish(report)


def _output(dump: Dump, devices: Sequence[str], options: PrecheckOptions) -> Output:
    if options.output is None:
        return Output()
    settings = RunSettings.of(dump.path, devices, options)
    return OutputFiles(options.output, options, dump.framework, settings)


def _check_names(selection: Selection, cases: Sequence[Case]) -> None:
    """Warn of a name on a list that no call of the dump has, with the nearest names.

    Raises:
        MsprobeException: no name on the white list is that of a call.
    """
    names = {case.base.rpartition(".")[2] for case in cases}
    for listed, wanted in (("white_list", selection.white_list), ("black_list", selection.black_list)):
        unknown = sorted(set(wanted) - names)
        for name in unknown:
            near = nearest(name, names)
            hint = f"; nearest names: {', '.join(near)}" if near else ""
            text = f'"{listed}" has "{name}", which is the name of no call of this dump{hint}.'
            if listed == "white_list" and len(unknown) == len(set(wanted)):
                raise MsprobeException(text)
            log.warning(text)


def _parts(cases: Sequence[Case], done: Collection[str], jobs: int) -> list[tuple[int, int]]:
    """Consecutive cases that are still to be done, as many together as a process takes at once.

    Several processes take some parts each, so that none waits long for the others at the end; each part costs them a
    search for garbage.
    """
    left = len(cases) - len(done)
    most = CASES_OF_A_PART if jobs == 1 else max(1, min(MOST_OF_A_PART, left // (jobs * PARTS_OF_A_PROCESS)))
    found: list[tuple[int, int]] = []
    for number, case in enumerate(cases):
        if case.name in done:
            continue
        if found and found[-1][1] == number and number - found[-1][0] < most:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found


def _outcomes(tasks: Sequence[Part], apart: Sequence[bool], where: Where) -> Outcomes[list[CaseResult]]:
    """Results of the parts. Of those that this process would do, another one does those that may end it."""
    if where.dask is not None or min(where.jobs or processors(), len(tasks)) > 1:
        yield from run(where, check_part, tasks)
        return
    from probe.common.parallel.worker_processes import in_processes

    with closing(in_processes(check_part, [task for task, alone in zip(tasks, apart) if alone], 1)) as elsewhere:
        for task, alone in zip(tasks, apart):
            yield next(elsewhere) if alone else attempt(check_part, task)


def _one_by_one(part: Part, cases: Sequence[Case]) -> Iterator[CaseResult]:
    """The cases of a part whose process died, each alone: one that ends its process has that as its result."""
    from probe.common.parallel.worker_processes import in_processes

    tasks = [replace(part, first=number, last=number + 1) for number in range(part.first, part.last)]
    with closing(in_processes(check_part, tasks, 1)) as outcomes:
        for case, outcome in zip(cases[part.first : part.last], outcomes):
            log.show(outcome.logged)
            if outcome.value is not None:
                yield from outcome.value
            elif isinstance(outcome.error, ProcessDied):
                yield CaseResult(case.name, case.base, not_run=str(outcome.error), stands_for=case.stands_for)
            else:
                raise outcome.error or AssertionError(f"{case.name} has neither a result nor an error")


def _checked(
    path: str,
    cases: Sequence[Case],
    parts: Sequence[tuple[int, int]],
    devices: Sequence[str],
    options: PrecheckOptions,
    load: LoadAdapter,
    error_data: str | None,
) -> Iterator[CaseResult]:
    """The results of the parts, each as soon as it and those before it are done."""
    status = os.stat(path)
    version = status.st_mtime_ns, status.st_size
    most = options.max_memory
    if most is None:
        most = prepared.default_limit(machine_bytes(), options.where.jobs or processors())
    else:
        most *= prepared.GB
    # Nobody reads rows of tables that are not written.
    rules = None if options.output is None else options.rules
    tasks = [
        Part(
            path,
            first,
            last,
            options.selection,
            CheckOptions(devices[number % len(devices)], options.seed, rules, error_data, most),
            load,
            version,
        ).absolute()
        for number, (first, last) in enumerate(parts)
    ]
    apart = [any(map(may_end_process, cases[first:last])) for first, last in parts]
    with closing(_outcomes(tasks, apart, options.where)) as outcomes:
        for task, outcome in zip(tasks, outcomes):
            log.show(outcome.logged)
            if outcome.value is not None:
                yield from outcome.value
            elif isinstance(outcome.error, ProcessDied) and options.where.dask is None:
                yield from _one_by_one(task, cases)
            else:
                raise outcome.error or AssertionError(f"{task} has neither a result nor an error")
    # Its data of the dump is not needed any more.
    opened.cache_clear()
