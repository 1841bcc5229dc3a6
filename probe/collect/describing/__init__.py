"""The way in which values become the fields of records."""
