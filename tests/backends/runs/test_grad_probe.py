"""Task ``grad_probe``: tables and signs are what numpy makes of the gradients; the training gives the same bits."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.api.debugger import PrecisionDebugger
from probe.backends import loader
from probe.common.errors import MsprobeException

BOUNDS = [-0.05, 0, 0.1]
STEPS = 3


class Probed:
    """A training of one layer whose gradients are known, and the files of the probe."""

    def __init__(self, backend: Any, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        self.kind = type("PrecisionDebugger", (PrecisionDebugger,), {"backend": loader.detect(backend.name)})
        rng = np.random.default_rng(4)
        self.first = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=5).astype(np.float32)
        self.batches = [rng.normal(size=(7, 3)).astype(np.float32) for _ in range(STEPS)]

    def train(self, settings: dict[str, Any] | None, gives_optimizer: bool = False, **top: Any) -> list[Any]:
        """The losses, and the weights after each step."""
        backend = self.backend
        backend.seed(1)

        def forward(self: Any, x: Any) -> Any:
            return self.one(x)

        model = backend.module("Net", forward, one=backend.linear(*self.first))
        backend.training(model, True)
        debugger = None
        if settings is not None:
            path = self.folder / "config.json"
            content = {"task": "grad_probe", "dump_path": str(self.folder / "out"), "grad_probe": settings, **top}
            path.write_text(json.dumps(content), encoding="utf-8")
            debugger = self.kind(str(path))
            if not gives_optimizer:
                debugger.monitor(model)
        optimizer, step = backend.adam(model)
        if debugger is not None and gives_optimizer:
            debugger.monitor(optimizer)
        found = []
        for batch in self.batches:
            loss = step(backend.tensor(batch))
            weights = {key: value for key, value in backend.state(model).items() if not key.endswith(".grad")}
            found.append((np.array(loss), {key: np.array(value) for key, value in weights.items()}))
        if debugger is not None:
            debugger.stop()
            type(debugger).reset()
        self.left = backend.traces_left(model)
        return found

    def gradients(self, at: int, weights: dict[str, Any]) -> dict[str, Any]:
        """The gradients of the mean of squares of a linear layer, in float64."""
        x = self.batches[at].astype(np.float64)
        weight, bias = (np.asarray(value, np.float64) for value in (weights["one.weight"], weights["one.bias"]))
        error = 2 * (x @ weight.T + bias) / (len(x) * len(bias))
        return {"one.weight": error.T @ x, "one.bias": error.sum(0)}

    def table(self, step: int) -> dict[str, dict[str, str]]:
        with (self.folder / "out" / "rank0" / f"grad_summary_{step}.csv").open(newline="") as stream:
            return {row["param_name"]: row for row in csv.DictReader(stream)}

    def signs(self, step: int, name: str) -> Any:
        return np.load(self.folder / "out" / "rank0" / f"step{step}" / f"{name}.npy")


@pytest.fixture
def probed(backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probed]:
    monkeypatch.chdir(tmp_path)
    yield Probed(backend, tmp_path)
    PrecisionDebugger.reset()


def test_tables_and_signs_are_what_numpy_makes_of_the_gradients(probed: Probed) -> None:
    bare = probed.train(None)
    found = probed.train({"grad_level": "L2", "bounds": BOUNDS})
    for (loss, weights), (other, others) in zip(bare, found):
        assert loss.tobytes() == other.tobytes()
        assert {key: value.tobytes() for key, value in weights.items()} == {
            key: value.tobytes() for key, value in others.items()
        }
    before = {"one.weight": probed.first[0], "one.bias": probed.first[1]}
    for step, (_, after) in enumerate(found):
        rows = probed.table(step)
        expected = probed.gradients(step, before)
        assert list(next(iter(rows.values()))) == [
            "param_name", "(-inf, -0.05]", "(-0.05, 0]", "(0, 0.1]", "(0.1, inf)", "=0", "max", "min", "norm", "shape",
        ]  # fmt: skip
        assert set(rows) == set(expected)
        for name, gradient in expected.items():
            row, total = rows[name], gradient.size
            ends = np.array([-np.inf, *BOUNDS, np.inf])
            inside = [(gradient > low) & (gradient <= high) for low, high in zip(ends, ends[1:])]
            shares = [np.count_nonzero(each) / total for each in inside]
            assert [float(row[key]) for key in list(row)[1:5]] == pytest.approx(shares)
            assert float(row["=0"]) == 0
            assert float(row["max"]) == pytest.approx(gradient.max(), rel=1e-4)
            assert float(row["min"]) == pytest.approx(gradient.min(), rel=1e-4)
            assert float(row["norm"]) == pytest.approx(np.linalg.norm(gradient), rel=1e-4)
            assert row["shape"] == str(list(gradient.shape))
            assert np.array_equal(probed.signs(step, name), np.packbits(gradient.reshape(-1) > 0))
        before = after
    assert not probed.left


def test_checksums_are_equal_where_gradients_are_and_come_without_signs(probed: Probed) -> None:
    tables = []
    for _ in range(2):
        probed.train({"grad_level": "L0", "param_list": ["one.bias"]}, step=[1, "2"])
        names = sorted(path.name for path in (probed.folder / "out" / "rank0").iterdir())
        directions = ["grad_direction_1-1.csv", "grad_direction_2-2.csv"]
        assert names == [*directions, "grad_summary_1.csv", "grad_summary_2.csv"]
        tables.append([probed.table(step)["one.bias"] for step in (1, 2)])
    assert tables[0] == tables[1]
    assert list(tables[0][0]) == ["param_name", "MD5", "max", "min", "norm", "shape"]
    assert tables[0][0]["MD5"] != tables[0][1]["MD5"] and len(tables[0][0]["MD5"]) == 32


def test_an_optimizer_of_mindspore_is_taken_and_others_are_refused(probed: Probed) -> None:
    if probed.backend.name == "mindspore":
        probed.train({}, gives_optimizer=True)
        assert set(probed.table(STEPS - 1)) == {"one.weight", "one.bias"}
    else:
        with pytest.raises(MsprobeException, match=r"PrecisionDebugger\.monitor: module is a \w+; allowed: a module"):
            probed.train({}, gives_optimizer=True)


def test_monitor_without_the_task_says_so_and_start_with_it(probed: Probed, capsys: pytest.CaptureFixture[str]) -> None:
    debugger = probed.kind(dump_path=str(probed.folder / "dump"))
    debugger.monitor(None)
    assert 'monitor() has no effect with task "statistics", only with "grad_probe".' in capsys.readouterr().err
    probed.kind.reset()
    debugger = probed.kind(task="grad_probe", dump_path=str(probed.folder / "dump"))
    debugger.start(None)
    assert 'start() collects nothing with task "grad_probe"; call monitor(model) instead.' in capsys.readouterr().err
    assert not (probed.folder / "dump").exists()
