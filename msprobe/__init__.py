"""The import names of msProbe."""

from probe import __getattr__ as __getattr__
from probe import __version__
from probe.api import older

__all__ = ["GradComparator", "__version__"]

_FINDER = older.serve()
