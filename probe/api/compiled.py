"""`PrecisionChecker`: modules under torch.compile against their eager form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from probe.backends import loader

if TYPE_CHECKING:
    from probe.runtime_checks.precision_checker import PrecisionChecker


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
