"""Minus infinity that ranks send each other: a mask where only finite values come of it, and else followed back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from made_dumps import call, plain, tensor, write

from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow
from probe.overflow.findings import ORIGIN, OUTSIDE

NAN, MASK, FINE = tensor(math.nan, math.nan), tensor(1.0, -math.inf), tensor()
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "0"}


def broadcast(before: Any, after: Any) -> dict[str, Any]:
    return call([before], [after], {"src": plain(0), "group": GROUP})


def first(tmp_path: Path, *ranks: dict[str, Any]) -> list[tuple[str, int, str]]:
    for rank, data in enumerate(ranks):
        write(tmp_path / "step0" / f"rank{rank}", data)
    found = find_overflow(str(tmp_path), where=Where(jobs=1)).first
    return [(finding.kind, finding.rank, finding.record) for finding in found]


def test_a_mask_that_is_sent_is_no_finding(tmp_path: Path) -> None:
    softmax = call([MASK], [FINE])
    sender = {"Distributed.broadcast.0.forward": broadcast(MASK, MASK), "Functional.softmax.0.forward": softmax}
    receiver = {"Distributed.broadcast.0.forward": broadcast(FINE, MASK), "Functional.softmax.0.forward": softmax}
    assert first(tmp_path, sender, receiver) == []


def test_scores_that_were_masked_before_they_were_sent_are_no_finding(tmp_path: Path) -> None:
    masked = call([FINE, plain(-math.inf)], [MASK])
    softmax = call([MASK], [FINE])
    sender = {"Tensor.masked_fill.0.forward": masked, "Distributed.broadcast.0.forward": broadcast(MASK, MASK)}
    receiver = {"Distributed.broadcast.0.forward": broadcast(FINE, MASK), "Functional.softmax.0.forward": softmax}
    assert first(tmp_path, sender, receiver) == []


def test_what_another_rank_makes_a_nan_of_came_from_the_data_of_the_first(tmp_path: Path) -> None:
    sender = {"Tensor.add.0.forward": call([MASK], [MASK]), "Distributed.broadcast.0.forward": broadcast(MASK, MASK)}
    linear = call([MASK, FINE], [NAN])
    receiver = {"Distributed.broadcast.0.forward": broadcast(FINE, MASK), "Functional.linear.0.forward": linear}
    assert first(tmp_path, sender, receiver) == [(OUTSIDE, 0, "Tensor.add.0.forward")]


def test_what_another_rank_makes_a_nan_of_was_made_by_a_logarithm_of_the_first(tmp_path: Path) -> None:
    sender = {
        "Torch.log.0.forward": call([tensor(1.0, 0.0)], [MASK]),
        "Distributed.broadcast.0.forward": broadcast(MASK, MASK),
    }
    linear = call([MASK, FINE], [NAN])
    receiver = {"Distributed.broadcast.0.forward": broadcast(FINE, MASK), "Functional.linear.0.forward": linear}
    assert first(tmp_path, sender, receiver) == [(ORIGIN, 0, "Torch.log.0.forward")]


def test_a_row_that_is_masked_on_all_ranks_is_blamed_where_it_is_used(tmp_path: Path) -> None:
    sender = {"Distributed.broadcast.0.forward": broadcast(MASK, MASK)}
    receiver = {
        "Distributed.broadcast.0.forward": broadcast(FINE, MASK),
        "Functional.softmax.0.forward": call([MASK], [NAN]),
    }
    assert first(tmp_path, sender, receiver) == [(ORIGIN, 1, "Functional.softmax.0.forward")]
