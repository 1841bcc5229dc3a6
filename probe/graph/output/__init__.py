"""The files that a graph is written to."""
