"""Values between numpy, torch and dump.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import torch

from probe.backends.protocol import UnknownValue
from probe.backends.shared.rounding import rounded_to_odd
from probe.backends.torch import internals
from probe.backends.torch.guards import alone
from probe.backends.torch.tensors.storage import GIVEN_BACK, whole
from probe.common.numerics.formats import TABLE, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _of_this_torch(*names: str) -> dict[str, torch.dtype]:
    return {name: getattr(torch, name) for name in names if hasattr(torch, name)}


_IN_NUMPY = _of_this_torch(
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
    "complex128", "complex64",
)  # fmt: skip
_IN_FLOAT32 = _of_this_torch(
    *(line.name for line in TABLE if line.kind is Kind.FLOAT and line.packed == 1 and line.name not in _IN_NUMPY)
)
"""Dtypes that numpy lacks and float32 has all values of."""
_DTYPES = {**_IN_NUMPY, **_IN_FLOAT32}
_WITH_VALUES, _WIDENED = frozenset(_DTYPES.values()), frozenset(_IN_FLOAT32.values())
_ALL_DTYPES = {value: str(value).partition(".")[2] for value in vars(torch).values() if isinstance(value, torch.dtype)}
_CHUNK = 1 << 20
"""Elements that are rounded at a time, so that what is made on the way is small."""


def tensor(values: NDArray[Any], dtype: str, device: str) -> torch.Tensor:
    """A new tensor of the shape of `values`, each rounded once to `dtype`; it shares no memory with them.

    Raises:
        UnknownValue: there is no such dtype, or none that numbers can be written into.
    """
    kind = _DTYPES.get(dtype)
    if kind is None:
        raise UnknownValue(f"no tensor of dtype {dtype} can be made with torch {torch.__version__}")
    values = np.asarray(values)
    with alone():
        # In torch's own memory, which is aligned the same way each time.
        made = torch.empty(values.shape, dtype=kind, device="cpu")
        if dtype in _IN_NUMPY:
            _write(made.numpy(), values)
        else:
            _write_rounded(made, values)
        return made if device == "cpu" else made.to(device)


def _write(into: NDArray[Any], values: NDArray[Any]) -> None:
    if into.dtype == values.dtype:
        into[...] = values
        return
    # An overflow, or a number that is not an integer, would be a warning of the user's program.
    with np.errstate(all="ignore"):
        np.copyto(into, values, casting="unsafe")


def _write_rounded(into: torch.Tensor, values: NDArray[Any]) -> None:
    # Of float16, float32 and small integers, float32 has all values.
    exact = np.can_cast(values.dtype, np.float32)
    elements, flat = into.view(-1), np.ascontiguousarray(values).reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        single = part.astype(np.float32) if exact else rounded_to_odd(part.astype(np.float64))
        elements[start : start + _CHUNK].copy_(torch.from_numpy(single))


def values(tensor: torch.Tensor) -> NDArray[Any]:
    """The values of a tensor in an array of its own, on the host, exactly.

    Raises:
        UnknownValue: it has none that an array could hold.
    """
    with alone():
        refused = _no_values(tensor)
        if refused is not None:
            raise UnknownValue(refused)
        plain = tensor.detach()
        if plain.is_conj() or plain.is_neg():
            plain = plain.resolve_conj().resolve_neg()
        if plain.dtype in _WIDENED:
            copy = plain.cpu().to(torch.float32)
        else:
            copy = plain.clone(memory_format=torch.contiguous_format) if plain.is_cpu else plain.cpu()
        array: NDArray[Any] = copy.numpy()
        return array


def _no_values(tensor: torch.Tensor) -> str | None:
    """The reason if a tensor has no values; ``None`` if it has some."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"a {'nested tensor' if tensor.is_nested else f'tensor of layout {tensor.layout}'} is no array of values"
    if tensor.is_quantized or tensor.dtype not in _WITH_VALUES:
        return f"values of dtype {dtype_name(tensor)} have no exact form in numpy"
    if tensor.is_meta:
        return "a tensor on the meta device has no values"
    return None if whole(tensor) else f"a tensor has no values: {GIVEN_BACK}"


def dtype_name(tensor: torch.Tensor) -> str:
    """``bfloat16``, ``int64``, ``bool``."""
    # A function mode of the user's would be asked for every attribute.
    with internals.without_function_modes():
        return _ALL_DTYPES.get(tensor.dtype) or str(tensor.dtype).partition(".")[2]


def device_name(tensor: torch.Tensor) -> str:
    """``cuda:0``, ``cpu``."""
    return str(tensor.device)


# --- values that are no tensors


def plain_value(entry: Mapping[str, Any], device: str) -> Any:
    """The value of an entry of torch's own that is no tensor; a device becomes `device`.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    kind = entry.get("type")
    make = _MAKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise UnknownValue(f'a value of type "{kind}" cannot be made; allowed: {", ".join(sorted(_MAKERS))}')
    made = make(entry, device)
    if made is None:
        raise UnknownValue(f"torch {torch.__version__} has no such value: {dict(entry)!r}")
    return made


def _member(text: Any, kind: type) -> Any:
    """``torch.float16`` or ``channels_last``, if torch has one of this type."""
    name = text.rpartition(".")[2] if isinstance(text, str) else ""
    found = getattr(torch, name, None)
    return found if isinstance(found, kind) else None


def _size(lengths: Any) -> torch.Size | None:
    whole_numbers = isinstance(lengths, list) and all(type(length) is int and length >= 0 for length in lengths)
    return torch.Size(lengths) if whole_numbers else None


_MAKERS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "torch.dtype": lambda entry, device: _member(entry.get("value"), torch.dtype),
    "torch.Size": lambda entry, device: _size(entry.get("value")),
    "torch.device": lambda entry, device: torch.device(device),
    "torch.memory_format": lambda entry, device: _member(entry.get("format"), torch.memory_format),
}
