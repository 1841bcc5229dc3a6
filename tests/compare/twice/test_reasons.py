"""The reason of other bits, from the function, the device and the switches of a run."""

from __future__ import annotations

from typing import Any

import pytest

from probe.compare.twice.first_bits import How, OtherBits
from probe.compare.twice.reasons import Environments, reason


def of(function: str, is_forward: bool = True, **switches: Any) -> str:
    """The cause of a result with other bits on a GPU."""
    found = OtherBits(How.RESULT, f"Functional.{function}.0.forward", "", function, False, is_forward, "output 0")
    environment = {"devices": ["NVIDIA H200"], "switches": switches}
    return reason(found, Environments(environment, environment)).cause


@pytest.mark.parametrize(
    ("function", "is_forward", "words"),
    [
        ("index_add_", True, "atomics: on this device index_add adds or writes in the order in which its threads come"),
        ("scatter_add", True, "atomics"),
        ("embedding", False, "atomics: on this device embedding (its backward)"),
        ("__getitem__", False, "atomics"),
        ("conv2d", False, "choice of algorithm: cuDNN has algorithms of conv2d"),
        ("scaled_dot_product_attention", False, "the backward of flash and memory-efficient attention"),
        ("linear", True, "products such as linear"),
        ("embedding", True, "its kernel, or code inside of the call"),
    ],
)
def test_a_function_without_an_order_is_named_on_a_device(function: str, is_forward: bool, words: str) -> None:
    assert words in of(function, is_forward)


def test_switches_decide_what_can_be_the_reason() -> None:
    assert "cudnn.benchmark times the algorithms of conv2d" in of("conv2d", cudnn_benchmark=True)
    assert "its kernel" in of("index_add", deterministic_algorithms=True)


def test_without_a_device_no_atomics_are_blamed() -> None:
    found = OtherBits(How.RESULT, "Functional.embedding.0.backward", "", "embedding", False, False, "output 0")
    assert "its kernel, or code inside of the call" in reason(found, Environments({}, {})).cause


@pytest.mark.parametrize(
    ("function", "is_forward", "is_blamed"),
    [("index_put_", True, True), ("__getitem__", False, True), ("embedding", False, False), ("cumsum", True, False)],
)
def test_on_a_cpu_threads_are_blamed_for_what_they_add_without_an_order(
    function: str, is_forward: bool, is_blamed: bool
) -> None:
    found = OtherBits(How.RESULT, f"Tensor.{function}.0.forward", "", function, False, is_forward, "output 0")
    threads = {"switches": {"threads": 4}}
    assert ("atomics: 4 threads of the CPU" in reason(found, Environments(threads, threads)).cause) == is_blamed
    assert "its kernel" in reason(found, Environments({}, {})).cause


def test_a_sum_over_ranks_is_one_in_another_order() -> None:
    found = OtherBits(
        How.RESULT, "Distributed.all_reduce.0.forward", "", "all_reduce", False, True, "output 0", communicates=True
    )
    assert "the ranks' values are added in another order" in reason(found, Environments({}, {})).cause


def test_what_no_call_made_may_be_drawn_from_a_generator_beside_the_framework() -> None:
    found = OtherBits(How.UNRECORDED, "Tensor.add.0.forward", "", "add", False, True, "input 1")
    runs = Environments(*({"random_states": {"torch": "a", "numpy": each, "python": "b"}} for each in "cd"))
    assert "such as a number of the generators of numpy, which begin" in reason(found, runs).cause
    assert "generators" not in reason(found, Environments({}, {})).cause
