"""Values of calls that are not finite, and those of them that were meant."""
