"""Hyper-parameters read from start scripts and settings files. Nothing is executed."""
