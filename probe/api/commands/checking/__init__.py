"""Subcommands that judge the calls of a dump."""
