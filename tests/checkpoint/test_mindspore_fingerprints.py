"""Fingerprints of cells of MindSpore, compared with the arrays that they hold."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import nn

import probe


def test_a_cell_has_the_fingerprint_of_its_arrays() -> None:
    cell = nn.SequentialCell(nn.Dense(64, 32), nn.BatchNorm1d(32))
    arrays = {each.name: each.asnumpy() for each in cell.get_parameters()}
    found = probe.fingerprint(cell, step=2)
    assert found.content.step == 2
    assert found.compare(probe.fingerprint(arrays)).answer == "identical"
    arrays["0.weight"] = arrays["0.weight"][::-1]
    assert "0.weight" in found.compare(probe.fingerprint(arrays)).why


def test_bfloat16_is_taken_bit_by_bit() -> None:
    values = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    short = probe.fingerprint({"w": ms.Tensor(values).astype(ms.bfloat16)})
    report = short.compare(probe.fingerprint({"w": values}))
    assert report.answer == "rounding" and "rounded to bfloat16" in report.why
