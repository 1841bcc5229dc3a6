"""What belongs together in two dumps."""
