"""What is not finite, or nearly so, in the values of one call."""
