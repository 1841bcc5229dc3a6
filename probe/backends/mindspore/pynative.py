"""What runs MindSpore's operations one by one, from where this release has it: importing the old place is warned of."""

from __future__ import annotations

try:
    from mindspore.graph.api import _no_grad, _pynative_executor
except ImportError:  # before 2.9
    from mindspore.common.api import _no_grad, _pynative_executor

executor = _pynative_executor
no_grad = _no_grad
