"""One reader for each format of checkpoints, and the choice among them."""
