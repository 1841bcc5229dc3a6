"""How far two values, statistics or checksums are apart, and what may be expected."""
