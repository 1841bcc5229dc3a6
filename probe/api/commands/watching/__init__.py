"""The commands over the files of a training monitor."""
