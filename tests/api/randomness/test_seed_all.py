"""The arguments of `seed_all` and what it asks of a backend; no framework is needed for this."""

from __future__ import annotations

from typing import Any

import pytest

from probe.api.randomness import seed_all
from probe.common.errors import MsprobeException


class Nothing:
    def remove(self) -> None:
        pass


class Witness:
    """A backend that only notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def seed_everything(self, seed: int, deterministic: bool) -> None:
        self.asked.append(("seed", seed, deterministic))

    def remove_dropout(self) -> Nothing:
        self.asked.append(("dropout",))
        return Nothing()

    def fix_random_calls(self) -> Nothing:
        self.asked.append(("fix",))
        return Nothing()


@pytest.fixture
def witness() -> Witness:
    return Witness()


def test_without_arguments_it_seeds_with_1234_and_changes_nothing_else(witness: Witness) -> None:
    seed_all(witness)
    assert witness.asked == [("seed", 1234, False)]


def test_random_calls_are_fixed_after_seeding(witness: Witness) -> None:
    seed_all(witness, seed=7, mode=True, rm_dropout=True, is_enhanced=True)
    assert witness.asked == [("seed", 7, True), ("dropout",), ("fix",)]


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_accepts_the_ends_of_the_range(witness: Witness, seed: int) -> None:
    seed_all(witness, seed=seed)
    assert witness.asked == [("seed", seed, False)]


@pytest.mark.parametrize("seed", [-1, 2**32, "1", 1.0, True, None])
def test_a_wrong_seed_is_named_with_its_value_and_the_range(witness: Witness, seed: Any) -> None:
    with pytest.raises(MsprobeException, match=r"^seed is .*; allowed: an int from 0 to 4294967295\.$") as caught:
        seed_all(witness, seed=seed)
    assert repr(seed) in str(caught.value)
    assert not witness.asked


@pytest.mark.parametrize("argument", ["mode", "rm_dropout", "is_enhanced"])
@pytest.mark.parametrize("value", [1, 0, "yes", None])
def test_a_wrong_switch_is_named_with_its_value(witness: Witness, argument: str, value: Any) -> None:
    with pytest.raises(MsprobeException, match=f"^{argument} is {value!r}; allowed: True, False\\.$"):
        seed_all(witness, **{argument: value})
    assert not witness.asked
