"""The state from which a call draws random numbers: read without a trace, and given back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probe.backends.torch.adapter import TorchAdapter

ADAPTER = TorchAdapter()


@pytest.mark.parametrize("base", ["Functional.dropout", "Torch.rand_like", "Tensor.normal_", "Torch.alpha_dropout"])
def test_the_same_numbers_are_drawn_again(base: str) -> None:
    x = torch.ones(100)
    torch.rand(7)
    state = ADAPTER.randomness.random_state(base, [x], {})
    assert state is not None
    first = torch.dropout(x, 0.5, True)
    torch.rand(3)
    assert ADAPTER.execution.restore_draws(ADAPTER.execution.values(state), "cpu")
    assert torch.equal(torch.dropout(x, 0.5, True), first)


def test_asking_changes_nothing() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    state = ADAPTER.randomness.random_state("Functional.dropout", [expected], {})
    assert state is not None
    assert torch.equal(torch.rand(4), expected)
    # Nor does what is drawn later reach it.
    assert not torch.equal(state, torch.default_generator.get_state())


@pytest.mark.parametrize("base", ["Functional.silu", "Torch.add", "Functional.scaled_dot_product_attention"])
def test_other_calls_have_none(base: str) -> None:
    assert ADAPTER.randomness.random_state(base, [torch.ones(2)], {}) is None


def test_a_generator_of_the_program_has_a_state_of_its_own() -> None:
    assert ADAPTER.randomness.random_state("Torch.rand", [2], {"generator": torch.Generator()}) is None


def test_the_state_of_another_kind_of_device_is_refused() -> None:
    before = torch.default_generator.get_state()
    assert not ADAPTER.execution.restore_draws(np.zeros(16, np.uint8), "cpu")
    assert torch.equal(torch.default_generator.get_state(), before)


def test_modes_of_the_program_do_not_see_it() -> None:
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(function)
            return function(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Mode():
        assert ADAPTER.randomness.random_state("Functional.dropout", [x], {"device": "cpu"}) is not None
        assert ADAPTER.randomness.random_state("Torch.rand", [1], {}) is not None
    assert not seen
