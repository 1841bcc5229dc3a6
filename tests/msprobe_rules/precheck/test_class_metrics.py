"""Metrics of tensors that are larger than one block are those of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.msprobe_rules.precheck import class_metrics, documented_single, v26_2_single
from probe.msprobe_rules.precheck.class_metrics import measure
from probe.msprobe_rules.precheck.constants import DOCUMENTED


@pytest.mark.parametrize("method", [documented_single, v26_2_single])
@pytest.mark.parametrize("base", ["Torch.sort", "Torch.mul", "Torch.matmul", "Functional.silu"])
def test_blocks_add_up_to_the_whole(base: str, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    reference = random.normal(size=(100, 77)) * 10.0 ** random.uniform(-7, 2, (100, 77))
    result = (reference * (1 + random.normal(size=reference.shape) * 1e-3)).astype(np.float32)
    reference[7, 7], result[9, 9] = np.nan, np.inf
    whole = method.classify_tensor(base, result, reference, "float32", "name")
    monkeypatch.setattr(class_metrics, "BLOCK", 100)
    parts = method.classify_tensor(base, result, reference, "float32", "name")
    assert (parts.status, parts.message) == (whole.status, whole.message)
    assert parts.metrics == pytest.approx(dict(whole.metrics), rel=1e-12, nan_ok=True)


def test_units_in_the_last_place_are_those_of_the_reference() -> None:
    constants = DOCUMENTED["float16"]
    reference = np.array([1.0, 1.5, 2.0, 2.0**-20, 0.0])
    units = np.array([2.0**-10, 2.0**-10, 2.0**-9, 2.0**-24, 2.0**-10])
    meter = class_metrics.Ulp(constants, "float16")
    found = measure((reference + 3 * units).astype(np.float16), reference, [meter], "float16", constants)
    assert found == {"max_ulp": 3.0, "mean_ulp": 3.0, "ulp_share": 1.0}
