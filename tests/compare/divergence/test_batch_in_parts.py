"""One batch beside the same batch in parts, as with gradient accumulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from divergence_runs import W, X, call, result_of, tensor

EMBED, HEAD = "Module.embed.Linear.forward.{}", "Module.head.Linear.forward.{}"


def _calls(parts: int, weight: np.ndarray = W) -> dict[str, object]:
    found: dict[str, object] = {}
    for number, rows in enumerate(np.split(X, parts)):
        for name in (EMBED, HEAD):
            found[name.format(number)] = call([tensor(rows)], tensor(rows @ weight), weight=tensor(weight))
    return found


def test_calls_of_parts_are_undecided_and_no_divergence(tmp_path: Path) -> None:
    result = result_of(tmp_path, _calls(2), _calls(1), level="L0")
    assert result.divergence is None
    assert "2 calls" in result.undecided[0].reason and "calls of parts are not compared" in result.undecided[0].reason


def test_a_part_of_the_batch_alone_is_still_named(tmp_path: Path) -> None:
    half = {name: record for name, record in _calls(2).items() if name.endswith("0")}
    assert result_of(tmp_path, half, _calls(1), level="L0").divergence is not None
