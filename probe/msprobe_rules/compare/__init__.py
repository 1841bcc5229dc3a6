"""Rows of the comparison table judged as msProbe does: by its documentation, and as release 26.2 does."""
