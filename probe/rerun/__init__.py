"""One recorded call run again with what it was given, as a comparison and as a script that stands alone."""
