"""Statistics of arrays for a monitor."""
