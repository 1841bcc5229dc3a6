"""Sources of log-probabilities: files, folders of SingleSave, and the tensors of a program."""
