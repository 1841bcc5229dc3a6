"""The kind of a mismatch: tests of what differs, against what rounding explains."""
