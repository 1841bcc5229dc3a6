"""The log-probabilities of an inference engine against those of the trainer, and what a script saves of both."""
