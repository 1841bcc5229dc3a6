"""Dropout is judged by what it promises, whatever was drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.calls.verdict import KernelVerdict, Subject, judge
from probe.common.numerics.formats import rounding_format
from probe.common.numerics.rounding import rounded_to


def held(values: Any, dtype: str) -> Any:
    form = rounding_format(dtype)
    assert form is not None
    return rounded_to(np.asarray(values, np.float64), form)


def dropped(
    result: Any, source: Any, settings: dict[str, Any], base: str = "Functional.dropout", **given: Any
) -> KernelVerdict:
    dtype = given.get("dtype", "float32")
    inputs = given.get("inputs", [source])
    return judge(
        Subject(
            base, given.get("direction", "forward"), held(result, dtype), np.zeros(np.shape(result)), dtype, inputs,
            [dtype] * len(inputs), lambda unit, inside: None, lambda name: None, lambda: None, settings,
        )
    )  # fmt: skip


def kept(count: int, p: float, seed: int = 1) -> Any:
    return np.random.default_rng(seed).random(count) >= p


SOURCE = 1 + np.random.default_rng(9).random(1000)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_kept_and_scaled_or_zero(p: float, dtype: str) -> None:
    source = held(SOURCE, dtype)
    found = dropped(source * kept(1000, p) / (1 - p), source, {"p": p}, dtype=dtype)
    assert found.status in ("exact", "pass")
    assert found.interpretation.endswith(f"of 1000 dropped at p = {p}, the others scaled")


def test_a_wrong_scale_is_an_error() -> None:
    found = dropped(SOURCE * kept(1000, 0.1), SOURCE, {"p": 0.1})
    assert found.status == "error"
    assert "neither dropped nor kept and scaled" in found.interpretation


@pytest.mark.parametrize(("count", "status"), [(19, "exact"), (30, "error"), (1000, "error")])
def test_everything_dropped_is_an_error_where_chance_does_not_do_it(count: int, status: str) -> None:
    # At p = 0.5 with a probability of 2^-19, of which twice the bound is above 1e-6, and 2^-30, below it.
    assert dropped(np.zeros(count), np.ones(count), {"p": 0.5}).status == status


def test_another_share_is_an_error() -> None:
    assert dropped(SOURCE * kept(1000, 0.2) / 0.9, SOURCE, {"1": 0.1}).status == "error"


def test_nothing_dropped_is_an_error_too() -> None:
    assert dropped(SOURCE / 0.5, SOURCE, {}).status == "error"


def test_without_training_it_gives_its_input() -> None:
    def plain(result: Any) -> KernelVerdict:
        return judge(
            Subject(
                "Functional.dropout", "forward", result, SOURCE, "float64", [SOURCE], ["float64"],
                lambda unit, inside: unit * SOURCE, lambda name: None, lambda: None, {"p": 0.5, "training": False},
            )
        )  # fmt: skip

    assert plain(SOURCE).status == "exact"
    assert plain(SOURCE * kept(1000, 0.5) * 2).status == "error"


def test_gradients_are_dropped_where_the_output_was() -> None:
    gradient = SOURCE[::-1]
    mask = kept(1000, 0.3)
    given: dict[str, Any] = {"direction": "backward", "inputs": [SOURCE, gradient]}
    assert dropped(gradient * mask / 0.7, SOURCE, {"p": 0.3}, **given).status in ("exact", "pass")
    assert dropped(SOURCE * mask / 0.7, SOURCE, {"p": 0.3}, **given).status == "error"


def test_channels_are_dropped_whole() -> None:
    source = SOURCE.reshape(10, 20, 5)
    channels = kept(200, 0.5).reshape(10, 20, 1)
    given: dict[str, Any] = {"base": "Functional.dropout2d"}
    assert dropped(source * channels * 2, source, {"p": 0.5}, **given).status == "exact"
    alone = kept(1000, 0.5).reshape(10, 20, 5)
    found = dropped(source * alone * 2, source, {"p": 0.5}, **given)
    assert (found.status, found.interpretation) == ("error", "a channel is dropped in part")


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    # Klambauer et al. 2017: a (x d + alpha' (1 - d)) + b with a = (q + alpha'^2 q (1 - q))^-1/2, b = -a (1 - q) alpha'.
    p, low = 0.25, -1.7580993408473766
    a = (0.75 + low**2 * 0.75 * 0.25) ** -0.5
    mask = kept(1000, p)
    result = a * np.where(mask, SOURCE, low) - a * p * low
    given: dict[str, Any] = {"base": "Functional.alpha_dropout"}
    assert dropped(result, SOURCE, {"p": p}, **given).status in ("exact", "pass")
    assert dropped(a * np.where(mask, SOURCE, 0), SOURCE, {"p": p}, **given).status == "error"


def test_a_primitive_tells_its_share_by_its_scale() -> None:
    mask = kept(1000, 0.2)
    given: dict[str, Any] = {"base": "Primitive.dropout.Dropout"}
    assert dropped(SOURCE * mask / 0.8, SOURCE, {}, **given).status in ("exact", "pass")
    assert dropped(SOURCE * mask / 0.3, SOURCE, {}, **given).status == "error"


def test_nan_from_nowhere() -> None:
    result = SOURCE * kept(1000, 0.5) * 2
    result[17] = np.nan
    assert dropped(result, SOURCE, {}).status == "nonfinite"
