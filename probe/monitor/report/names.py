"""Modules of rows of activations, by their names."""

from __future__ import annotations

import re

_TENSOR = re.compile(r"\.(?:grad_)?(?:input|output)(?:[._]?\d)*$")


def module_of(name: str) -> str:
    """The module of a row of activations.

    Example:
        >>> module_of("blocks.0.qkv.output_1")
        'blocks.0.qkv'
    """
    return _TENSOR.sub("", name)
