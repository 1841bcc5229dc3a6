"""Running the forward and the backward of a step again, for task ``overflow_check``."""
