"""Statistics of a training, step by step, for a monitor: what is collected, and when."""
