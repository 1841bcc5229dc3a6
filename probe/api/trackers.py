"""The rows of a monitor and the verdict of a comparison in TensorBoard, Weights & Biases and MLflow.

Each function takes the output folder of a monitor, a `probe.Verdict`, or both. A value is called
``rank0/grad_reduced/layers.0.weight/norm``: rank, family, row, statistic.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from probe.common.errors import MissingDependency, MsprobeException

if TYPE_CHECKING:
    from probe.compare.in_python import Verdict

_PREFIX = "precision"
_REFUSED_BY_MLFLOW = re.compile(r"[^\w\-. :/]")


def scalars(monitor: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield each step of a monitored training with its values by name, in the order of the steps.

    Args:
        monitor: The output folder of a monitor.

    Raises:
        MsprobeException: the folder holds no rows of a monitor.
    """
    from probe.monitor.monitor_run import read_monitor

    run = read_monitor(os.fspath(monitor))
    for step in run.steps:
        values: dict[str, float] = {}
        for rank in run.ranks:
            for rows in run.rows(rank, step):
                for index, name in enumerate(rows.names):
                    chunk = f"vp{rows.stages[index]}/" if rows.stages and rows.stages[index] else ""
                    micro = f"/micro{rows.micro[index]}" if rows.micro and rows.micro[index] else ""
                    root = "root" if not name or name.startswith(".") else ""
                    row = f"rank{rank}/{rows.family}/{chunk}{root}{name}{micro}"
                    values.update({f"{row}/{op}": float(each) for op, each in zip(rows.ops, rows.values[index])})
        yield step, values


def to_tensorboard(
    folder: str | os.PathLike[str],
    monitor: str | os.PathLike[str] | None = None,
    verdict: Verdict | None = None,
) -> None:
    """Write a file of TensorBoard.

    Args:
        folder: The folder of the file, such as the log folder of the training.
        monitor: The output folder of a monitor.
        verdict: The result of `probe.verdict`; its text is a text ``precision/verdict``.

    Raises:
        MissingDependency: tensorboard is not installed.

    Example:
        >>> probe.to_tensorboard("runs/1", monitor="monitor_output")  # doctest: +SKIP
    """
    from probe.monitor.tensorboard import EventFile

    file = EventFile(os.fspath(folder))
    try:
        for step, values in () if monitor is None else scalars(monitor):
            file.add([(f"{_PREFIX}/{name}", value) for name, value in values.items()], step)
        if verdict is not None:
            file.add_text(f"{_PREFIX}/verdict", str(verdict))
    finally:
        file.close()


def to_wandb(run: Any, monitor: str | os.PathLike[str] | None = None, verdict: Verdict | None = None) -> None:
    """Log to a run of Weights & Biases, whose own steps stay as they are: the axis of the values is ``precision/step``.

    Args:
        run: The run, as ``wandb.init()`` returns it.
        monitor: The output folder of a monitor.
        verdict: The result of `probe.verdict`; it is in the summary of the run.

    Raises:
        MsprobeException: `run` is no run of Weights & Biases.

    Example:
        >>> probe.to_wandb(wandb.init(mode="offline"), monitor="monitor_output")  # doctest: +SKIP
    """
    if not hasattr(run, "define_metric"):
        raise MsprobeException(f"run is {run!r}; give the run that wandb.init() returns (pip install wandb).")
    axis = f"{_PREFIX}/step"
    run.define_metric(f"{_PREFIX}/*", step_metric=axis)
    for step, values in () if monitor is None else scalars(monitor):
        run.log({axis: step, **{f"{_PREFIX}/{name}": value for name, value in values.items()}})
    if verdict is not None:
        run.summary.update({f"{_PREFIX}/conclusion": verdict.conclusion, f"{_PREFIX}/verdict": str(verdict)})


def to_mlflow(monitor: str | os.PathLike[str] | None = None, verdict: Verdict | None = None) -> None:
    """Log to the active run of MLflow.

    Args:
        monitor: The output folder of a monitor. A character that MLflow refuses in a name becomes ``_``.
        verdict: The result of `probe.verdict`: the tag ``precision.conclusion``, the artifact
            ``precision_verdict.txt``.

    Raises:
        MissingDependency: mlflow is not installed.

    Example:
        >>> with mlflow.start_run():  # doctest: +SKIP
        ...     probe.to_mlflow(verdict=probe.verdict("changed", "golden"))
    """
    try:
        import mlflow
    except ImportError:
        raise MissingDependency("mlflow is needed for to_mlflow; run: pip install mlflow.") from None
    for step, values in () if monitor is None else scalars(monitor):
        named = {_REFUSED_BY_MLFLOW.sub("_", f"{_PREFIX}/{name}"): value for name, value in values.items()}
        mlflow.log_metrics(named, step=step)
    if verdict is not None:
        mlflow.set_tag(f"{_PREFIX}.conclusion", verdict.conclusion)
        mlflow.log_text(str(verdict), f"{_PREFIX}_verdict.txt")
