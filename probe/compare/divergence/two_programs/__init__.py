"""Differences between two programs for one network, and their effect."""
