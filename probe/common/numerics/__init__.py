"""How much two values, statistics or checksums differ, and what may be expected."""
