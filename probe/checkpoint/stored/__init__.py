"""Tensors that lie in files, and those composed of them, read a few rows at a time."""
