"""Judgements by the rules of msProbe 26.2.0 and by its documentation, and the ratio of an NPU's errors to a GPU's."""
