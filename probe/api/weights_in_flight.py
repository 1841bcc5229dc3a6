"""Findings of ``rollout_check`` that fingerprints of a trainer and of an engine prove, or leave open."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from probe.common.errors import MsprobeException

if TYPE_CHECKING:
    from probe.rollout.kinds.finding import Finding


def findings_of(trainer: str | None, engine: str | None) -> tuple[list[Finding], list[str]]:
    """The findings on weights, also those that cannot be told, and sentences on steps whose weights are equal.

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
    from probe.rollout.kinds.finding import STALE, UNTOLD, WEIGHTS, Finding

    kinds = {IS_STALE: STALE, DIFFER: WEIGHTS}

    findings: list[Finding] = []
    remarks: list[str] = []
    for landing in landings(trainer, engine):
        if landing.verdict == EQUAL:
            remarks.append(f"weights: {landing.sentence}")
            continue
        kind = kinds.get(landing.verdict, UNTOLD)
        numbers = {"step": landing.step, "parameters": dict(landing.stale)}
        proof = {} if kind == UNTOLD else {"proof": "fingerprints"}
        findings.append(Finding(kind, landing.sentence, {**numbers, **proof}, math.inf if proof else 0.0))
    findings.sort(key=lambda each: (STALE, WEIGHTS, UNTOLD).index(each.kind))
    return findings, remarks
