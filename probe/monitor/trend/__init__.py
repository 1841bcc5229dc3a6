"""The trend page: statistics of a training over step, rank and module, in one HTML file."""
