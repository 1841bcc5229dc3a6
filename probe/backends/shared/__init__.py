"""Building blocks of several backends."""
