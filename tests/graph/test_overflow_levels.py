"""Where values overflow."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from made_dumps import call, plain, written

from probe.common.dump.reading.dump import read
from probe.graph.diff import diff_of
from probe.graph.graph import graph_of
from probe.graph.overflow_levels import (
    CRITICAL,
    GROWTH,
    HIGH,
    LEVELS,
    MEDIUM,
    NONE,
    SATURATED,
    OverflowLevels,
    overflow,
    overflows,
)

CASES = Path(__file__).parent / "cases"
NAN, INF = math.nan, math.inf


def tensor(largest: float = 1.0, smallest: float = -1.0, norm: float = 2.0, dtype: str = "torch.float32") -> Any:
    mean = NAN if math.isnan(largest) else smallest if math.isinf(smallest) else largest
    return made_dumps.tensor(largest, smallest, mean, norm, (2, 3), dtype)


def levels_of(folder: Path, calls: dict[str, dict[str, Any]]) -> OverflowLevels:
    dump = written(folder, calls, dict.fromkeys(calls), level="L1")
    return overflow(graph_of(dump), dump)


def level_of(folder: Path, fields: dict[str, Any], name: str = "Functional.f.0.forward") -> int:
    return levels_of(folder, {name: fields}).levels[0]


FINE, BROKEN = tensor(), tensor(NAN, NAN)


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        (call([FINE], [FINE]), NONE),
        (call([BROKEN], [FINE]), MEDIUM),
        (call([BROKEN], [BROKEN]), HIGH),
        (call([FINE], [BROKEN]), CRITICAL),
        (call([FINE], [tensor(INF, 0.0)]), CRITICAL),
        (call([FINE], [tensor(0.0, -INF)]), CRITICAL),
        (call([FINE], [BROKEN], parameters={"weight": BROKEN}), HIGH),
        (call([FINE], [{"logits": BROKEN}]), CRITICAL),
        (call([FINE], [{"logits": [FINE, {"loss": BROKEN}]}]), CRITICAL),
        (call([], [FINE], {"mask": BROKEN}), MEDIUM),
        (call([plain(NAN)], [FINE]), NONE),
        (call([tensor(norm=1.0)], [tensor(norm=100.0)]), NONE),
        (call([tensor(norm=1.0)], [tensor(norm=100.1)]), GROWTH),
        (call([tensor(norm=0.0)], [tensor(norm=100.1)]), NONE),
        (call([tensor(norm=1.0)], [tensor(norm=150.0)], parameters={"weight": tensor(norm=2.0)}), NONE),
        (call([FINE], [tensor(65504.0, dtype="torch.float16")]), SATURATED),
        (call([FINE], [tensor(3.3895313892515355e38, dtype="BFloat16")]), SATURATED),
        (call([FINE], [tensor(0.0, -3.4028234663852886e38)]), SATURATED),
        (call([FINE], [tensor(65503.0, dtype="torch.float16")]), NONE),
        (call([FINE], [tensor(65504.0, dtype="torch.float32")]), NONE),
        (call([tensor(65504.0, dtype="Float16")], [tensor(65504.0, dtype="Float16")]), NONE),
        (call([FINE, plain(-65504.0)], [tensor(0.0, -65504.0, dtype="torch.float16")]), NONE),
    ],
)
def test_levels_of_a_call(tmp_path: Path, fields: dict[str, Any], level: int) -> None:
    assert LEVELS[level_of(tmp_path, fields)] == LEVELS[level]


def test_memory_that_nobody_wrote_to_is_not_looked_at(tmp_path: Path) -> None:
    found = levels_of(tmp_path, {"Torch.empty.0.forward": call([plain(3.0)], [BROKEN])})
    assert found.levels[0] == NONE
    assert found.first == -1


def test_a_gradient_that_is_not_finite_came_so(tmp_path: Path) -> None:
    assert level_of(tmp_path, {"weight": [BROKEN]}, "Module.net.Linear.parameters_grad.0") == HIGH


def test_the_first_value_that_is_not_finite_is_named(tmp_path: Path) -> None:
    calls = {
        "Functional.a.0.forward": call([FINE], [FINE]),
        "Functional.b.0.forward": call([FINE], [tensor(INF, 0.0)]),
        "Functional.c.0.forward": call([tensor(INF, 0.0)], [BROKEN]),
    }
    found = levels_of(tmp_path, calls)
    assert found.first == 1
    # The group of the three and the root have no values.
    assert list(found.levels) == [NONE, CRITICAL, HIGH, NONE, NONE]


def test_a_mask_of_minus_infinities_is_no_overflow(tmp_path: Path) -> None:
    masked = tensor(1.0, -INF)
    calls = {
        "Tensor.masked_fill.0.forward": call([FINE, FINE, plain(-INF)], [masked]),
        "Functional.softmax.0.forward": call([masked], [FINE]),
        "Torch.log.0.forward": call([FINE], [masked]),
        "Torch.exp.0.forward": call([FINE], [tensor(INF, 0.0)]),
        "Torch.sub.0.forward": call([tensor(INF, 0.0), tensor(INF, 0.0)], [BROKEN]),
    }
    found = levels_of(tmp_path, calls)
    # Minus infinity is what the logarithm of zero is; no finite number has an infinite exponential.
    assert list(found.levels[:5]) == [NONE, NONE, NONE, CRITICAL, HIGH]
    assert found.first == 3


def test_a_mask_that_came_in_is_none_unless_a_nan_comes_of_it(tmp_path: Path) -> None:
    masked = tensor(1.0, -INF)
    found = levels_of(tmp_path, {"Functional.softmax.0.forward": call([masked], [FINE])})
    assert found.levels[0] == NONE
    assert found.first == -1
    found = levels_of(tmp_path, {"Functional.softmax.0.forward": call([masked], [BROKEN])})
    assert found.levels[0] == CRITICAL
    assert found.first == 0


def test_the_case_with_a_nan_weight() -> None:
    goals = json.loads((CASES / "goals.json").read_text(encoding="utf-8"))
    diff = diff_of(read(CASES / "dumps" / "llama_nan"), read(CASES / "dumps" / "llama"))
    target, golden = overflows(diff)
    assert diff.golden is not None and golden is not None
    assert sum(level >= MEDIUM for level in golden.levels) == goals["nan_overflow"]["golden_nodes_with_a_level"]
    assert golden.first == -1
    hints = [name for name, level in zip(diff.golden.names, golden.levels) if level == GROWTH]
    assert "Torch.rsqrt.0.forward" in hints
    assert diff.target.names[target.first] == goals["nan"]["first_divergence"]
    # Its weight was broken before it ran.
    assert target.levels[diff.target.index[goals["nan"]["module"]]] == HIGH
    # What a Hugging Face model returns is an object with fields.
    assert target.levels[diff.target.index["Module.model.LlamaModel.forward.0"]] == CRITICAL


def test_one_dump_alone_says_the_same() -> None:
    dump = read(CASES / "dumps" / "llama_nan")
    alone = overflow(graph_of(dump), dump)
    target, golden = overflows(diff_of(dump, read(CASES / "dumps" / "llama")))
    assert alone == target
    assert overflows(diff_of(dump)) == (target, None)
    assert golden is not None
