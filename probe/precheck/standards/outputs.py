"""What an API returns, as a whole: tensors, plain values, and lists and dicts of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from numpy.typing import NDArray
from typing_extensions import TypeGuard

from probe.precheck.standards import documented, release
from probe.precheck.standards.constants import DOCUMENTED, RELEASE
from probe.precheck.standards.stage1 import judge
from probe.precheck.tables.details import ERROR, PASS, SKIP, DetailsRow


@dataclass(frozen=True)
class Tensor:
    """The values of a tensor, and the plain name of its dtype; bfloat16 is held in float32."""

    values: NDArray[Any]
    dtype: str


Output = Union[Tensor, None, bool, int, float, str, Sequence[Any], Mapping[str, Any]]


def judge_output(
    base: str, result: Output, reference: Output, prefix: str, standard: str = DOCUMENTED, mindspore: bool = False
) -> list[DetailsRow]:
    """The rows of everything that an API returned.

    Args:
        base: Of the API: ``Functional.silu``.
        result: What the device returned.
        reference: What the reference is; the values of its tensors are of higher precision.
        prefix: Of the names of rows: ``Functional.silu.0.forward.output``; a number follows.
        standard: One of `STANDARDS`.
        mindspore: Whether 26.2 shall judge as it does for MindSpore.

    Raises:
        IndexError: 26.2.0 ends so where the device returned fewer items than the reference.
    """
    if standard == RELEASE:
        return list(_as_released(base, result, reference, prefix, mindspore))
    if not _is_sequence(result) or not _is_sequence(reference):
        prefix = f"{prefix}.0"
    return list(_documented(base, result, reference, prefix))


def case_status(statuses: Iterable[str], standard: str = DOCUMENTED) -> str:
    """The status of the forward or the backward of a case, from those of its rows in order."""
    worst_of = release.worst_of if standard == RELEASE else documented.worst_of
    return worst_of(list(statuses))


def _as_released(base: str, result: Output, reference: Output, prefix: str, mindspore: bool) -> Iterable[DetailsRow]:
    if _is_sequence(reference) and _is_sequence(result):
        for place, item in enumerate(reference):
            yield _released_item(base, result[place], item, f"{prefix}.{place}", mindspore)
    else:
        yield _released_item(base, result, reference, f"{prefix}.0", mindspore)


def _released_item(base: str, result: Output, reference: Output, name: str, mindspore: bool) -> DetailsRow:
    if result is None and reference is None:
        return DetailsRow(name, SKIP, release.NO_REFERENCE)
    if type(result) is not type(reference):
        return DetailsRow(name, ERROR, release.TYPES_DIFFER)
    if isinstance(result, Tensor) and isinstance(reference, Tensor):
        return judge(base, result.values, reference.values, result.dtype, name, RELEASE, mindspore)
    if isinstance(result, Mapping) and isinstance(reference, Mapping) and result.keys() != reference.keys():
        return DetailsRow(name, ERROR, "bench and npu output dict keys are different.")
    if isinstance(result, Mapping) or _is_sequence(result):
        # Of a dict it takes the values as a list, and of a list in a list it knows nothing.
        return DetailsRow(name, ERROR, "Unexpected output type in compare_core: <class 'list'>")
    return _plain(result, reference, name)


def _documented(base: str, result: Output, reference: Output, name: str) -> Iterable[DetailsRow]:
    if result is None and reference is None:
        yield DetailsRow(name, SKIP, "there is no output.")
    elif isinstance(result, Tensor) and isinstance(reference, Tensor):
        yield judge(base, result.values, reference.values, result.dtype, name)
    elif isinstance(result, Mapping) and isinstance(reference, Mapping):
        if set(result) != set(reference):
            yield DetailsRow(name, ERROR, f"the device's keys are {list(result)}, the reference's {list(reference)}.")
        for key in reference:
            if key in result:
                yield from _documented(base, result[key], reference[key], f"{name}.{key}")
    elif _is_sequence(result) and _is_sequence(reference):
        if len(result) != len(reference):
            yield DetailsRow(name, ERROR, f"the device gave {len(result)} items, the reference {len(reference)}.")
        for place, (one, other) in enumerate(zip(result, reference)):
            yield from _documented(base, one, other, f"{name}.{place}")
    elif _kind(result) != _kind(reference):
        yield DetailsRow(name, ERROR, f"the device gave {_kind(result)}, the reference {_kind(reference)}.")
    else:
        yield _plain(result, reference, name)


def _plain(result: Any, reference: Any, name: str) -> DetailsRow:
    """A number, a text or a bool, which has to be equal."""
    bench, device = (f"<class '{type(value).__name__}'>" for value in (reference, result))
    equal = result == reference or (result != result and reference != reference)
    rate = {} if isinstance(result, str) else {"binary_error_rate": 0.0 if equal else 1.0}
    return DetailsRow(name, PASS if equal else ERROR, "", bench, device, metrics=rate)


def _kind(value: Output) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _is_sequence(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple))
