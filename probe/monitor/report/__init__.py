"""Answers from the files of a monitor: who began, where two runs part, how a running job is."""
