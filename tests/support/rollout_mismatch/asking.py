"""A generated case given to the check, as a user would."""

from __future__ import annotations

import numpy as np

from probe.rollout.check import check
from probe.rollout.report import RolloutReport
from rollout_mismatch.cases import Case, Setting


def answer(case: Case, setting: Setting, with_layers: bool = True, with_dtype: bool = True) -> RolloutReport:
    """The report on a case; with `with_layers` the number of layers is known, with `with_dtype` the dtype."""
    sources = {
        "rollout": case.rollout, "training": case.training, "mask": case.mask, "tokens": case.tokens,
        "prompt_lengths": case.prompt_lengths, "step": case.steps,
    }  # fmt: skip
    return check(sources, setting.dtype if with_dtype else "", setting.vocabulary, setting.layers if with_layers else 0)


def size(case: Case) -> float:
    """The root mean square of the differences."""
    apart = (case.rollout - case.training)[case.mask]
    apart = apart[np.isfinite(apart)].astype(np.float64)
    return float(np.sqrt(np.mean(apart * apart)))
