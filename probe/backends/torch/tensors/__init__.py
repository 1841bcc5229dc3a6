"""A tensor as an entry of a record: its description, statistics and file."""
