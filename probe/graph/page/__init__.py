"""What the graph page is made of: the data of `docs/development/graph-page.md`, from graphs and their comparison."""
