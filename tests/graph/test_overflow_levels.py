"""Where values overflow: the level of each call, and the record that ``msprobe overflow_check`` names too."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import made_dumps
import pytest
from graph_commands import DUMPS, LLAMA, Beside
from graph_dumps import expected
from made_dumps import call, constant, plain, write

import probe

CASES = Path(__file__).parents[1] / "overflow" / "cases"
RANKS = sorted(CASES.glob("*/step0/rank*"))
EDGES: dict[str, Any] = json.loads((CASES / "edge" / "cases.json").read_text("utf-8"))
NAN, INF = math.nan, math.inf


def tensor(largest: float = 1.0, smallest: float = -1.0, norm: float = 2.0, dtype: str = "torch.float32") -> Any:
    mean = NAN if math.isnan(largest) else smallest if math.isinf(smallest) else largest
    return made_dumps.tensor(largest, smallest, mean, norm, (2, 3), dtype)


FINE, BROKEN, HUGE = tensor(), tensor(NAN, NAN), tensor(INF, 0.0)
MASKED = tensor(1.0, -INF)


def levels(folder: Path, calls: Mapping[str, Any]) -> dict[str, str]:
    """The level of each call; ``first`` is the one that the page jumps to."""
    found = Beside(folder, write(folder / "dump", calls, dict.fromkeys(calls), level="L1"), overflow=True)
    names, column = found.manifest["levels"], found.page.column("level")
    first = found.info["nonfinite"]
    return {
        **{name: names[column[found.row[name]]] for name in calls},
        "first": "" if first is None else found.rows[first][0] or "",
    }


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        (call([FINE], [FINE]), ""),
        (call([BROKEN], [FINE]), "medium"),
        (call([BROKEN], [BROKEN]), "high"),
        (call([FINE], [BROKEN]), "critical"),
        (call([FINE], [HUGE]), "critical"),
        (call([FINE], [tensor(0.0, -INF)]), "critical"),
        (call([FINE], [BROKEN], parameters={"weight": BROKEN}), "high"),
        (call([FINE], [{"logits": [FINE, {"loss": BROKEN}]}]), "critical"),
        (call([], [FINE], {"mask": BROKEN}), "medium"),
        (call([plain(NAN)], [FINE]), ""),
        (call([tensor(norm=1.0)], [tensor(norm=100.0)]), ""),
        (call([tensor(norm=1.0)], [tensor(norm=100.1)]), "growth"),
        (call([tensor(norm=0.0)], [tensor(norm=100.1)]), ""),
        (call([tensor(norm=1.0)], [tensor(norm=150.0)], parameters={"weight": tensor(norm=2.0)}), ""),
        (call([FINE], [tensor(65504.0, dtype="torch.float16")]), "saturated"),
        (call([FINE], [tensor(3.3895313892515355e38, dtype="BFloat16")]), "saturated"),
        (call([FINE], [tensor(0.0, -3.4028234663852886e38)]), "saturated"),
        (call([FINE], [tensor(65503.0, dtype="torch.float16")]), ""),
        (call([FINE], [tensor(65504.0, dtype="torch.float32")]), ""),
        (call([tensor(65504.0, dtype="Float16")], [tensor(65504.0, dtype="Float16")]), ""),
        (call([FINE, plain(-65504.0)], [tensor(0.0, -65504.0, dtype="torch.float16")]), ""),
    ],
)
def test_levels_of_a_call(tmp_path: Path, fields: dict[str, Any], level: str) -> None:
    assert levels(tmp_path, {"Functional.f.0.forward": fields})["Functional.f.0.forward"] == level


@pytest.mark.parametrize(
    ("calls", "expected_levels", "first"),
    [
        # Memory that nobody wrote to is not looked at, and a gradient came as it is.
        ({"Torch.empty.0.forward": call([plain(3.0)], [BROKEN])}, [""], None),
        ({"Module.net.Linear.parameters_grad.0": {"weight": [BROKEN]}}, ["high"], 0),
        (
            {
                "Functional.a.0.forward": call([FINE], [FINE]),
                "Functional.b.0.forward": call([FINE], [HUGE]),
                "Functional.c.0.forward": call([HUGE], [BROKEN]),
            },
            ["", "critical", "high"],
            1,
        ),
        # A mask of minus infinities is meant, minus infinity is what the logarithm of zero is; no finite number has
        # an infinite exponential.
        (
            {
                "Tensor.masked_fill.0.forward": call([FINE, FINE, plain(-INF)], [MASKED]),
                "Functional.softmax.0.forward": call([MASKED], [FINE]),
                "Torch.log.0.forward": call([FINE], [MASKED]),
                "Torch.exp.0.forward": call([FINE], [HUGE]),
                "Torch.sub.0.forward": call([HUGE, HUGE], [BROKEN]),
            },
            ["", "", "", "critical", "high"],
            3,
        ),
        ({"Functional.softmax.0.forward": call([MASKED], [FINE])}, [""], None),
        ({"Functional.softmax.0.forward": call([MASKED], [BROKEN])}, ["critical"], 0),
    ],
)
def test_levels_of_a_step(calls: dict[str, Any], expected_levels: list[str], first: int | None, tmp_path: Path) -> None:
    found = levels(tmp_path, calls)
    assert [found[name] for name in calls] == expected_levels
    assert found["first"] == ("" if first is None else list(calls)[first])


def test_the_case_with_a_nan_weight(tmp_path: Path) -> None:
    goals = expected("goals")
    found, alone = Beside(tmp_path / "a", DUMPS / "llama_nan", LLAMA), Beside(tmp_path / "b", DUMPS / "llama_nan")
    names = found.manifest["levels"]
    level = dict(zip((name for name, _ in found.rows), (names[at] for at in found.page.column("level"))))
    golden = dict(zip((name for _, name in found.rows), (names[at] for at in found.page.column("golden_level"))))
    wrong = sum(each in ("medium", "high", "critical") for each in golden.values())
    assert wrong == goals["nan_overflow"]["golden_nodes_with_a_level"] and found.info["golden_nonfinite"] is None
    assert golden["Torch.rsqrt.0.forward"] == "growth"
    assert found.rows[found.info["nonfinite"]][0] == goals["nan"]["first_divergence"]
    # Its weight was broken before it ran; what a Hugging Face model returns is an object with fields.
    assert level[goals["nan"]["module"]] == "high" and level["Module.model.LlamaModel.forward.0"] == "critical"
    assert [names[at] for at in alone.page.column("level")] == list(level.values())


# --- the command and the page name one record


def agreed(folder: Path, work: Path) -> str | None:
    """The first record of a rank alone, as the command and the page name it."""
    findings = probe.find_overflow(str(folder)).first
    found = Beside(work, folder, overflow=True)
    row = found.info["nonfinite"]
    name = None if row is None else found.rows[row][0]
    assert [finding.record for finding in findings[:1]] == ([] if name is None else [name])
    return name


def test_a_rank_alone_has_one_first_record(tmp_path: Path) -> None:
    assert len(RANKS) == 14
    for folder in RANKS:
        assert (agreed(folder, tmp_path) is None) == (folder.parents[1].name == "clean"), folder


@pytest.mark.parametrize("edge", EDGES)
def test_records_on_the_edge_are_judged_alike(edge: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "step0" / "rank0", EDGES[edge]["data"], dump_data_dir=None)
    assert (agreed(folder, tmp_path) is None) == (edge == "norm_only_overflow")


WRITE, ADD, DROPOUT = "Tensor.__setitem__.0.forward", "Tensor.add.0.forward", "Functional.dropout.0.forward"


def _tensor(shape: list[int], value: float = 1.0) -> dict[str, Any]:
    return constant(value, shape=shape, requires_grad=True)


def test_a_nan_that_is_written_stands_at_the_write(tmp_path: Path) -> None:
    bad = _tensor([2, 12, 48], NAN)
    data = {
        ADD: call([_tensor([2, 12, 48])], [_tensor([2, 12, 48])]),
        # A view of what is used afterwards.
        WRITE: call([_tensor([1152]), plain(3), plain(NAN)], [None]),
        DROPOUT: call([bad], [bad]),
    }
    folder = write(tmp_path / "step0" / "rank0", data)
    assert agreed(folder, tmp_path) == WRITE
    (finding,) = probe.find_overflow(str(folder)).first
    assert (finding.record, finding.path[0]) == (WRITE, (0, DROPOUT))


@pytest.mark.parametrize("kind", ["never used", "another size", "a number", "another input"])
def test_a_write_that_explains_nothing_is_not_named(tmp_path: Path, kind: str) -> None:
    bad = _tensor([7] if kind == "another size" else [2, 2], NAN)
    value = 1.5 if kind == "a number" else NAN
    inputs = [bad, _tensor([9], NAN)] if kind == "another input" else [bad]
    data = {
        WRITE: call([_tensor([4]), plain(3), plain(value)], [None]),
        ADD: call([_tensor([2, 2])] if kind == "never used" else inputs, [_tensor([2, 2])]),
    }
    assert agreed(write(tmp_path / "step0" / "rank0", data), tmp_path) == (None if kind == "never used" else ADD)
