"""What a pre-check writes and prints."""
