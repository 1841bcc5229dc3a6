"""Counterparts in two dumps: calls, items, modules."""
