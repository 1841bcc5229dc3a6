"""Independent tasks done here, in worker processes or on a dask cluster."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from probe.common.parallel.tasks import Done, Outcomes, Result, Task, Where, here, processors
from probe.common.progress import ProgressCallback


def run(
    where: Where, work: Callable[[Task], Result], tasks: Sequence[Task], watch: ProgressCallback | None = None
) -> Outcomes[Result]:
    """Do `tasks`; outcomes come in the order of the tasks. A single one is done in this process, unless dask is to.

    Args:
        where: which processes do it.
        work: a function at the top of a module, so that another process finds it by name.
        tasks: values that can be pickled.
        watch: a callback, called each time a task is finished.

    Raises:
        MsprobeException: the cluster cannot be reached, or is lost.
    """
    done = None if watch is None else _counting(watch, len(tasks))
    if where.dask is not None:
        from probe.common.parallel.dask_cluster import on_cluster

        return on_cluster(where.dask, work, tasks, done)
    jobs = min(where.jobs or processors(), len(tasks))
    if jobs <= 1:
        return here(work, tasks, done)
    # Its imports take a fifth of the start of the command.
    from probe.common.parallel.worker_processes import in_processes

    return in_processes(work, tasks, jobs, done)


class _Task(Protocol):
    def absolute(self: Result) -> Result:
        """The task for a process that runs in another folder."""


PathTask = TypeVar("PathTask", bound=_Task)
Task_contra = TypeVar("Task_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Work(Protocol[Task_contra, Result_co]):
    """The work on a task; it reports its progress if it is the only one."""

    def __call__(self, task: Task_contra, /, watch: ProgressCallback | None = None) -> Result_co: ...


def run_where_it_pays(
    where: Where | None,
    work: Work[PathTask, Result],
    tasks: list[PathTask],
    watch: ProgressCallback | None,
    takes_time: bool,
) -> Outcomes[Result]:
    """Do tasks that name files, in processes if that `takes_time`; outcomes come in the order of the tasks."""
    where = where or Where()
    if where.dask is not None:
        return run(where, work, [task.absolute() for task in tasks], watch)
    if not takes_time:
        where, watch = Where(where.jobs or 1), None
    if len(tasks) == 1:
        return run(where, partial(work, watch=watch), tasks)
    return run(where, work, tasks, watch)


def _counting(watch: ProgressCallback, total: int) -> Done:
    count = itertools.count(1)
    watch("pairs", 0, total)
    return lambda: watch("pairs", next(count), total)
