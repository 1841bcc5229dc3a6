"""Files of kernels on Ascend: tensors of ATB, and dumps of MindSpore's graphs linked to lines of the source."""
