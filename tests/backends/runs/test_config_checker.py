"""`ConfigChecker` over each framework: a pack of a running program, and what two packs say."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import batch, block_network

from probe.api.config_checker import ConfigChecker
from probe.common.errors import MsprobeException
from probe.configcheck.compare import compare_packs, read_side
from probe.configcheck.model import check_states
from probe.configcheck.pack import Pack, read_pack

FMK = {"torch": "pytorch", "mindspore": "mindspore", "msadapter": "pytorch"}


@pytest.fixture(autouse=True)
def no_patches() -> Iterator[None]:
    """Functions that are still replaced go back."""
    yield
    if ConfigChecker._patches is not None:
        ConfigChecker._patches.remove()
        ConfigChecker._patches = None


def packed(backend: Any, path: Path, seed: int = 3) -> Pack:
    fmk = FMK[backend.name]
    ConfigChecker.apply_patches(fmk)
    random.seed(seed)
    backend.seed(seed)
    model = block_network(backend)
    ConfigChecker(model, output_zip_path=str(path), fmk=fmk)
    for _ in range(3):
        np.random.rand(2)
        model(batch(backend))
    return read_pack(str(path))


def test_a_pack_has_inputs_weights_settings_and_random_calls(backend: Any, tmp_path: Path) -> None:
    pack = packed(backend, tmp_path / "a.zip")
    assert sorted(pack.dataset) == sorted(pack.weights) == [(0, 0), (1, 0)], "the first two steps are collected"
    weights = pack.weights[0, 0]
    marks = pack.checksums["weights", 0, 0]
    assert len(weights) >= 2 and weights.keys() == marks.keys()
    for name, statistics in weights.items():
        assert set(statistics) == {"max", "min", "mean", "norm"} and statistics["max"] >= statistics["min"]
        assert marks[name]["checksum"] and marks[name]["shape"] and "float32" in marks[name]["dtype"].lower()
    given = pack.dataset[0, 0]["args"]["0"]
    values = np.asarray(backend.numpy(batch(backend)), np.float64)
    assert given["max"] == pytest.approx(values.max()) and given["norm"] == pytest.approx(np.sqrt((values**2).sum()))
    settings = pack.hyperparameters["hyperparameters_dynamic.json"]
    assert any(name.startswith("model.parameters.") for name in settings)
    assert pack.environment is not None and pack.environment["framework"] == backend.framework
    seeds = pack.random_calls[0]["random.seed"]
    # Some backends seed Python's generator as well.
    assert {tuple(place["arguments"]) for place in seeds} == {("3",)}
    (draws,) = (each for each in pack.random[0]["np.random.rand"] if "test_config_checker.py" in each["stack"][0])
    assert draws["count"] == 2
    assert str(Path(__file__).parent) not in json.dumps(pack.random)


def test_nothing_is_left_after_the_last_step(backend: Any, tmp_path: Path) -> None:
    before = random.random, np.random.rand
    packed(backend, tmp_path / "a.zip")
    assert (random.random, np.random.rand) == before and ConfigChecker._patches is None
    model = block_network(backend)

    def hooks() -> int:
        return sum(len(getattr(model, name, ())) for name in ("_forward_pre_hooks", "_forward_pre_hook"))

    attached = hooks()
    ConfigChecker(model, output_zip_path=str(tmp_path / "a.zip"), fmk=FMK[backend.name])
    model(batch(backend))
    assert hooks() == attached + 1
    model(batch(backend))
    assert hooks() == attached


def test_states_of_generators_tell_draws_that_nobody_noted(backend: Any, tmp_path: Path) -> None:
    def run(name: str, more: int) -> Pack:
        backend.seed(5)
        np.random.seed(5)
        model = block_network(backend)
        ConfigChecker(model, output_zip_path=str(tmp_path / name), fmk=FMK[backend.name])
        for _ in range(2):
            model(batch(backend))
            np.random.rand(2 + more)
        return read_pack(str(tmp_path / name))

    one, same, other = run("a.zip", 0), run("b.zip", 0), run("c.zip", 1)
    assert one.random_states.keys() == {(0, 0), (1, 0)}
    states = {step: one.random_states[step, 0]["numpy"] for step in (0, 1)}
    assert states[0] != states[1], "the program draws between both steps"
    found = [row.name for row in check_states(one, same) if "numpy" in row.name]
    assert found == []
    (row,) = (row for row in check_states(one, other) if "numpy" in row.name)
    assert (row.name, row.level) == ("step 1, rank 0: state of the generator of numpy", "error")


def test_equal_programs_have_equal_packs(backend: Any, tmp_path: Path) -> None:
    packed(backend, tmp_path / "a.zip")
    packed(backend, tmp_path / "b.zip")
    comparison = compare_packs(read_side(str(tmp_path / "a.zip")), read_side(str(tmp_path / "b.zip")))
    assert {check.name for check in comparison.checks} >= {"dataset", "weights", "random", "hyperparameters"}
    assert [row for check in comparison.checks for row in check.rows if check.name in ("dataset", "weights")] == []


def test_a_checker_that_is_made_in_the_loop_keeps_the_first_steps(
    backend: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "a.zip")
    model = block_network(backend)
    for _ in range(4):
        ConfigChecker(model, output_zip_path=path, fmk=FMK[backend.name])
        model(batch(backend))
    assert {step for step, _ in read_side(path).random_states} == {0, 1}
    err = capsys.readouterr().err
    assert err.count("was made for") == 1 and "Make it once, before the training loop." in err
    other = block_network(backend)
    ConfigChecker(other, output_zip_path=path, fmk=FMK[backend.name])
    other(batch(backend))
    assert {step for step, _ in read_side(path).random_states} == {0}, "another model begins another pack"


def test_a_failure_of_ours_ends_the_collection_and_not_the_program(
    backend: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = block_network(backend)
    ConfigChecker(model, output_zip_path=str(tmp_path / "a.zip"), fmk=FMK[backend.name])

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("probe.configcheck.collect.TensorRecords.inputs", broken)
    for _ in range(3):
        model(batch(backend))
    assert capsys.readouterr().err.count("ConfigChecker collects nothing more: ZeroDivisionError: ours") == 1
    assert read_pack(str(tmp_path / "a.zip")).dataset == {}
    assert "ZeroDivisionError: ours" in (tmp_path / "dump_error_info.log").read_text(encoding="utf-8")


def test_wrong_arguments_are_named_with_what_is_allowed(backend: Any, tmp_path: Path) -> None:
    fmk, path = FMK[backend.name], str(tmp_path / "a.zip")
    with pytest.raises(MsprobeException, match="'jax'; allowed: pytorch, mindspore"):
        ConfigChecker.apply_patches("jax")
    for given, text in (
        ({"model": 3, "output_zip_path": path}, "model is a int; allowed: "),
        ({"output_zip_path": str(tmp_path / "a.tar")}, "ends with"),
        ({"output_zip_path": path, "steps": 0}, "steps is 0; allowed"),
    ):
        with pytest.raises(MsprobeException, match=text):
            ConfigChecker(fmk=fmk, **given)
