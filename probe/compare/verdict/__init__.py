"""The place where two runs diverge: facts, one graph per run, one walk, causes, words."""
