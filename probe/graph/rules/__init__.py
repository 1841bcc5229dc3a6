"""Whose rules judge two graphs: what a page asks of them, and ours."""
