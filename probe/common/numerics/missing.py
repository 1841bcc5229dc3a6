"""The text that stands in the place of the metrics of real data where two tensors have none."""

UNSUPPORTED = ("unsupported",) * 6
"""There is no data."""
SHAPE_UNMATCHED = ("shape unmatched",) * 6
NOT_AVAILABLE = ("N/A",) * 6
NOT_MEASURED = (UNSUPPORTED, SHAPE_UNMATCHED, NOT_AVAILABLE)
"""The metrics of two tensors that cannot be compared."""
SPECIAL_VALUES_DIFFER = "error: nan or inf of target and golden are not in the same places."
