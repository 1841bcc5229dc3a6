"""Hooks around cells, functions and compiled code."""
