"""Pairs of small checkpoints with known answers."""
