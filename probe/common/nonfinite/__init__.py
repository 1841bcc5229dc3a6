"""What is not finite in the values of calls, and which of it was meant."""
