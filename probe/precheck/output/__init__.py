"""The files and lines that a pre-check writes and prints."""
