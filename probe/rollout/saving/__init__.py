"""Values that a script saves by name: copied at once, and written by a thread of their own."""
