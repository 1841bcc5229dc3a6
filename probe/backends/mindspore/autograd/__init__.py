"""The backward of cells and functions, with gradient nodes and without."""
