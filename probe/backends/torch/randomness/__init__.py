"""Seeds, and the functions that draw random numbers."""
