"""What differs between two programs for one network, and what it comes to."""
