"""Subcommands that compare dumps."""
