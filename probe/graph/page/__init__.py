"""The parts of the graph page: the data of `docs/development/graph-page.md`, from graphs and their comparison."""
