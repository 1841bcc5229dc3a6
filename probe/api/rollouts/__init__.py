"""What a reinforcement-learning script saves of its values, and two such folders compared."""
