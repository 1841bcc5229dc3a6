"""Differences that inputs and rounding explain are no divergence, in runs whose arithmetic numpy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import (
    RNG,
    W,
    X,
    backward,
    call,
    compared,
    tensor,
    whole,
)
from made_dumps import plain


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_what_cancellation_left_is_explained_where_it_goes_in_too(tmp_path: Path, level: str) -> None:
    near = (X * np.float32(1 + 1e-3)).astype(np.float32)
    names = ["Functional.linear.0.forward", "Torch.sub.0.forward", "Torch.tanh.0.forward"]
    if level == "L0":
        names = [f"Module.{name}.forward.0" for name in ("fc.Linear", "sub.Sub", "act.Tanh")]
    runs = []
    for x in (X * np.float32(1 + 2e-7), X):
        left = near - x
        calls = [call([tensor(X)], tensor(x)), call([tensor(near), tensor(x)], tensor(left))]
        runs.append(dict(zip(names, [*calls, call([tensor(left)], tensor(np.tanh(left)))])))
    assert compared(tmp_path, *runs, level=level) is None


def test_a_gradient_that_is_nothing_but_rounding_is_explained(tmp_path: Path) -> None:
    gradient = RNG.normal(size=(4096, 8)).astype(np.float32)
    gradient -= gradient.mean(0)
    sums = [gradient.sum(0), gradient[::-1].sum(0)]
    assert abs(sums[0] - sums[1]).max() > 1e-3 * abs(sums[1]).max()
    runs = [{"Torch.add.0.backward": backward([tensor(gradient)], tensor(each))} for each in sums]
    assert compared(tmp_path, *runs) is None


def test_a_number_of_results_may_change_with_a_whole_number(tmp_path: Path) -> None:
    """A token goes to another expert: the expert's input has a row more, and nothing else is wrong."""
    runs = []
    for count, y in ((3, X * np.float32(1 + 1e-7)), (2, X)):
        rows = whole(np.arange(count))
        runs.append(
            {
                "Functional.linear.0.forward": call([tensor(X)], tensor(y)),
                "Torch.where.0.forward": call([whole([1, 2])], rows),
                "Torch.index_select.0.forward": call([tensor(y), rows], tensor(y[:count])),
                "Functional.linear.1.forward": call([tensor(y[:count]), tensor(W)], tensor(y[:count] @ W)),
            }
        )
    assert compared(tmp_path, *runs) is None


def test_rounding_of_a_short_type_is_explained_where_it_is_widened_again(tmp_path: Path) -> None:
    """One element in a thousand falls to the other side when a run is rounded to 16 bits, as in mixed precision."""
    y = RNG.normal(size=(64, 64)).astype(np.float16)
    other = y.copy()
    other.flat[7] = np.nextafter(other.flat[7], np.float16(9))
    runs = []
    for half in (other, y):
        wide = half.astype(np.float32)
        runs.append(
            {
                "Functional.linear.0.forward": call([tensor(X)], tensor(half, "torch.float16")),
                "Tensor.pow.0.forward": call([tensor(wide), plain(2)], tensor(wide**2)),
                "Torch.mean.0.forward": call([tensor(wide**2)], tensor((wide**2).mean(0))),
            }
        )
    assert compared(tmp_path, *runs) is None


@pytest.mark.parametrize("function", ["Tensor.__setitem__", "Tensor.masked_scatter_", "Torch._foreach_copy_"])
def test_memory_that_is_written_over_may_hold_anything(tmp_path: Path, function: str) -> None:
    runs = [
        {f"{function}.0.forward": call([whole(garbage), whole([1]), whole([2])], whole([2, 2]))}
        for garbage in ([77, 8], [0, 123456])
    ]
    assert compared(tmp_path, *runs) is None
