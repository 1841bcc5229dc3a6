"""Checks of a running program: `online_check`, every operation, and `PrecisionChecker`, modules under torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from probe.backends import loader
from probe.common.errors import MsprobeException
from probe.common.show import show

if TYPE_CHECKING:
    from probe.runtime_checks.online_check import OnlineCheck
    from probe.runtime_checks.precision_checker import PrecisionChecker


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
