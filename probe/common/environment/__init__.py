"""The environment of a run, as it is written next to its dump: versions, variables, switches, seeds; no secret."""
