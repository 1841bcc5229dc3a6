"""Two dumps in, one verdict out. Nothing here needs a framework, except torch to read a ``.pt`` file."""
