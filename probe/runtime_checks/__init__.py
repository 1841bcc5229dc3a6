"""Calls checked while they run: task ``free_benchmark``, and every operation inside of a block."""
