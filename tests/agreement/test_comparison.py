"""One network in every framework, compared without a mapping file: each module and function meets its counterpart."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from agreement.interpreters import BACKENDS, run

from probe.common.dump.naming import is_module
from probe.common.dump.reading.dump import Dump, read
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

HERE = Path(__file__).parent
LEVELS = ("L0", "L1", "mix")

# Items that have no counterpart though their records do.
RESIDUE = {
    # PyTorch shows the gradients that the last step of the function hands on: that of the weight is transposed.
    ("linear.0.backward", "output.1"),
    ("linear.0.backward", "output.2"),
    ("linear.1.backward", "output.1"),
    ("linear.1.backward", "output.2"),
    # A number has no gradient, and only PyTorch leaves a place for it.
    ("__mul__.0.backward", "output.1"),
    # What MindSpore's function does not take.
    ("relu.0.forward", "input.inplace"),
}


def dumped(folder: Path, backend: str, way: str) -> Dump:
    (process,) = (folder / backend / way / "step0").iterdir()
    return read(process)


def alone(result: ComparisonResult) -> set[tuple[str, str]]:
    """Items without counterpart: record without its family, and the rest of the name."""
    found = set()
    for row in result.rows:
        item = row.target or row.golden
        assert item is not None
        if row.target is None or row.golden is None:
            found.add((row.record.partition(".")[2], item.name[len(row.record) + 1 :]))
    return found


def unmatched(result: ComparisonResult, target: Dump, golden: Dump) -> tuple[list[str], list[str]]:
    pairs = {row.record: row.golden_record for row in result.rows if row.target and row.golden}
    assert len(set(pairs.values())) == len(pairs)
    return (
        [record.name for record in target if record.name not in pairs],
        [record.name for record in golden if record.name not in set(pairs.values())],
    )


@pytest.mark.parametrize("way", LEVELS)
@pytest.mark.parametrize("sides", list(permutations(BACKENDS, 2)), ids="-".join)
def test_every_record_meets_its_counterpart(folder: Path, sides: tuple[str, str], way: str) -> None:
    target, golden = (dumped(folder, backend, way) for backend in sides)
    result = compare_dumps(target, golden)
    assert unmatched(result, target, golden) == ([], [])
    assert alone(result) <= RESIDUE
    assert all(row.result != "error" for row in result.rows)
    assert result.divergence is None


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformers")
    np.savez(folder / "weights.npz", **weights())
    for backend in ("torch", "mindspore"):
        run(backend, HERE / f"transformer_{backend}.py", str(folder), *LEVELS)
    return folder


def weights(depth: int = 3, width: int = 8, words: int = 11, classes: int = 3) -> dict[str, np.ndarray]:
    """Weights by the names of transformer_torch.py, word numbers and labels."""
    random = np.random.default_rng(11)
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (words, width), "classifier.weight": (classes, width)}
    shapes |= {"classifier.bias": (classes,), "norm.weight": (width,), "norm.bias": (width,)}
    for n in range(depth):
        for part in ("norm1", "norm2"):
            shapes |= {f"layers.{n}.{part}.{name}": (width,) for name in ("weight", "bias")}
        for part in "qkvo":
            shapes[f"layers.{n}.self_attn.{part}_proj.weight"] = width, width
            shapes[f"layers.{n}.self_attn.{part}_proj.bias"] = (width,)
        shapes |= {f"layers.{n}.mlp.fc1.weight": (4 * width, width), f"layers.{n}.mlp.fc1.bias": (4 * width,)}
        shapes |= {f"layers.{n}.mlp.fc2.weight": (width, 4 * width), f"layers.{n}.mlp.fc2.bias": (width,)}
    arrays = {name: random.normal(0.2, 0.4, size=shape).astype(np.float32) for name, shape in shapes.items()}
    return {
        **arrays,
        "ids": random.integers(0, words, (2, 5)).astype(np.int32),
        "labels": random.integers(0, classes, (2,)),
    }


@pytest.mark.parametrize("way", LEVELS)
def test_a_transformer_of_other_names_meets_its_model(transformers: Path, way: str) -> None:
    target, golden = (dumped(transformers, backend, way) for backend in ("mindspore", "torch"))
    result = compare_dumps(target, golden)
    mine, theirs = unmatched(result, target, golden)
    # The layers of MindSpore compute with primitives what those of PyTorch do in one function.
    functions = {name.rpartition(".")[0].rpartition(".")[0] for name in theirs}
    assert functions <= {"Functional.linear", "Functional.embedding"}
    layers = {name.split(".")[-3] for name in mine if is_module(name)}
    # A layer that is a function there, and two levels that are not there.
    assert layers == (set() if way == "L1" else {"GELU", "Encoder", "Classifier"})
    for row in result.rows:
        n, b = row.target, row.golden
        # PyTorch computes this loss in two steps, and shows the gradient of the last of them.
        if n is None or b is None or not n.is_tensor or n.name == "Functional.cross_entropy.0.backward.output.0":
            continue
        for statistic in ("max", "min", "mean", "norm"):
            assert getattr(n, statistic) == pytest.approx(getattr(b, statistic), rel=1e-4, abs=1e-5), n.name
