"""From names and values of records to those of torch where MindSpore is underneath."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import Any, Callable

from probe.backends.mindspore import statistics
from probe.backends.mindspore.execution import in_float64, values
from probe.backends.msadapter import hooks
from probe.backends.msadapter.hooks import proxy_of, torch_module
from probe.backends.protocol import UnknownValue
from probe.backends.shared.api_list import Places, places

_LEFT_OUT = frozenset(("distributed", "npu"))


def function(base: str, attributes: Mapping[str, Any] | None = None, called: str = "") -> Callable[..., Any] | None:
    """The function that ``Prefix.api`` calls now; ``None`` for a name that mindtorch does not have."""
    return values.held_at(_places(), base, called)


def place(base: str, called: str = "") -> tuple[Any, str] | None:
    """The owner of the function of this name, and its attribute."""
    return _places().get((base, called))


@functools.cache
def _places() -> Places:
    # What a proxy holds itself hides what the module behind it has, and is what a program calls.
    found = places(hooks.watched(), _LEFT_OUT)
    return {names: (_asked(owner), api) for names, (owner, api) in found.items()}


def _asked(owner: Any) -> Any:
    proxy = proxy_of(owner) if isinstance(owner, types.ModuleType) else None
    return owner if proxy is None else proxy


def plain_value(entry: Mapping[str, Any], device: str) -> Any:
    """The value that an entry of torch's or MindSpore's own that is no tensor stands for; a device becomes `device`.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    kind = entry.get("type")
    make = _MAKERS.get(kind) if isinstance(kind, str) else None
    if make is None:
        return values.plain_value(entry, device)
    made = make(entry, device)
    if made is None:
        raise UnknownValue(f"mindtorch has no such value: {dict(entry)!r}")
    return made


def _size(lengths: Any) -> Any:
    whole_numbers = isinstance(lengths, list) and all(type(length) is int and length >= 0 for length in lengths)
    return torch_module().Size(lengths) if whole_numbers else None


def _dtype(text: Any) -> Any:
    """A dtype of torch is MindSpore's own."""
    return statistics.plain_dtype(text.rpartition(".")[2]) if isinstance(text, str) else None


def _memory_format(name: Any) -> Any:
    found = getattr(torch_module(), name, None) if isinstance(name, str) else None
    return found if isinstance(found, getattr(torch_module(), "memory_format", ())) else None


_MAKERS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "torch.dtype": lambda entry, device: _dtype(entry.get("value")),
    "torch.Size": lambda entry, device: _size(entry.get("value")),
    "torch.device": lambda entry, device: torch_module().device(device),
    "torch.memory_format": lambda entry, device: _memory_format(entry.get("format")),
}


# --- float64


def reference_function(
    base: str, attributes: Mapping[str, Any] | None = None, called: str = ""
) -> Callable[..., Any] | None:
    """A float64 version of functions for which mindtorch has no kernel on the CPU; ``None`` for other functions."""
    return None if called else _IN_FLOAT64.get(base)


def _conv(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    if padding == "same":
        around = in_float64.same(input, weight, stride, dilation)
    else:
        axes = len(weight.shape) - 2
        around = [(each, each) for each in in_float64.each(0 if padding == "valid" else padding, axes)]
    return in_float64.convolution(input, weight, bias, stride, around, dilation, groups)


def _batch_norm(
    input: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    return in_float64.batch_norm(input, running_mean, running_var, weight, bias, training, eps)


_IN_FLOAT64: dict[str, Callable[..., Any]] = {
    "Functional.conv1d": _conv, "Functional.conv2d": _conv, "Torch.conv1d": _conv, "Torch.conv2d": _conv,
    "Functional.batch_norm": _batch_norm, "Torch.batch_norm": _batch_norm, "Functional.relu6": in_float64.relu6,
}  # fmt: skip
