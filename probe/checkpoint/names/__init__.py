"""Names of parameters: one scheme for all families, layers and their parts."""
