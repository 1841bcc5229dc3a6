"""Watching a training for values that are not finite, and writing the step that has one."""
