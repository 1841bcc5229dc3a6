"""A small language model in numpy, run as a rollout and as a training, with planted mismatches between the two."""
