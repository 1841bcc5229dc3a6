"""Differences that inputs and rounding explain are no divergence, in runs whose arithmetic numpy does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import RNG, W, X, backward, call, compared, tensor, whole


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


@pytest.mark.parametrize("function", ["Tensor.__setitem__", "Tensor.masked_scatter_", "Torch._foreach_copy_"])
def test_memory_that_is_written_over_may_hold_anything(tmp_path: Path, function: str) -> None:
    runs = [
        {f"{function}.0.forward": call([whole(garbage), whole([1]), whole([2])], whole([2, 2]))}
        for garbage in ([77, 8], [0, 123456])
    ]
    assert compared(tmp_path, *runs) is None
