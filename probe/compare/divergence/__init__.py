"""The first call that differs by more than its inputs explain."""
