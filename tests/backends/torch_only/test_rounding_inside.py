"""What operations compute inside is moved by roundings, at the cost of those operations."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from probe.backends.torch.adapter import TorchAdapter

EXECUTION = TorchAdapter().execution
UNIT = 2.0**-24
_CHECK_IMPORTS = """
import sys
import torch
from probe.backends.torch.adapter import TorchAdapter

x, before = torch.ones(3, dtype=torch.float64), set(sys.modules)
with TorchAdapter().execution.rounding_inside(1e-7, 0):
    TorchAdapter().execution.evaluate(lambda inputs: inputs[0].exp().sum(), [x], [0]).gradients([x.sum()])
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before} - {"probe"}))
print("torch._dynamo" in set(sys.modules) - before)
"""


def softmax_gradient() -> torch.Tensor:
    logits = torch.tensor([[20.0, 0.0, 1.0]], dtype=torch.float64)
    done = EXECUTION.evaluate(lambda inputs: F.softmax(inputs[0], -1), [logits], [0])
    (gradient,) = done.gradients([torch.tensor([[3.0, 1.0, 2.0]], dtype=torch.float64)])
    return gradient


def test_the_result_that_the_backward_sees_is_rounded() -> None:
    """Of a saturated softmax the gradient is a difference of what is rounded: no move of its inputs shows that."""
    exact = softmax_gradient()
    with EXECUTION.rounding_inside(UNIT, 1):
        moved, again = softmax_gradient(), None
    with EXECUTION.rounding_inside(UNIT, 1):
        again = softmax_gradient()
    assert torch.equal(moved, again)
    assert UNIT / 4 < float((moved - exact).abs().max()) < 16 * UNIT
    assert torch.equal(softmax_gradient(), exact)


@pytest.mark.parametrize(
    "moved", [torch.flip, torch.roll, torch.tril, torch.Tensor.copy_, torch.sin], ids=lambda call: call.__name__
)
def test_what_computes_no_number_is_not_moved(moved: Callable[..., torch.Tensor]) -> None:
    value = torch.arange(1.0, 10.0, dtype=torch.float64).reshape(3, 3)
    arguments = {torch.flip: ((0,),), torch.roll: (1,), torch.Tensor.copy_: (value,)}.get(moved, ())
    with EXECUTION.rounding_inside(UNIT, 1):
        found = EXECUTION.evaluate(lambda inputs: moved(inputs[0].clone(), *arguments), [value], []).output
    assert torch.equal(found, moved(value.clone(), *arguments)) == (moved is not torch.sin)


def test_no_compiler_is_imported_for_it() -> None:
    """Torch imports its compiler for a dispatch mode, which takes longer than a whole pre-check of a model."""
    done = subprocess.run([sys.executable, "-c", _CHECK_IMPORTS], capture_output=True, text=True, check=True)
    packages, is_compiler_there = done.stdout.splitlines()
    assert "sympy" not in packages
    assert is_compiler_there == "False"
