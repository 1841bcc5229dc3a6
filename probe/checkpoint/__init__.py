"""Two checkpoints in, the difference of their parameters out; no framework is needed to read them."""
