"""Rules over the rows of a training, the findings they make, and what is done about these."""
