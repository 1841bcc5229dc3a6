"""The files of the gradient probe: written step by step, read again, and two runs compared by the signs."""
