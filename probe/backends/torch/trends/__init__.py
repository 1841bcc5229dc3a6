"""Values of a running training, as a monitor reads them: parameters, gradients, optimizer states, statistics."""
