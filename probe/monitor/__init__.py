"""The training monitor: statistics of every step, what they say, and who began."""
