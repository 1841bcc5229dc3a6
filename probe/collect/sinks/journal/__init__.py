"""The journal of a step and the files made from it: records, stacks, the call tree and tensors."""
