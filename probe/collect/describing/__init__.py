"""How values become the fields of records."""
