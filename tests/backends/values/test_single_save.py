"""``SingleSave`` over each framework: what a file holds of each dtype, and that training may go on at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msprobe.core import SingleSave
from probe.common import log

NUMBERS = np.array([[0.0, 1.0, 2.0], [96.0, 3.0, 64.0]])
"""Each exact in every dtype."""


@pytest.fixture
def saved(backend: Any, tmp_path: Path) -> Iterator[Path]:
    log.reset()
    SingleSave(tmp_path, fmk="pytorch" if backend.name == "torch" else "mindspore")
    yield tmp_path / "data"
    SingleSave.close()
    log.reset()


def entry(saved: Path, key: str) -> Any:
    path = saved / key / "step0/rank0/micro_step0"
    return json.loads((path / f"{key}.json").read_text(encoding="utf-8"))["data"]


def test_every_dtype_is_kept(saved: Path, backend: Any) -> None:
    dtypes = [*backend.floats, *backend.small_floats, *backend.integers, "bool"]
    execution = backend.adapter.execution
    made = {dtype: execution.tensor(NUMBERS != 0 if dtype == "bool" else NUMBERS, dtype, "cpu") for dtype in dtypes}
    SingleSave.save(made)
    SingleSave.flush()
    for dtype in dtypes:
        values = np.load(saved / dtype / f"step0/rank0/micro_step0/{dtype}.npy", allow_pickle=False)
        # numpy has neither bfloat16 nor float8.
        assert values.dtype == ("float32" if dtype.startswith(("bfloat", "float8")) else dtype)
        assert np.array_equal(values, NUMBERS != 0 if dtype == "bool" else NUMBERS), dtype
        found = entry(saved, dtype)
        assert found["dtype"] == dtype and found["shape"] == [2, 3]
        assert found["norm"] == pytest.approx(np.linalg.norm(values.astype(np.float64)))


def test_any_nesting_and_an_empty_tensor(saved: Path, backend: Any) -> None:
    one, none = backend.tensor(np.ones(2, np.float32)), backend.tensor(np.zeros((2, 0), np.float32))
    SingleSave.save({"k": {"a": [one, {"b": none}], "n": 3}})
    SingleSave.save_config({"scale": one, "name": "x"})
    SingleSave.flush()
    found = entry(saved, "k")
    assert found["a"][0]["max"] == 1 and found["n"] == 3
    assert np.load(saved / "k/step0/rank0/micro_step0/k.a.1.b.npy").shape == (2, 0)
    configuration = json.loads((saved.parent / "configurations.json").read_text(encoding="utf-8"))
    assert configuration == {"scale": [1, 1], "name": "x"}


def test_what_is_written_to_a_tensor_afterwards_is_not_saved(saved: Path, backend: Any) -> None:
    tensor = backend.tensor(np.arange(100_000, dtype=np.float32))
    SingleSave.save({"k": tensor})
    backend.write(tensor, -1.0)
    SingleSave.flush()
    assert np.array_equal(np.load(saved / "k/step0/rank0/micro_step0/k.npy"), np.arange(100_000))


def test_nothing_of_it_is_collected(runs: Any, saved: Path, backend: Any) -> None:
    debugger = runs.new(level="L1")
    debugger.start()
    SingleSave.save({"k": backend.tensor(np.ones(3, np.float32))})
    debugger.stop()
    assert not runs.read().data


def test_by_the_rules_of_msprobe_integers_are_float32(
    tmp_path: Path, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MSPROBE_RULES", "msprobe")
    SingleSave(tmp_path, fmk="pytorch" if backend.name == "torch" else "mindspore")
    try:
        SingleSave.save({"k": backend.adapter.execution.tensor(np.array([1, 2, 3, 4]), "int64", "cpu"), "n": 3})
    finally:
        SingleSave.close()
    assert np.load(tmp_path / "data/k/step0/rank0/micro_step0/k.npy").dtype == np.float32
    norm = pytest.approx(np.sqrt(30), rel=1e-6)
    assert entry(tmp_path / "data", "k") == {"max": 4, "min": 1, "mean": 2.5, "norm": norm, "shape": [4]}
    assert not (tmp_path / "data/n").exists()
