"""Module paths, functions, commands and attributes of msProbe's releases that are called otherwise here."""
