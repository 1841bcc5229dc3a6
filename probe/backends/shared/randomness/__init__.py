"""Places that draw random numbers, repeated draws, and models without dropout."""
