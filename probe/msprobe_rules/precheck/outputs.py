"""The outputs of an API, as a whole: tensors, plain values, and lists and dicts of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from numpy.typing import NDArray
from typing_extensions import TypeGuard

from probe.msprobe_rules.output.details import ERROR, PASS, DetailsRow


@dataclass(frozen=True)
class Tensor:
    """The values of a tensor, and the plain name of its dtype; bfloat16 is held in float32."""

    values: NDArray[Any]
    dtype: str


Output = Union[Tensor, None, bool, int, float, str, Sequence[Any], Mapping[str, Any]]


def plain_row(result: Any, reference: Any, name: str) -> DetailsRow:
    """The row of a number, a text or a bool, which has to be equal."""
    bench, device = (f"<class '{type(value).__name__}'>" for value in (reference, result))
    equal = result == reference or (result != result and reference != reference)
    rate = {} if isinstance(result, str) else {"binary_error_rate": 0.0 if equal else 1.0}
    return DetailsRow(name, PASS if equal else ERROR, "", bench, device, metrics=rate)


def is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    """True if a value is a list or a tuple."""
    return isinstance(value, (list, tuple))
