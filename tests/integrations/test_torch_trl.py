"""The recipe for TRL: both log-probabilities of GRPO's batches, from the hook that docs/recipes/rollout.md shows."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed")


def saved(folder: Path, key: str) -> Any:
    """The values of all steps, one after the other."""
    paths = sorted(folder.glob(f"data/{key}/step*/rank0/micro_step0/{key}.npy"))
    assert len(paths) == 2
    return np.concatenate([np.load(path) for path in paths])


def test_engine_and_trainer_agree_to_rounding(trl: Path) -> None:
    rollout, training, mask = (saved(trl, key) for key in ("rollout", "training", "mask"))
    is_token = mask.astype(bool)
    assert rollout.shape == training.shape == mask.shape and is_token.sum() >= 48
    # float32 logits of some tens round to about 1e-6, and a log-probability is a difference of two of them.
    assert np.abs(rollout - training)[is_token].max() < 1e-4
    assert rollout[is_token].std() > 0.3


def test_the_tokens_are_those_of_the_vocabulary(trl: Path) -> None:
    tokens = saved(trl, "tokens")
    assert tokens.dtype == np.int64 and tokens.min() >= 0 and tokens.max() < 64
