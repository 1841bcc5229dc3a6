"""Checkpoints of DeepSpeed's ZeRO, recorded by `cases/zero/make_zero.py`, and what DeepSpeed itself makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from probe.checkpoint.options import CheckpointOptions
from probe.checkpoint.readers.opening import open_checkpoint
from probe.common.errors import MsprobeException

CASES = Path(__file__).parent / "cases" / "zero"
STAGES = (1, 2, 3)


@pytest.mark.parametrize("stage", STAGES)
def test_masters_are_those_that_deepspeed_makes(stage: int) -> None:
    found = open_checkpoint(str(CASES / f"stage{stage}")).weights
    expected = np.load(CASES / f"stage{stage}.npz")
    for name in expected.files:
        values = found[name].read()
        if values.dtype == np.uint16:
            # Parameters that are not trained have no master; DeepSpeed widens their bfloat16.
            values = (values.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_stages_hold_the_same_weights_up_to_the_training() -> None:
    """The three were trained alike, and the model of stage 1 is its masters rounded to bfloat16."""
    folder = CASES / "stage1"
    masters, rounded = (open_checkpoint(str(folder), CheckpointOptions(weights=kind)) for kind in ("master", "model"))
    assert {each.dtype for each in rounded.weights.values()} == {"bfloat16"}
    name = "head.weight"
    exact = masters.weights[name].read().astype(np.float64)
    stored = (rounded.weights[name].read().astype(np.uint32) << 16).view(np.float32)
    assert np.abs(exact - stored).max() <= np.abs(exact).max() / 256


@pytest.mark.parametrize("stage", STAGES)
def test_a_missing_rank_is_named(stage: int, tmp_path: Path) -> None:
    shutil.copytree(CASES / f"stage{stage}", tmp_path / "copy")
    next((tmp_path / "copy").rglob("*rank_0_*optim_states.pt")).unlink()
    with pytest.raises(MsprobeException, match=r"missing"):
        open_checkpoint(str(tmp_path / "copy"))


def test_a_type_of_deepspeed_is_named_and_left_out() -> None:
    found = open_checkpoint(str(CASES / "stage1"))
    assert found.settings["ds_version"] == "0.19.8"
    assert all("refused" not in note for note in found.notes)
