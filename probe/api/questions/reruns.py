"""``compare --rerun``: the engine of ``replay`` for the calls that a comparison suspects."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Union

from probe.api.precheck import load
from probe.backends.protocol import execution_of
from probe.calls import memory
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.runs import find_dumps
from probe.common.errors import FrameworkError, MissingDependency, MsprobeException
from probe.common.parallel.memory import of_machine
from probe.compare.reruns import RunAgain
from probe.compare.result import Rerun
from probe.precheck.work import device_for
from probe.rerun.exchanged import RecordOf, exchange
from probe.shards.split import Split

Path = Union[str, "os.PathLike[str]"]
_FLAG = "--rerun"


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
    most = memory.default_limit(of_machine(), 1) if max_memory is None else max_memory * memory.GB

    def run_again(of_target: Dump, record: str, of_golden: Dump, golden_record: str) -> Rerun:
        sides = RecordOf(of_target, record), RecordOf(of_golden, golden_record)
        found = exchange(execution, *sides, device, most)
        return Rerun(found.answer, found.sentence, found.by_inputs, found.by_call)

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
