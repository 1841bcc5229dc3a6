"""The three answers of a comparison: what they are said of, and what a divergence has reached."""
