"""Values between numpy, torch and dump.json, and the function that a record's name stands for."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

import numpy as np
import torch

from probe.backends.protocol import UnknownValue
from probe.backends.shared.api_list import Places, places
from probe.backends.shared.tensors import rounded_to_odd
from probe.backends.torch import internals
from probe.backends.torch.guards import alone
from probe.backends.torch.hooks import api_hooks
from probe.backends.torch.hooks.api_hooks import overload_name
from probe.backends.torch.tensors.statistics import GIVEN_BACK, whole
from probe.common.numerics.formats import TABLE, Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray


def _dtypes_of_this_torch(*names: str) -> dict[str, torch.dtype]:
    return {name: getattr(torch, name) for name in names if hasattr(torch, name)}


_IN_NUMPY = _dtypes_of_this_torch(
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
    "complex128", "complex64",
)  # fmt: skip
_IN_FLOAT32 = _dtypes_of_this_torch(
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


# --- functions


_FILE = re.compile("file|path|library|code", re.IGNORECASE)
"""In names of arguments that say what is read, written, loaded or compiled."""
_ACTING = re.compile("file|load|save|dump|print|compile|custom|hook|record|profil|config", re.IGNORECASE)
"""In names of functions that do more than compute."""


def function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> Callable[..., Any] | None:
    """The function that ``Prefix.api`` calls now, replacements included; ``None`` for a name that this torch has not.

    A record without `called` may be of a tool that does not tell functions of one name apart.
    """
    places = [_places()[base, called]] if (base, called) in _places() else []
    if not called:
        places += _namesakes().get(base, [])
    found = [call for call in (getattr(owner, attribute, None) for owner, attribute in places) if call is not None]
    if found:
        return _first_that_takes(found) if len(found) > 1 else found[0]
    prefix, _, api = base.partition(".")
    if prefix == "Aten":
        return _aten(api, called)
    if prefix == "NPU" and not called and api.startswith("npu_") and _ACTING.search(api) is None:
        # Not in the list of a process that imported torch_npu after it was made.
        of_npu = getattr(sys.modules.get("torch_npu"), api, None)
        return of_npu if callable(of_npu) else None
    return None


def reference_function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> None:
    """Nothing: torch computes all of its functions in float64."""
    return None


def place(base: str, called: str = "") -> tuple[Any, str] | None:
    """The owner of the function of this name, and its attribute; ``None`` if `function` gives none."""
    known = _places().get((base, called)) or next(iter(_namesakes().get(base, []) if not called else []), None)
    if known is not None:
        return known
    prefix, _, api = base.partition(".")
    owners = {"Aten": torch.ops.aten, "NPU": sys.modules.get("torch_npu")}
    return (owners[prefix], api) if prefix in owners and function(base, called=called) is not None else None


@functools.cache
def _places() -> Places:
    """Owner and attribute of every name."""
    families = api_hooks.watched()
    there = {family: [each for each in found if not api_hooks.is_removed(each)] for family, found in families.items()}
    found = dict(places(there, ("distributed", "npu")))
    vf = internals.VariableFunctions
    for attribute in {watched.attribute for watched in families.get("torch", [])}:
        if hasattr(vf, attribute):
            found.setdefault((f"VF.{attribute}", ""), (vf, attribute))
    return found


@functools.cache
def _namesakes() -> dict[str, list[tuple[Any, str]]]:
    """The owners and names of functions whose names in records stand for another one."""
    found: dict[str, list[tuple[Any, str]]] = {}
    for (base, called), place in _places().items():
        if called:
            found.setdefault(base, []).append(place)
    return found


def _first_that_takes(functions: list[Callable[..., Any]]) -> Callable[..., Any]:
    """One name of two functions, ``torch.norm`` and ``torch.linalg.norm`` for example: keywords tell which it was."""

    @functools.wraps(functions[0])
    def call(*args: Any, **kwargs: Any) -> Any:
        for candidate in functions[:-1]:
            try:
                return candidate(*args, **kwargs)
            except TypeError:
                continue
        return functions[-1](*args, **kwargs)

    return call


def _aten(api: str, called: str) -> Callable[..., Any] | None:
    """An operator of ATen that takes tensors, and no name of a file: those must not be in reach of a name in a dump.

    With `called`, such as ``torch.ops.aten.div.Scalar``, one overload of it.

    What is called unsafe and is sparse believes indices that it is given, and would write where they point.
    """
    if "unsafe" in api and "sparse" in api:
        return None
    packet = getattr(torch.ops.aten, api, None)
    if not isinstance(packet, internals.OperatorPacket):
        return None
    overloads: Any = packet.overloads
    arguments = [argument for each in overloads() for argument in getattr(packet, each)._schema.arguments]
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments)
    takes_files = any("str" in str(argument.type) and _FILE.search(argument.name) for argument in arguments)
    if not takes_tensors or takes_files:
        return None
    known = {overload_name(api, each): each for each in overloads()}
    return getattr(packet, known[called]) if called in known else None if called else packet
