"""The properties of each function, in one table for every framework and every question."""
