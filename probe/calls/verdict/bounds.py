"""The error that a correct kernel may make, by the name of the operation.

Names are those of `probe.common.align.operations`, so that ``Tensor.__add__``, ``Torch.add`` and MindSpore's names are
one. The table is `probe.common.operations.table`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from probe.calls.verdict.subject import Array, Subject
from probe.common.align.operations import operation
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.numerics.formats import is_complex, rounding_format, unit_roundoff
from probe.common.numerics.rounding import rounded_to
from probe.common.operations.function import (
    ACTIVATION,
    CONDITIONING,
    DOT_PRODUCT,
    ELEMENTWISE,
    EXACT,
    ROUNDED_ONCE,
    SUM,
    Function,
    Rounding,
    Trait,
)
from probe.common.operations.lookup import function

FLOAT32, HALF = "float32", "half"
_MORE_ROUNDINGS = frozenset(("alpha", "rounding_mode"))
"""Arguments with which an addition or a division does more than that."""


@dataclass(frozen=True)
class Bound:
    """The rule that gives the tolerance."""

    kind: Rounding
    terms: int = 0
    """The number of roundings that one element takes: for a sum, the number of terms."""
    unbiased: bool = False
    """True if nothing inside, such as a constant that is rounded, changes all elements by one factor."""
    by_norm: bool = False
    """True if only the norm of the error is bounded, which small elements may have as well as large ones."""
    sums_in: str = ""
    """`FLOAT32` if a correct kernel of half precision sums in float32 and rounds the sum; `HALF` if correct kernels are
    known that round parts of it; empty if neither is known."""

    def __str__(self) -> str:
        return f"{self.kind} of {self.terms}" if self.terms > 1 and self.kind != CONDITIONING else self.kind


@dataclass(frozen=True)
class Known:
    """The line of the table for one operation in one direction."""

    name: str
    kind: Rounding
    summed_input: int | None = None


def bound_of(subject: Subject) -> Bound:
    """The rule for a subject: that of its operation where the lists know it and the arguments are as they assume."""
    known = known_of(subject.base, subject.direction)
    kind = known.kind
    if _has(subject.base, Trait.MODULUS) and any(map(is_complex, subject.input_dtypes)):
        return Bound(CONDITIONING)
    if _has(subject.base, Trait.FACTORISES):
        return Bound(CONDITIONING, _roundings_of_a_factor(subject), by_norm=True)
    half = Trait.ROUNDS_EARLY if subject.direction == "forward" else Trait.ROUNDS_GRADIENTS_EARLY
    sums_in = HALF if _has(subject.base, half) else ""
    if kind in (DOT_PRODUCT, SUM):
        sums_in = sums_in or (FLOAT32 if _is_given_rounded(subject) else "")
        return Bound(kind, _terms(subject, known), kind == DOT_PRODUCT, sums_in=sums_in)
    if subject.direction == "backward" and kind != ACTIVATION and _is_reduced(subject, kind):
        # The summands may be products that were rounded.
        return Bound(SUM, _terms(subject, known), sums_in=sums_in)
    if kind == EXACT and subject.direction == "backward" and not _are_held(subject):
        # If the limit is rounded, an element may be on its other side.
        return Bound(CONDITIONING, sums_in=sums_in)
    if kind == ROUNDED_ONCE and not _is_one_rounding(subject):
        kind = ELEMENTWISE
    without_constants = kind in (ROUNDED_ONCE, ELEMENTWISE) or (kind == ACTIVATION and subject.direction == "forward")
    return Bound(kind, unbiased=without_constants and _are_held(subject), sums_in=sums_in)


def _roundings_of_a_factor(subject: Subject) -> int:
    """The number of roundings of an element of an m x n matrix while it is factorised: n times a sum of m products.

    That is the bound of Householder's QR (N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
    theorem 19.4), of which the root is likely (M. P. Connolly and N. J. Higham, SIAM J. Matrix Anal. Appl. 44, 2023);
    LU and Cholesky have less, and iterations to eigenvalues begin with it. An exponential is made of fewer than n
    products of matrices, which are sums of n products each.
    """
    shape = subject.inputs[0].shape if subject.inputs else ()
    return int(math.prod(shape[-2:]))


def _is_reduced(subject: Subject, kind: str) -> bool:
    """True if this gradient is a sum over what was broadcast, as that of a weight that all rows are multiplied with."""
    if not subject.inputs:
        return kind != CONDITIONING
    size, of_output = subject.result.size, subject.inputs[-1].size
    # Without a rule the gradient may be larger than the output's for any reason.
    return size < of_output if kind == CONDITIONING else size != of_output


def _is_given_rounded(subject: Subject) -> bool:
    """True if no input is rounded before it is computed with, as inputs of float32 are under autocast."""
    computes_in = max(unit_roundoff(subject.dtype), unit_roundoff(subject.precision))
    return all(unit_roundoff(dtype) in (0.0, computes_in) for dtype in subject.input_dtypes)


def _is_one_rounding(subject: Subject) -> bool:
    """True if nothing is rounded before the result: all operands are real tensors of its dtype."""
    if is_complex(subject.dtype):
        # Each part of a product is a sum of two rounded ones.
        return False
    if any(dtype != subject.dtype for dtype in subject.input_dtypes):
        return False
    return not subject.settings.keys() & _MORE_ROUNDINGS and _are_held(subject)


def _are_held(subject: Subject) -> bool:
    """True if the dtype has all numbers among the plain arguments."""
    return all(_is_held(value, subject.dtype) for value in subject.settings.values())


def _is_held(value: Any, dtype: str) -> bool:
    """True if a plain argument is a number that the dtype has; another one is rounded before the result is."""
    of = rounding_format(dtype)
    if of is None:
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return bool(abs(value) <= of.largest and rounded_to(np.array(float(value)), of) == value)
    return True


def _terms(subject: Subject, known: Known) -> int:
    """The number of terms added for one element of the result, approximately: computed from the sizes of the inputs."""
    inputs = subject.inputs
    size = max(subject.result.size, 1)
    if known.kind == SUM and inputs and inputs[0].shape == inputs[-1].shape == subject.result.shape:
        # A sum that keeps the shape is a running sum along one dimension.
        return max(subject.result.shape, default=1)
    if _is_of_convolution_weight(subject, known):
        summed = inputs[0] if "transpose" in known.name else inputs[-1]
        return max(summed.size // max(int(inputs[1].shape[0]), 1), 1)
    if subject.direction == "forward" and known.summed_input is not None and known.summed_input < len(inputs):
        shape = inputs[known.summed_input].shape
        return int(shape[-1]) if shape else 1
    if subject.direction == "forward" and known.name.startswith("conv") and len(inputs) > 1:
        return max(int(inputs[1].size) // max(int(inputs[1].shape[0]), 1), 1)
    sizes = _sizes_of_others(inputs, subject.result.shape if subject.direction == "backward" else None)
    terms = sizes[0] / size if sizes else 1.0
    if known.kind == DOT_PRODUCT and len(sizes) > 1:
        terms = max(math.sqrt(sizes[0] * sizes[1] / size), terms if len(sizes) == 1 else 1.0)
    return max(int(terms), 1)


def _is_of_convolution_weight(subject: Subject, known: Known) -> bool:
    """True if this is the gradient of a convolution's weight: a sum over all places of all images."""
    if subject.direction != "backward" or not known.name.startswith("conv") or len(subject.inputs) < 3:
        return False
    return subject.inputs[1].ndim > 2 and subject.result.shape == subject.inputs[1].shape


def _sizes_of_others(inputs: Sequence[Array], shape: tuple[int, ...] | None) -> list[int]:
    """The sizes of `inputs`, the largest first, without the first one of `shape`, whose gradient the result is."""
    sizes = []
    for value in inputs:
        if shape is not None and value.shape == shape:
            shape = None
        else:
            sizes.append(value.size)
    return sorted(sizes, reverse=True)


@cache
def known_of(base: str, direction: str) -> Known:
    """The line of the table for an operation; unknown ones are judged by conditioning."""
    for line in _lines(base):
        kind = line.rounding if direction == "forward" else line.gradient
        if kind != CONDITIONING:
            return Known(line.name, kind, line.summed)
    return Known(base, CONDITIONING)


@cache
def _lines(base: str) -> tuple[Function, ...]:
    """The lines that the table may have for an operation, that of PyTorch's name first."""
    family, _, rest = base.partition(".")
    if family == "Aten":
        base = f"Torch.{rest.partition('.')[0]}"
    names = dict.fromkeys(operation(base, framework).akin for framework in BACKEND_OF)
    # With its prefix a name means only itself: a function of the user.
    return tuple(function(name) for name in names if "." not in name)


def _has(base: str, trait: Trait) -> bool:
    return any(line.has(trait) for line in _lines(base))


@cache
def why_not_judged(base: str, direction: str) -> str | None:
    """The reason why a failing result says nothing about the kernel."""
    return next((why for trait, why in _NOT_JUDGED[direction].items() if _has(base, trait)), None)


_NOT_JUDGED = {
    "forward": {Trait.FREE_ORDER: "the order of the eigenvalues is free"},
    "backward": {
        Trait.LOSES_DIGITS: "its sums of logarithms lose digits that nothing outside of it shows",
        Trait.FREE_VECTORS: "the sign of each vector is free",
    },
}
"""The reasons not to judge a failing result: correct kernels may differ by more than any rule here grants."""


@cache
def has_free_signs(base: str) -> bool:
    """True if the vectors that an operation returns have no sign of their own."""
    return _has(base, Trait.FREE_SIGNS)


@cache
def is_by_squares(base: str) -> bool:
    """True if an operation gives distances that may be computed from squares."""
    return _has(base, Trait.BY_SQUARES)


@cache
def place_rule(base: str) -> tuple[int, int | None, bool] | None:
    """The rule of an operation that gives places: argument `dim`, its default, and True if no place may occur twice."""
    found = next((line for line in _lines(base) if line.dim is not None), None)
    return None if found is None or found.dim is None else (*found.dim, found.has(Trait.NEVER_TWICE))


@cache
def dropped_dimensions(base: str) -> tuple[str, int | None] | None:
    """The kind of dropout that an operation is, and how many leading dimensions it drops as one."""
    return next(((line.name, line.drops) for line in _lines(base) if line.has(Trait.DROPS)), None)
