"""Where random numbers are drawn, repeated draws, and models without dropout."""
