"""Subcommands that collect from a program, and those that show what is there."""
