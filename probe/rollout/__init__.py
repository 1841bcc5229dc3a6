"""Two sets of log-probabilities of the same tokens: how far they are apart, and the kind of mismatch."""
