"""The calls of a dump: which ones there are, what they are run with, and running them."""
