"""Module paths of two models, aligned."""
