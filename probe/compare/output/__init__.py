"""The tables and the summary of a comparison."""
