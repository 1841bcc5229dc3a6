"""Findings of ``rollout_check`` that fingerprints of a trainer and of an engine prove."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.rollout.kinds.finding import Finding


def findings_of(trainer: str | None, engine: str | None) -> tuple[list[Finding], list[str]]:
    """The findings on weights, and sentences on steps whose weights are equal or cannot be told.

    Args:
        trainer: the file or folder of the fingerprints of the trainer; ``None``, as `engine`, without any.
        engine: that of the engine.

    Raises:
        MsprobeException: one of both is missing, or cannot be read.
    """
    if trainer is None and engine is None:
        return [], []
    if trainer is None or engine is None:
        raise MsprobeException("give --trainer-fingerprint and --engine-fingerprint together.")
    from probe.checkpoint.fingerprints.flight import DIFFER, EQUAL, landings
    from probe.checkpoint.fingerprints.flight import STALE as IS_STALE
    from probe.rollout.kinds.finding import STALE, WEIGHTS, Finding

    findings: list[Finding] = []
    remarks: list[str] = []
    for landing in landings(trainer, engine):
        if landing.verdict in (IS_STALE, DIFFER):
            kind = STALE if landing.verdict == IS_STALE else WEIGHTS
            numbers = {"step": landing.step, "parameters": dict(landing.stale), "proof": "fingerprints"}
            findings.append(Finding(kind, landing.sentence, numbers, math.inf))
        else:
            what = "weights" if landing.verdict == EQUAL else "weights cannot be told"
            remarks.append(f"{what}: {landing.sentence}")
    findings.sort(key=lambda each: each.kind != STALE)
    return findings, remarks
