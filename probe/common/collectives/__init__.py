"""What communication calls exchange, whichever library spelled them."""
