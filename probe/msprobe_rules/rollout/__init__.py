"""Saved values and their tables as msProbe 26.2 writes them."""
