"""The rows of a monitor in the files of other tools."""
