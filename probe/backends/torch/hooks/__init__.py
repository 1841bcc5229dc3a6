"""Hooks around modules, functions, optimizers and compiled code."""
