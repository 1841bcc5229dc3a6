"""A run that was resumed from a checkpoint, held against the run that was not interrupted: which state was lost."""
