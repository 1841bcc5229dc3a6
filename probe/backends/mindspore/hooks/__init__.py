"""What is called around cells, functions and compiled code."""
