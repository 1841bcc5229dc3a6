"""A check from its sources to its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.common.errors import MsprobeException
from probe.common.numerics.formats import rounding_format
from probe.rollout.gathering import gather, named
from probe.rollout.kinds.differences import Differences
from probe.rollout.kinds.finding import NONFINITE, Finding
from probe.rollout.kinds.judge import Judgement, judge
from probe.rollout.kinds.processed import certain
from probe.rollout.report import RolloutReport
from probe.rollout.sources import Rows, read_rows, rows_of
from probe.rollout.tokens import Tokens

ARGUMENTS = (
    "rollout", "training", "mask", "tokens", "prompt_lengths", "step", "sequences", "rollout_entropy", "current",
    "top_logprobs",
)  # fmt: skip
"""The sources by their names; the first two have to be given."""


def check(
    sources: Mapping[str, Any],
    dtype: str = "",
    vocabulary: int = 0,
    layers: int = 0,
    of_weights: Sequence[Finding] = (),
    remarks: Sequence[str] = (),
) -> RolloutReport:
    """Compare two sets of log-probabilities of the same tokens.

    Args:
        sources: By the names of `ARGUMENTS`: a text is a reference to a file or folder, anything else an array or
            tensor, or a list of such; ``None`` for what is not given.
        dtype: In which both sides compute, if it is known.
        vocabulary: The number of tokens to choose from; 0 if it is not known, as of `layers`.
        layers: The number of layers of the model.
        of_weights: What fingerprints of the weights of both sides prove; it comes before what is concluded from
            log-probabilities.
        remarks: Sentences on the weights that are no findings.

    Raises:
        MsprobeException: a source cannot be read, or they do not fit each other.
    """
    if dtype and rounding_format(dtype) is None:
        raise MsprobeException(f'dtype is "{dtype}"; allowed: float32, bfloat16, float16 and other dtypes that round.')
    read = {name: _rows(value, name) for name, value in sources.items()}
    tokens = gather(named(read))
    left = tokens
    bad: tuple[Finding, ...] = tuple(of_weights)
    # A sum is finite if all of its numbers are.
    if not np.isfinite(tokens.rollout.sum() + tokens.training.sum()):
        finite = np.isfinite(tokens.rollout) & np.isfinite(tokens.training)
        left, bad = tokens.only(finite), (*bad, _not_finite(tokens, finite))
    if not len(left):
        return RolloutReport(left, Judgement((), "", 0.0, 0.0), bad)
    differences = Differences(left, dtype or tokens.dtype, vocabulary, layers)
    judgement = judge(differences)
    proven = {each.kind for each in bad}
    rest = tuple(each for each in judgement.findings if each.kind not in proven)
    # A difference by rounding is not a second finding.
    findings = bad + (tuple(each for each in rest if each.kind not in ("none", "rounding")) if bad else rest)
    said = (*remarks, *_remarks(tokens, read), *certain(differences))
    return RolloutReport(left, judgement, findings, said)


def _rows(value: Any, name: str) -> Rows | None:
    if value is None:
        return None
    rows = read_rows(value, name) if isinstance(value, str) else rows_of(value, name)
    if rows.deep_shape and name != "top_logprobs":
        raise MsprobeException(
            f"{name}: its shape is {rows.deep_shape}; allowed: one dimension, or sequences and tokens."
        )  # fmt: skip
    return rows


def _not_finite(tokens: Tokens, finite: Any) -> Finding:
    counts = {}
    for side in ("rollout", "training"):
        values = getattr(tokens, side)
        counts[f"{side}_nan"] = int(np.count_nonzero(np.isnan(values)))
        counts[f"{side}_infinite"] = int(np.count_nonzero(np.isinf(values)))
    index = int(np.flatnonzero(~finite)[0])
    sequence = tokens.sequence_of(index)
    position, name = index - int(tokens.starts[sequence]), tokens.names[sequence]
    listed = ", ".join(f"{number} {key.replace('_', ' ')}" for key, number in counts.items() if number)
    text = (
        f"{int(np.count_nonzero(~finite))} of {len(finite)} tokens are missing, NaN or infinite ({listed}); the "
        f"first is token {position} of sequence {name}: rollout {tokens.rollout[index]:g}, training "
        f"{tokens.training[index]:g}"
    )
    return Finding(NONFINITE, text, {**counts, "sequence": name, "position": position}, picked=~finite)


def _remarks(tokens: Tokens, read: Mapping[str, Rows | None]) -> list[str]:
    """Remarks on what may be wrong with the sources themselves."""
    if read.get("mask") is not None:
        return []
    last = tokens.starts + tokens.lengths - 1
    padded = int(np.count_nonzero((tokens.rollout[last] == 0) & (tokens.training[last] == 0)))
    if padded * 4 < len(last) or len(last) < 4:
        return []
    return [
        f"{padded} of {len(last)} sequences end in 0 on both sides, which looks like padding; give the mask of the "
        "responses."
    ]
