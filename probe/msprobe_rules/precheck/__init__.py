"""What msProbe 26.2.0 says of a result, what its documentation says, and the ratio of an NPU's errors to a GPU's."""
