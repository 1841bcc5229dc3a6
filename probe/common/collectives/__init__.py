"""The data exchanged by communication calls, for every library."""
