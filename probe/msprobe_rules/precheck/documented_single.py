"""The verdict on one device's outputs by the documented classes of APIs: ``--rules msprobe-documented``.

Five methods, of which the name of the API selects one:

- ``binary``: every element equals the reference rounded to the dtype. Integers and bools are always judged so.
- ``absolute_threshold``: no element is off by more than the relative error, or the absolute one where it is small.
- ``ulp``: hardly an element is off by more than a few units in the last place.
- ``dual_1000``: more than 999 of 1000 elements are within 1/1000.
- ``benchmark``: two such shares, and the cosine. The proper verdict is that of the second stage.

In all of them a NaN or infinity that only one side has is an error, and one that both have is equal. An error that one
rounding makes is none, and small elements are judged by what they are off absolutely. A documented limit that a correct
result cannot keep would say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.msprobe_rules.output.details import ERROR, PASS, SKIP, WARNING, DetailsRow
from probe.msprobe_rules.precheck.api_classes import ABSOLUTE_THRESHOLD, BENCHMARK, BINARY, DUAL_1000, ULP, api_class
from probe.msprobe_rules.precheck.class_metrics import (
    AbsoluteThreshold,
    Benchmark,
    Binary,
    Dual,
    Metrics,
    Specials,
    Ulp,
    measure,
    overall,
)
from probe.msprobe_rules.precheck.constants import DOCUMENTED, PRECISIONS
from probe.msprobe_rules.precheck.outputs import Output, Tensor, is_sequence, plain_row

Array = NDArray[Any]

COSINE = 0.99
ULP_SHARE = {"float16": 0.001, "bfloat16": 0.001, "float32": 0.05}
"""The largest share of elements beyond the limit of `Constants.ulp`."""
ULP_MEAN = 64
"""Below this mean a float32 result passes whatever the share."""
DUAL_1000_SHARE = 0.999
_SIGMAS = 5
"""The largest distance of the shares of zeros of two dropouts, in standard deviations of their difference."""


def classify_output(base: str, result: Output, reference: Output, prefix: str) -> Iterator[DetailsRow]:
    """The rows of everything that an API returned.

    Args:
        base: Of the API: ``Functional.silu``.
        result: The output of the device.
        reference: The reference; the values of its tensors are of higher precision.
        prefix: Of the names of rows: ``Functional.silu.0.forward.output``; a number follows.
    """
    if not is_sequence(result) or not is_sequence(reference):
        prefix = f"{prefix}.0"
    return _classify_item(base, result, reference, prefix)


def _classify_item(base: str, result: Output, reference: Output, name: str) -> Iterator[DetailsRow]:
    if result is None and reference is None:
        yield DetailsRow(name, SKIP, "there is no output.")
    elif isinstance(result, Tensor) and isinstance(reference, Tensor):
        yield classify_tensor(base, result.values, reference.values, result.dtype, name)
    elif isinstance(result, Mapping) and isinstance(reference, Mapping):
        if set(result) != set(reference):
            yield DetailsRow(name, ERROR, f"the device's keys are {list(result)}, the reference's {list(reference)}.")
        for key in reference:
            if key in result:
                yield from _classify_item(base, result[key], reference[key], f"{name}.{key}")
    elif is_sequence(result) and is_sequence(reference):
        if len(result) != len(reference):
            yield DetailsRow(name, ERROR, f"the device gave {len(result)} items, the reference {len(reference)}.")
        for index, (one, other) in enumerate(zip(result, reference)):
            yield from _classify_item(base, one, other, f"{name}.{index}")
    elif _kind_of(result) != _kind_of(reference):
        yield DetailsRow(name, ERROR, f"the device gave {_kind_of(result)}, the reference {_kind_of(reference)}.")
    else:
        yield plain_row(result, reference, name)


def _kind_of(value: Output) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return "nothing" if value is None else f"a {type(value).__name__}"


def classify_tensor(base: str, result: Array, reference: Array, dtype: str, name: str) -> DetailsRow:
    """The row of one tensor.

    Args:
        base: Of the API: ``Functional.silu``.
        result: The values of the device; a dtype that NumPy lacks, such as bfloat16, is held in float32.
        reference: The values of higher precision: float64 or complex128, or the integer or bool dtype of the result.
        dtype: The plain name of the device's dtype, such as ``bfloat16``.
        name: Of the row: ``Functional.silu.0.forward.output.0``.
    """
    status, message, metrics = _verdict(base, result, reference, dtype)
    return DetailsRow(name, status, message, reference.dtype.name, dtype, result.shape, metrics)


def worst_of(statuses: list[str]) -> str:
    """The status of a case: its worst; SKIP where nothing was judged."""
    return next((status for status in (ERROR, WARNING, PASS) if status in statuses), SKIP)


def ulp_holds(dtype: str, metrics: Metrics) -> bool:
    """True if the ULP metrics of a dtype that has limits keep them."""
    if dtype == "float32" and metrics["mean_ulp"] < ULP_MEAN:
        return True
    return metrics["ulp_share"] < ULP_SHARE[dtype]


def _verdict(base: str, result: Array, reference: Array, dtype: str) -> tuple[str, str, Metrics]:
    if result.shape != reference.shape:
        return ERROR, f"the device's shape is {result.shape}, the reference's {reference.shape}.", {}
    if not result.size:
        return SKIP, "the tensor has no elements.", {}
    kinds = {_kind(result), _kind(reference)}
    if len(kinds) > 1:
        return ERROR, f"the device's dtype is {dtype}, the reference's {reference.dtype.name}.", {}
    if kinds == {"exact"}:
        return _by_equality(base, result, reference, dtype)
    if result.dtype.kind == "c":
        dtype = "float32" if dtype == "complex64" else "float64"
        result, reference = _pairs(result, dtype), _pairs(reference, "float64")
    if dtype not in PRECISIONS:
        return SKIP, f"there are no documented limits for {dtype}.", {}
    if "dropout" in base:
        return _of_dropout(base, result, reference, dtype)
    return _of_floats(api_class(base), result, reference, dtype)


def _kind(values: Array) -> str:
    return {"f": "float", "c": "complex"}.get(values.dtype.kind, "exact")


def _pairs(values: Array, dtype: str) -> Array:
    """Real and imaginary parts in a last dimension of size 2."""
    return np.stack([values.real, values.imag], axis=-1).astype(dtype)


def _by_equality(base: str, result: Array, reference: Array, dtype: str) -> tuple[str, str, Metrics]:
    metrics = measure(result, reference, [Binary()], dtype, None)
    rate = metrics["binary_error_rate"]
    if not rate:
        return PASS, "", metrics
    if "quant" in base and result.dtype.kind != "b" and _furthest(result, reference) <= 1:
        return PASS, f"{rate:.2%} of the elements are off by one, which rounding explains where it quantises.", metrics
    return ERROR, f"{rate:.2%} of the elements are not equal.", metrics


def _furthest(result: Array, reference: Array) -> int:
    return int(np.abs(result.astype(np.int64) - reference.astype(np.int64)).max())


def _of_floats(method: str, result: Array, reference: Array, dtype: str) -> tuple[str, str, Metrics]:
    """The verdict on floats of one shape and a known dtype."""
    limits = DOCUMENTED.get(dtype)
    if limits is None and method in (ABSOLUTE_THRESHOLD, ULP):
        # float64 has none; the reference is no better than the result.
        method = BENCHMARK
    constants = limits or DOCUMENTED["float32"]
    shares = (100, 1000) if dtype in ("float16", "bfloat16") else (1000, 10000)
    sizes = overall(result, reference)
    meters: list[Any] = [sizes, Dual((100, 1000, 10000), constants), Benchmark(constants), Specials(dtype)]
    if method == ABSOLUTE_THRESHOLD:
        meters.append(AbsoluteThreshold(constants))
    if method == ULP:
        meters.append(Ulp(constants, dtype))
    metrics = measure(result, reference, meters, dtype, constants, _without_equal_specials)
    if method == BINARY:
        exact = rounded(reference, dtype)
        metrics.update(measure(result, exact, [Binary(equal_nan=True)], dtype, None))
    nonfinite = metrics["inf_nan_rate"]
    if method != ABSOLUTE_THRESHOLD:
        # Where this is filled, msProbe's second stage takes the API for one of that class.
        del metrics["inf_nan_rate"]
    if nonfinite:
        return ERROR, "NaN or infinity is where the other side has none, or another one.", metrics
    return (*_by_method(method, dtype, metrics, shares, sizes.largest[1] > constants.small), metrics)


def _by_method(method: str, dtype: str, metrics: Metrics, shares: tuple[int, int], is_large: bool) -> tuple[str, str]:
    """Status and message; `is_large` says whether the reference has elements that are not small."""
    if method == BINARY:
        rate = metrics["binary_error_rate"]
        return (ERROR, f"{rate:.2%} of the elements are not equal.") if rate else (PASS, "")
    if method == ABSOLUTE_THRESHOLD:
        over = [f"{name} is {metrics[name]:.2%}" for name in ("rel_rate", "abs_rate") if metrics[name]]
        return (ERROR, f"{', '.join(over)}; allowed: 0.") if over else (PASS, "")
    if method == ULP:
        if ulp_holds(dtype, metrics):
            return PASS, ""
        share, mean = metrics["ulp_share"], metrics["mean_ulp"]
        return ERROR, f"{share:.2%} of the elements are too many ULP off; the mean is {mean:.3g} ULP."
    if method == DUAL_1000:
        held = metrics["dual_1000"]
        holds = held > DUAL_1000_SHARE
        return (PASS, "") if holds else (ERROR, f"{1 - held:.2%} of the elements are more than 0.1 % off.")
    if is_large and metrics.get("cosine", 1) <= COSINE:
        return ERROR, f"the cosine is {metrics['cosine']:.4f}; allowed: more than {COSINE}."
    for share, status in zip(shares, (ERROR, WARNING)):
        held = metrics[f"dual_{share}"]
        if not held > 1 - 1 / share:
            return status, f"{1 - held:.2%} of the elements are more than {100 / share:g} % off."
    return PASS, ""


def _without_equal_specials(result: Array, reference: Array) -> tuple[Array, Array]:
    """Both with 0 where both are NaN, or the same infinity in the dtype of the result."""
    if np.isfinite(result).all():
        return result, reference
    cast = reference.astype(result.dtype)
    equal = ~np.isfinite(result) & ((result == cast) | (np.isnan(result) & np.isnan(cast)))
    return np.where(equal, 0, result), np.where(equal, 0, reference)


def rounded(values: Array, dtype: str) -> Array:
    """Values rounded to a dtype, bfloat16 held in float32."""
    with np.errstate(all="ignore"):
        if dtype != "bfloat16":
            return values.astype(dtype)
        single = values.astype(np.float32)
        bits = single.view(np.uint32)
        # To the nearest, half to even; NaN stays NaN.
        nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(single), single, nearest.astype(np.uint32).view(np.float32))


def _of_dropout(base: str, result: Array, reference: Array, dtype: str) -> tuple[str, str, Metrics]:
    """Each side draws its own elements to drop: how many, and the values of those that both keep, can be compared."""
    if "alpha" in base:
        return SKIP, "dropped elements are no zeros, and each side draws other ones; the values cannot be compared.", {}
    zeros = [float(np.mean(values == 0)) for values in (result, reference)]
    apart, mean = abs(zeros[0] - zeros[1]), (zeros[0] + zeros[1]) / 2
    # Documented is 0.1 from 100 elements on; fewer elements vary more.
    allowed = max(0.1, _SIGMAS * math.sqrt(2 * mean * (1 - mean) / result.size))
    if apart >= allowed:
        return ERROR, f"{zeros[0]:.1%} of the device's elements are zero, and {zeros[1]:.1%} of the reference's.", {}
    kept = (result != 0) & (reference != 0)
    if not kept.any():
        return PASS, "no element is kept on both sides.", {}
    status, message, metrics = _of_floats(BENCHMARK, result[kept], reference[kept], dtype)
    return status, f"of the elements that both sides keep: {message}" if message else "", metrics
