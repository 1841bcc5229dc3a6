"""What several backends are built from."""
