"""Metrics of tensors that are larger than one block are those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.msprobe_rules.precheck import class_metrics
from probe.msprobe_rules.precheck.our_outputs import measured_tensor
from probe.msprobe_rules.precheck.v26_2_single import classify_tensor


@pytest.mark.parametrize("row_of", [measured_tensor, classify_tensor])
def test_blocks_add_up_to_the_whole(row_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    reference = random.normal(size=(100, 77)) * 10.0 ** random.uniform(-7, 2, (100, 77))
    result = (reference * (1 + random.normal(size=reference.shape) * 1e-3)).astype(np.float32)
    reference[7, 7], result[9, 9] = np.nan, np.inf
    whole = row_of("Functional.silu", result, reference, "float32", "name")
    monkeypatch.setattr(class_metrics, "BLOCK", 100)
    parts = row_of("Functional.silu", result, reference, "float32", "name")
    assert (parts.status, parts.message) == (whole.status, whole.message)
    assert parts.metrics == pytest.approx(dict(whole.metrics), rel=1e-12, nan_ok=True)
