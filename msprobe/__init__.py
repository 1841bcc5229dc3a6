"""The import names of msProbe."""

from probe import __version__

__all__ = ["__version__"]
