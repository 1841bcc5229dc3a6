"""Everything that judges or writes as msProbe does. Without this folder the rest runs, with our own rules."""
