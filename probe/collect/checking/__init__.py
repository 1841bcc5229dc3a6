"""Tasks that check calls and write no dump."""
