"""The parameters of two checkpoints that belong together."""
