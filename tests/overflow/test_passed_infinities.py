"""Minus infinity that ranks send each other: a mask where only finite values come of it, and else followed back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, plain, tensor, write

from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow
from probe.overflow.overflow_report import ORIGIN, OUTSIDE

NAN, MASK, FINE = tensor(math.nan, math.nan), tensor(1.0, -math.inf), tensor()
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "0"}


def broadcast(before: Any, after: Any) -> dict[str, Any]:
    return call([before], [after], {"src": plain(0), "group": GROUP})


def first(tmp_path: Path, *ranks: dict[str, Any]) -> list[tuple[str, int, str]]:
    for rank, data in enumerate(ranks):
        write(tmp_path / "step0" / f"rank{rank}", data)
    found = find_overflow(str(tmp_path), where=Where(jobs=1)).first
    return [(finding.kind, finding.rank, finding.record) for finding in found]


SENT = "Distributed.broadcast.0.forward"
MASKED = {SENT: broadcast(MASK, MASK)}
SOFTMAX, LINEAR = call([MASK], [FINE]), call([MASK, FINE], [NAN])


@pytest.mark.parametrize(
    ("sender", "receiver", "found"),
    [
        # A mask that is sent, and scores that were masked before they were sent.
        ({**MASKED, "Functional.softmax.0.forward": SOFTMAX}, {"Functional.softmax.0.forward": SOFTMAX}, None),
        (
            {"Tensor.masked_fill.0.forward": call([FINE, plain(-math.inf)], [MASK]), **MASKED},
            {"Functional.softmax.0.forward": SOFTMAX},
            None,
        ),
        # Of which the other rank makes a NaN: it came from the data of the first, or was made by its logarithm.
        (
            {"Tensor.add.0.forward": call([MASK], [MASK]), **MASKED},
            {"Functional.linear.0.forward": LINEAR},
            (OUTSIDE, 0, "Tensor.add.0.forward"),
        ),
        (
            {"Torch.log.0.forward": call([tensor(1.0, 0.0)], [MASK]), **MASKED},
            {"Functional.linear.0.forward": LINEAR},
            (ORIGIN, 0, "Torch.log.0.forward"),
        ),
        # A row that is masked on all ranks is blamed where it is used.
        (
            MASKED,
            {"Functional.softmax.0.forward": call([MASK], [NAN])},
            (ORIGIN, 1, "Functional.softmax.0.forward"),
        ),
    ],
)
def test_minus_infinity_that_is_sent_is_a_mask_or_followed_back(
    sender: dict[str, Any], receiver: dict[str, Any], found: tuple[str, int, str] | None, tmp_path: Path
) -> None:
    got = first(tmp_path, sender, {SENT: broadcast(FINE, MASK), **receiver})
    assert got == ([] if found is None else [found])
