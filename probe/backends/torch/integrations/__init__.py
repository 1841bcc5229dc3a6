"""Callbacks of training libraries on top of PyTorch, which collect step by step."""
