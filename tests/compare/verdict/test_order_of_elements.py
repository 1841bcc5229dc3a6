"""A parameter whose elements may be in another order: said as possible by statistics, as certain by saved values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from divergence_runs import Run, W, X, call, compared, tensor

LINEAR = "Module.linear.Linear.forward.0"
NEGATED = np.concatenate([-W[:1], W[1:]])


def run(weight: Any, **entry: Any) -> Run:
    """Rows in another order give columns in another order, which the next call shows."""
    y = X @ weight.T
    return {
        LINEAR: call([tensor(X)], tensor(y), weight={**tensor(weight), **entry}),
        "Functional.linear.0.forward": call([tensor(y), tensor(W)], tensor(y @ W)),
    }


def test_a_negated_row_is_no_other_order(tmp_path: Path) -> None:
    largest = np.abs(W[0]).max()
    assert NEGATED.max() == W.max() and NEGATED.min() == W.min() and largest < W.max()
    divergence = compared(tmp_path, run(NEGATED), run(W))
    assert divergence is not None and divergence.record == LINEAR
    assert divergence.first.reason.startswith("parameter linear.weight differs")
    assert "order" not in divergence.first.cause
