"""The ranks of one run, compared with each other: replicas, and what their reductions made of what went in."""
