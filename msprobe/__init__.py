"""The import names of msProbe."""

from typing import TYPE_CHECKING, Any

from probe import __version__

if TYPE_CHECKING:
    from probe.api.monitoring.grad_comparator import GradComparator

__all__ = ["GradComparator", "__version__"]


def __getattr__(name: str) -> Any:
    # It needs numpy, which most who import this package do not want yet.
    if name == "GradComparator":
        from probe.api.monitoring.grad_comparator import GradComparator

        return GradComparator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
