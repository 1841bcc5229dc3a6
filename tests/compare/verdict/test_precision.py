"""Types that differ by design are no divergence; one place in another type is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from divergence_runs import W, X, call, compared, named, tensor
from numpy.typing import NDArray

Run = dict[str, Any]
CALLS = 10
BFLOAT16 = "torch.bfloat16"


def rounded(array: NDArray[Any]) -> NDArray[np.float32]:
    """The values that bfloat16 has."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x8000) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def chain(in_bfloat16: range = range(0), fault_at: int = -1) -> Run:
    """Products and activations, of which those with these numbers are computed and kept in bfloat16."""
    data: Run = {}
    x = X
    for number in range(CALLS):
        short = number in in_bfloat16
        dtype, kept = (BFLOAT16, rounded) if short else ("torch.float32", np.asarray)
        given, weight = kept(x), kept(W)
        y = kept(given @ weight * np.float32(1.2 if number == fault_at else 1.0))
        inputs = [tensor(given, dtype), tensor(weight, dtype)]
        data[f"Functional.linear.{number}.forward"] = call(inputs, tensor(y, dtype))
        x = kept(np.tanh(y))
        data[f"Torch.tanh.{number}.forward"] = call([tensor(y, dtype)], tensor(x, dtype))
    return data


def test_a_whole_run_in_bfloat16_is_silent_on_either_side(tmp_path: Path) -> None:
    short, wide = chain(range(CALLS)), chain()
    assert compared(tmp_path / "1", short, wide) is None
    assert compared(tmp_path / "2", wide, short) is None


def test_a_fault_in_such_a_run_is_named(tmp_path: Path) -> None:
    faulty = chain(range(CALLS), fault_at=5)
    assert named(compared(tmp_path, faulty, chain())) == "Functional.linear.5.forward"


def test_one_place_in_bfloat16_is_named_with_its_type_as_the_cause(tmp_path: Path) -> None:
    divergence = compared(tmp_path, chain(range(4, 5)), chain())
    assert named(divergence) == "Functional.linear.4.forward"
    assert divergence is not None
    assert divergence.first.cause == "input.0 is bfloat16 and in the golden run float32"
