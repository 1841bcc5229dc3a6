"""A stand-alone script in torch's words: `probe.backends.protocol.ScriptWords` for PyTorch."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from probe.backends.protocol import UnknownValue
from probe.backends.torch.execution.functions import place
from probe.backends.torch.execution.values import plain_value, tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".pt"
_RAISED = {"complex64": "complex128", "complex32": "complex128"}

TEMPLATE = '''"""$title

$found
"""

$imports
DEVICE = "$device"
$data$inputs
$gradients$recorded
HIGH = {$high}


def run(device, high=False):
    """The results on a device in the recorded types, or the exact ones in types of higher precision."""

    def kind(dtype):
        return HIGH.get(dtype, dtype) if high else dtype

    leaves = [x.to(device, kind(x.dtype), copy=True) for x in INPUTS]
$require    $variables = [x.clone() for x in leaves]
$call
    results = {$results}
$backward    return {name: value.detach().cpu() for name, value in results.items()}


exact = run("cpu", high=True)
for name, result in run(DEVICE).items():
    right = exact[name].to(torch.complex128 if exact[name].is_complex() else torch.float64)
    now, rounded = result.to(right.dtype), right.to(result.dtype).to(right.dtype)
    error = (now - right).abs().masked_fill((now == rounded) | (now.isnan() & rounded.isnan()), 0)
    worst = (error / (right.abs() + right.abs().mean())).nan_to_num(nan=float("inf"))
    index = tuple((worst == worst.max()).nonzero()[0].tolist())
    print(f"{name}, worst element {list(index)}: {now[index].item()} on {DEVICE}, exactly {right[index].item()}")
    if result.is_floating_point() or result.is_complex():
        form = torch.finfo(result.dtype)
        ulp = form.eps * 2 ** right[index].abs().clamp(min=form.tiny).log2().floor()
        print(f"    error {error[index] / ulp:.4g} ULP of {result.dtype}")
$print'''


def spelled(base: str) -> str | None:
    """``torch.nn.functional.silu``, ``torch.Tensor.add_``; ``None`` for a name that this torch does not have."""
    found = place(base)
    if found is None:
        return None
    owner, attribute = found
    if isinstance(owner, type):
        return f"torch.Tensor.{attribute}"
    return f"{_owner_name(owner)}.{attribute}"


def _owner_name(owner: Any) -> str:
    name = getattr(owner, "__name__", None)
    return {"torch._C._VariableFunctions": "torch"}.get(str(name), str(name))


def imports(device: str) -> list[str]:
    """What a script for this device imports."""
    return ["import torch", "import torch_npu"] if device.startswith("npu") else ["import torch"]


def dtype(name: str) -> str:
    """``torch.bfloat16``."""
    return f"torch.{name}"


def raised(name: str) -> str:
    """The dtype of the exact evaluation, as `dtype` has it."""
    return dtype(_RAISED.get(name, "float64"))


def content(values: NDArray[Any], name: str) -> bytes:
    """The file of a tensor of the dtype `name`."""
    stream = io.BytesIO()
    torch.save(tensor(values, name, "cpu"), stream)
    return stream.getvalue()


def loaded(path: str, name: str) -> str:
    """How the file at `path`, an expression, is read."""
    return f"torch.load({path}, weights_only=True)"


def inline(numbers: str, name: str) -> str:
    """A tensor of nested lists of numbers."""
    return f"torch.tensor({numbers}, dtype={dtype(name)})"


def plain(entry: Mapping[str, Any]) -> str:
    """The text of a value of torch's own that is no tensor.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    value = plain_value(entry, "cpu")
    if isinstance(value, torch.dtype):
        return f"kind({value})"
    return "device" if isinstance(value, torch.device) else str(value)


def under_autocast(name: str) -> str:
    """The head of a block that is cast to the dtype `name`, but for the exact evaluation."""
    return f"with torch.autocast(torch.device(device).type, {dtype(name)}, enabled=not high):"
