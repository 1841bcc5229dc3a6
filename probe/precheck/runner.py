"""Checks the cases of a dump, here or in several processes, and writes down each as soon as it is done."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from probe.backends.protocol import execution_of
from probe.calls import memory
from probe.calls.cases import Case, Selection, cases_of, may_end_process
from probe.common import log
from probe.common.dump.nearest_names import nearest
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.common.parallel.memory import of_machine
from probe.common.parallel.run import run
from probe.common.parallel.tasks import Outcomes, ProcessDied, Where, attempt, processors
from probe.common.progress import ProgressCallback
from probe.precheck.check import CheckOptions
from probe.precheck.options import PrecheckOptions
from probe.precheck.output.report import Report
from probe.precheck.output.run_output import Output, OutputFiles
from probe.precheck.output.settings import RunSettings
from probe.precheck.result import CaseResult
from probe.precheck.work import (
    CASES_OF_A_PART,
    MOST_OF_A_PART,
    PARTS_OF_A_PROCESS,
    LoadAdapter,
    Part,
    check_part,
    device_for,
    opened,
)


def precheck(path: str, options: PrecheckOptions, load: LoadAdapter, watch: ProgressCallback | None = None) -> Report:
    """Run every recorded call of a dump again alone and judge it.

    Args:
        path: A dump.json, a journal, or the folder that holds one.
        options: What is checked, and how.
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
        most = memory.default_limit(of_machine(), options.where.jobs or processors())
    else:
        most *= memory.GB
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
