"""Subcommands that make other files of files of kernels."""
