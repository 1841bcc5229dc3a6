"""Recorded and running calls checked from Python: acc_check, replay, compare --rerun, online_check, and modules."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from probe.api.rules import STANDARDS, case_rules
from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter, execution_of
from probe.calls import prepared
from probe.calls.prepared import RECORDED
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import find_dumps, only_dump_in
from probe.common.dump.reading.unpacked import refuse_pack
from probe.common.errors import FrameworkError, MissingDependency, MsprobeException
from probe.common.harmless_text import show
from probe.common.parallel.tasks import machine_bytes
from probe.precheck.check import CheckOptions
from probe.precheck.run_cases import device_for, try_elsewhere
from probe.rerun.emit import emit as write_script
from probe.rerun.exchanged import RecordOf, exchange
from probe.rerun.minimise import MinimisedCall
from probe.rerun.minimise import minimise as make_smaller
from probe.rerun.rerun_call import Rerun, rerun_call, select
from probe.rerun.rerun_report import as_json, lines
from probe.shards.split import Split

if TYPE_CHECKING:
    from probe.compare.in_python import RunAgain
    from probe.precheck.report import Report
    from probe.runtime_checks.online_check import OnlineCheck
    from probe.runtime_checks.precision_checker import PrecisionChecker


def load(framework: str) -> FrameworkAdapter:
    """The adapter of ``pytorch``, ``mindspore`` or ``mindtorch``.

    Raises:
        MissingDependency: the framework is not installed.
        MsprobeException: there is no such framework.
    """
    if framework not in BACKEND_OF:
        allowed = f"allowed: {', '.join(BACKEND_OF)}"
        raise MsprobeException(f'the "framework" of the dump is {framework!r}, which runs no calls; {allowed}.')
    return loader.load(BACKEND_OF[framework])


def acc_check(
    path: str | os.PathLike[str],
    *,
    rules: str | None = None,
    headers: str = "english",
    against: str | None = None,
    standard: str | None = None,
    **options: Any,
) -> Report:
    """Run each recorded call again alone and judge it against a result of higher precision.

    Args:
        path: A dump.json of level L1 or mix, or a folder with one dump: of a process, a step or a run.
        rules: Whose rules judge the drop-in tables; ``msprobe``, or ``probe``, which writes none if it is named.
        headers: ``english`` or ``msprobe``: what the drop-in tables look like.
        against: A table of details of another device, by which the cases are judged as well.
        standard: An older form of `rules`; ``26.2`` is ``msprobe``.
        options: Other fields of `probe.precheck.options.PrecheckOptions`; without ``output`` no files are written, and
            only our own rules judge.

    Raises:
        MsprobeException: the dump is none that can be checked, or an option does not fit.

    Example:
        >>> report = acc_check("dump_path/step0/rank0")  # doctest: +SKIP
        >>> [result.name for result in report.failed]
        ['Functional.silu.0']
    """
    from probe.precheck.options import PrecheckOptions
    from probe.precheck.run_cases import precheck

    if standard is not None and rules is None:
        if standard not in STANDARDS:
            raise MsprobeException(f"standard is {standard!r}; allowed: {', '.join(STANDARDS)}.")
        rules = STANDARDS[standard]
    asked = PrecheckOptions(**options, rules=case_rules(rules, headers, against))
    refuse_pack(os.fspath(path), "acc_check")
    return precheck(only_dump_in(os.fspath(path)).path, asked, load)


# --- replaying


Path = Union[str, "os.PathLike[str]"]
DEFAULT_SEED = 1234
"""The seed of generated inputs where none is given; its value has no meaning."""
_FLAG = "--rerun"


@dataclass(frozen=True, repr=False)
class Replay:
    """A recorded call that was run again; ``print`` of it is the text of ``msprobe replay``."""

    replayed: Rerun
    """The comparisons: each of its ``results`` has the ``difference`` from the recorded one, and the verdicts."""
    smaller: Optional[MinimisedCall] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The call with smaller inputs, where that was asked for."""
    files: Sequence[str] = ()
    """The script, and the files that it reads."""

    @property
    def is_wrong(self) -> bool:
        """True if a result of now, or one of the dump, is wrong."""
        return self.replayed.is_wrong

    @property
    def is_suspect(self) -> bool:
        """True if a result of now, or one of the dump, has an error above what the operation should reach."""
        return self.replayed.is_suspect

    def __str__(self) -> str:
        found = list(lines(self.replayed))
        if self.smaller is not None:
            found += [self.smaller.sentence, *lines(self.smaller.replayed)]
        return "\n".join([*found, *(f"written: {path}" for path in self.files)])

    def __repr__(self) -> str:
        return f"<Replay: {next(lines(self.replayed))}>"

    def as_json(self) -> dict[str, Any]:
        """The outcome as values that JSON has."""
        smaller = None if self.smaller is None else {"text": self.smaller.sentence, **as_json(self.smaller.replayed)}
        return {**as_json(self.replayed), "smaller": smaller, "files": list(self.files)}


def replay(
    dump: Path,
    record: str,
    device: str = "",
    *,
    emit: Path | None = None,
    minimise: bool = False,
    seed: int = DEFAULT_SEED,
    max_memory: float | None = None,
) -> Replay:
    """Run one recorded call again, and compare recorded, now and high precision with each other.

    Args:
        dump: A dump.json, a journal, or a folder with one dump: of a process, a step or a run.
        record: ``Functional.silu.0``; with ``.forward`` or ``.backward`` behind it that direction alone.
        device: ``cpu``, ``cuda:0``, ``npu:0``; the accelerator that is there by default, else the CPU.
        emit: Where a script is written that runs the call without this package.
        minimise: True if inputs are made smaller while the call still fails; the script then has these.
        seed: What inputs are drawn from, where the dump has statistics alone.
        max_memory: GB that the call may take; one that needs more is not run. ``None`` for a quarter of the machine's
            memory.

    Raises:
        MsprobeException: the call is not there, or cannot be run; the message says why.

    Example:
        >>> print(probe.replay("dump.json", "Functional.silu.0"))  # doctest: +SKIP
    """
    opened = read(only_dump_in(os.fspath(dump)).path)
    selected = select(opened, record)
    execution = execution_of(load(opened.framework))
    where = device_for(execution, device)
    if where == RECORDED:
        allowed = ", ".join(execution.devices())
        raise MsprobeException(f"device is {device!r}; replay runs a call: allowed are {allowed}.")
    most = _memory_limit(max_memory)
    try_elsewhere(opened.path, selected.case, CheckOptions(where, seed, max_memory=most), load)
    replayed = rerun_call(execution, opened, selected, where, seed, most)
    smaller = make_smaller(execution, opened, replayed) if minimise else None
    if emit is None:
        return Replay(replayed, smaller)
    shown, sentence = (replayed, "") if smaller is None else (smaller.replayed, smaller.sentence)
    return Replay(replayed, smaller, write_script(execution, shown, os.fspath(emit), sentence))


def _memory_limit(gigabytes: float | None) -> float:
    """In bytes; ``None`` for a quarter of the machine's memory."""
    return prepared.default_limit(machine_bytes(), 1) if gigabytes is None else gigabytes * prepared.GB


def run_again_for(
    target: Path, golden: Path, splits: Sequence[Split] = (), max_memory: float | None = None
) -> RunAgain:
    """A function that runs calls of the target on the golden run's inputs, by the adapter of the target's framework.

    Args:
        target: The run under test.
        golden: The run it is compared with.
        splits: How they are split over ranks; calls of merged ranks have no inputs to be run on.
        max_memory: GB that a call may take; ``None`` for a quarter of the machine's memory.

    Raises:
        MsprobeException: nothing of these runs can be run again here, and why.
    """
    from probe.compare.result import Rerun as RerunOfPair

    if splits:
        raise MsprobeException(f"{_FLAG} runs calls of single ranks; leave it out, or --rank_size.")
    # All dumps of a run have one task and one framework.
    first, _ = (_with_values(os.fspath(path)) for path in (target, golden))
    if first.framework not in BACKEND_OF:
        allowed = ", ".join(BACKEND_OF)
        raise MsprobeException(f'{_FLAG}: "framework" of {first.path} is {first.framework!r}; allowed: {allowed}.')
    try:
        execution = execution_of(load(first.framework))
    except (MissingDependency, FrameworkError) as error:
        raise MsprobeException(
            f"{_FLAG} runs calls of {first.path} again, which needs {first.framework}: {error}"
        ) from None
    device = device_for(execution, "")
    most = _memory_limit(max_memory)

    def run_again(of_target: Dump, record: str, of_golden: Dump, golden_record: str) -> RerunOfPair:
        sides = RecordOf(of_target, record), RecordOf(of_golden, golden_record)
        found = exchange(execution, *sides, device, most)
        return RerunOfPair(found.answer, found.sentence, found.by_inputs, found.by_call)

    return run_again


def _with_values(path: str) -> Dump:
    """The first dump of a run.

    Raises:
        MsprobeException: it does not have values.
    """
    dump = read(find_dumps(path).dumps[0].path)
    if dump.task != "tensor":
        raise MsprobeException(
            f'{_FLAG} runs calls on recorded values, and "task" of {dump.path} is "{dump.task}"; allowed: dumps of '
            '"task": "tensor" on both sides.'
        )
    return dump


# --- online


def online_check(
    backend: str,
    dump_path: str | None,
    api_list: Sequence[str],
    every: int,
    most_elements: int,
    share: float | None,
) -> OnlineCheck:
    """Check every operation inside of a ``with`` block against float64 on the CPU, forward and backward.

    The program's results stay what they are, bitwise. At the end the failing operations are logged.

    Args:
        backend: The backend that the user's import stands for.
        dump_path: A folder for a table of the failing results; without it there is no file.
        api_list: Names of operators, as ``mm``; empty for all.
        every: Check the first call of each operator, and every so many after it.
        most_elements: Leave out calls whose tensors have more elements together.
        share: The part of the program's own time that checking may take; ``None`` for any.

    Raises:
        MsprobeException: an argument is wrong. Entering the block raises it where the framework has no such operators.

    Example:
        >>> with online_check(share=0.5) as check:
        ...     model(batch).sum().backward()
        >>> check.failures
        []
    """
    # Whoever does not ask for it needs no numpy.
    from probe.runtime_checks.online_check import Budget, OnlineCheck

    if isinstance(api_list, str) or not all(isinstance(name, str) for name in api_list):
        raise MsprobeException(f'online_check: api_list is {show(api_list)}; allowed: a list of names, such as ["mm"].')
    return OnlineCheck(loader.serve(backend), Budget(every, most_elements, share), frozenset(api_list), dump_path)


def precision_checker(
    framework: str,
    backend: str | Callable[..., Any],
    threshold: float,
    dump_graphs: bool,
    graph_dir: str,
    cast_dtype: Any,
) -> PrecisionChecker:
    """Check the compiled form of a model's modules against their eager form, while a training runs.

    Args:
        framework: The backend that the user's import stands for.
        backend: The backend of ``torch.compile``: its name, or a function.
        threshold: The absolute difference up to which a row of the table is ``allclose``. The verdict does not use it.
        dump_graphs, graph_dir: Write the text of each compiled graph into the folder.
        cast_dtype: A dtype to which the inputs and the parameters of the compiled form are cast.

    Raises:
        MsprobeException: an argument is wrong, or the framework has no ``torch.compile``.

    Example:
        >>> checker = PrecisionChecker("inductor")
        >>> checker.wrap_all_children(model)
        >>> checker.install(model)
        >>> loss = step(model)
        >>> checker.report(checker.collect(loss), "compiled.csv")
    """
    # Whoever does not ask for it needs no numpy.
    from probe.runtime_checks.precision_checker import PrecisionChecker

    return PrecisionChecker(loader.serve(framework), backend, threshold, dump_graphs, graph_dir, cast_dtype)
