"""What each function does, in one table for every framework and every question."""
