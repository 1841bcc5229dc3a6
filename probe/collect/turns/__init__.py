"""The optimizers of a program that have a turn in a step, and the loops in which they step."""
