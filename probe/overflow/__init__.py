"""The record and the rank that made the first value that is not finite."""
