"""Where log-probabilities come from: files, folders of SingleSave, and the tensors of a program."""
