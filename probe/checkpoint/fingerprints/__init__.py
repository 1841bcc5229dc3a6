"""Checkpoints of which sketches, digests and statistics are held instead of values."""
