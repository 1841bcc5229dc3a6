"""The import names of msProbe."""

from probe import __getattr__ as __getattr__
from probe import __version__

__all__ = ["GradComparator", "__version__"]
