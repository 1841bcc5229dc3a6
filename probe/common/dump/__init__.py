"""The format of a dump: names, layout, journal and JSON files."""
