"""The subject of a judgement, and the judgement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from numpy.typing import NDArray

Array = NDArray[Any]
Value = Union[float, complex, int, bool, None]

NOT_RUN = "not run"
EXACT = "exact"
PASS = "pass"
SUSPECT = "suspect"
ERROR = "error"
NONFINITE = "nonfinite"
STRUCTURE = "structure"
SEVERITY = {status: rank for rank, status in enumerate((NOT_RUN, EXACT, PASS, SUSPECT, ERROR, NONFINITE, STRUCTURE))}
"""The statuses, the worst last."""
FAILURES = (ERROR, NONFINITE, STRUCTURE)
"""The statuses of a result that is wrong."""


def worst_of(statuses: Iterable[str]) -> str:
    """The worst of some statuses, which is `not run` if there are none."""
    return max(statuses, key=SEVERITY.__getitem__, default=NOT_RUN)


@dataclass(frozen=True)
class Subject:
    """One output of a call, or its gradient by one input."""

    base: str
    """The operation, as ``Functional.silu``."""
    direction: str
    """``forward`` or ``backward``."""
    result: Array
    """The result of the device, exactly: a dtype that numpy lacks is held in float32."""
    reference: Array
    """The exact result in float64 or complex128; in int64 or bool where the operation gives whole numbers."""
    dtype: str
    """The plain name of the result's dtype, as ``bfloat16``."""
    inputs: Sequence[Array]
    """The tensors that went in, in order; backward, the gradients of the outputs after them."""
    input_dtypes: Sequence[str]
    moved: Callable[[float, bool], Array | None]
    """The largest movement of the reference, element by element, when every float input is moved by this relative
    amount up or down at random, over several draws; ``None`` if it cannot be run. With ``True`` the values computed
    inside are moved as well, which takes ten times as long."""
    rounded: Callable[[str], Array | None]
    """The reference with its float inputs rounded to ``bfloat16``, ``float16`` or ``tfloat32``."""
    yardstick: Callable[[], Array | None]
    """The result of another correct kernel in the dtype of the result; ``None`` if there is no such kernel."""
    settings: Mapping[str, Any]
    """The plain arguments, by place (``"0"``) or by name (``"dim"``)."""
    moved_inside: Callable[[float], Array | None] = lambda unit: None
    """The movement of the result by moves of values inside, not of inputs; ``None`` if nothing inside is seen."""
    precision: str = ""
    """The dtype of the autocast under which the result was computed; empty without. A linear layer of float32 under
    autocast to bfloat16 has gradients of float32 that were computed in bfloat16."""


@dataclass(frozen=True)
class KernelVerdict:
    """The judgement of one subject."""

    status: str
    """The status, one of `SEVERITY`."""
    interpretation: str
    """One line of plain English."""
    bound: str = ""
    """The origin of the tolerance: ``exact``, ``rounded once``, ``dot product of 4096``, ``conditioning`` ..."""
    ratio: float | None = None
    """The error of the worst element by its tolerance."""
    tolerance: float | None = None
    """The absolute tolerance of the worst element."""
    worst_index: tuple[int, ...] | None = None
    worst_result: Value = None
    worst_reference: Value = None
    max_ulp: float | None = None
    mean_ulp: float | None = None
    """Errors in units of the last place of the reference in the result's dtype."""
    share_over: float | None = None
    """The share of elements whose error is over the tolerance."""
    fits: str | None = None
    """The lower precision that explains a failing result, as ``bfloat16 inputs``."""
