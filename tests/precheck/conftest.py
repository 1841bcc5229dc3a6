"""What the tests here share."""

from recorded_dumps import recorded

__all__ = ["recorded"]
