"""Receivers of the calls of a step: the dump, the watch for values that are not finite, the checks of calls."""
