"""The configuration file: its keys, their checks, and what they select."""
