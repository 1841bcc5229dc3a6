"""What a monitor reads of a running training: parameters, gradients, optimizer states, statistics."""
