"""Values that a reinforcement-learning script saves, and the comparison of two such folders."""
