"""The walk over the calls of two runs that finds the first value which nothing explains."""
