"""The checks, a file each: what of two packs differs, how much it matters, and why."""
