"""Two dumps paired and judged as the browser page of msProbe does, and the database of its plug-in."""
