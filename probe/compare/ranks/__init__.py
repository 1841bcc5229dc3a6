"""The tables of many ranks together."""
