"""The questions that Python asks, and whose rules answer them."""
