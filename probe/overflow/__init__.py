"""Which record of which rank made the first value that is not finite."""
