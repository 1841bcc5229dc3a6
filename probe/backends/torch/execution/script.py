"""A stand-alone script in torch's words: `probe.backends.protocol.ScriptWords` for PyTorch."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from string import Template
from typing import TYPE_CHECKING, Any

import torch

from probe.backends.protocol import ScriptParts
from probe.backends.torch.execution.values import place, plain_value, tensor
from probe.common.numerics.formats import is_complex, rounds
from probe.common.source_text import source

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".pt"
_SAVED_AS = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Types that have another in the file, with the same bits: the torch.save of PyTorch 2.5 does not take them."""
_TEMPLATE = Template('''"""$title

$found
"""

$imports

DEVICE = $device
$definitions
HIGH = {$high}


def run(device, high=False):
    """The results on a device, in the recorded types or in those of higher precision."""

    def kind(dtype):
        return HIGH.get(dtype, dtype) if high else dtype

    leaves = [x.to(device, kind(x.dtype), copy=True) for x in INPUTS]
$run
    return {name: value.detach().cpu() for name, value in results.items() if value is not None}


exact = run("cpu", high=True)
for name, now in run(DEVICE).items():
    if not now.numel():
        continue
    right = exact[name].to(torch.complex128 if now.is_complex() else torch.float64)
    value, nearest = now.to(right.dtype), right.to(now.dtype).to(right.dtype)
    error = (value - right).abs().masked_fill((value == nearest) | (value.isnan() & nearest.isnan()), 0)
    worst = (error / (right.abs() + right.abs().mean())).nan_to_num(nan=float("inf"))
    index = tuple((worst == worst.max()).nonzero()[0].tolist())
    print(f"{name} at {list(index)}: {value[index].item()} on {DEVICE}, exactly {right[index].item()}")
    if now.is_floating_point() or now.is_complex():
        form = torch.finfo($precision)
        last_place = form.eps * 2 ** right[index].abs().clamp(min=form.tiny).log2().floor()
        print(f"    error {(error[index] / last_place).item():.4g} ULP of {form.dtype}")
''')
_RECORDED = """    if name in RECORDED:
        print(f"    recorded {RECORDED[name][index].item()}")
        was = RECORDED[name].to(right.dtype)
        far = (was - right).abs().masked_fill((was == right) | (was.isnan() & right.isnan()), 0)
        far = (far / (right.abs() + right.abs().mean())).nan_to_num(nan=float("inf"))
        furthest = tuple((far == far.max()).nonzero()[0].tolist())
        if furthest != index:
            print(f"    furthest off when recorded, at {list(furthest)}: {was[furthest]}, exactly {right[furthest]}")
"""


def spelled(base: str, attributes: Mapping[str, Any] | None, called: str = "") -> str | None:
    """``torch.nn.functional.silu``, or for a method ``torch.Tensor.add_``; ``None`` where it has no name."""
    found = place(base, called)
    if found is None or called:
        return None if found is None else called
    owner, attribute = found
    return f"torch.Tensor.{attribute}" if isinstance(owner, type) else f"{owner.__name__}.{attribute}"


def plain(entry: Mapping[str, Any]) -> str:
    """The Python text of `plain_value` for an entry; the device is ``device``, a dtype goes through ``kind``.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    value = plain_value(entry, "cpu")
    if isinstance(value, torch.dtype):
        return f"kind({value})"
    return "device" if isinstance(value, torch.device) else str(value)


def inline(numbers: str, dtype: str) -> str:
    """A tensor of nested lists."""
    return f"torch.tensor({numbers}, dtype=torch.{dtype})"


def loaded(path: str, dtype: str) -> str:
    """A tensor from the file at `path`, which is an expression."""
    load = f"torch.load({path}, weights_only=True)"
    return f"{load}.view(torch.{dtype})" if dtype in _SAVED_AS else load


def content(values: NDArray[Any], dtype: str) -> bytes:
    """The bytes of that file."""
    stream = io.BytesIO()
    made = tensor(values, dtype, "cpu")
    torch.save(made.view(getattr(torch, _SAVED_AS[dtype])) if dtype in _SAVED_AS else made, stream)
    return stream.getvalue()


def script(parts: ScriptParts) -> str:
    """The script: it runs the call on a device and exactly, and prints the worst element of each result."""
    imports = ["import pathlib", "", "import torch"] if parts.needs_folder else ["import torch"]
    if parts.device.startswith("npu"):
        imports.append("import torch_npu  # noqa: F401")
    raised = {name: "complex128" if is_complex(name) else "float64" for name in parts.dtypes if rounds(name)}
    high = ", ".join(f"torch.{name}: torch.{to}" for name, to in raised.items())
    text = _TEMPLATE.substitute(
        title=parts.title, found=parts.found, imports="\n".join(imports), device=source(parts.device),
        # Under autocast the digits are those of the dtype that is cast to, whatever the dtype of a result.
        precision=f"torch.{parts.autocast}" if parts.autocast else "now.dtype",
        definitions=parts.definitions, high=high, run="\n".join(f"    {line}" for line in _run(parts)),
    )  # fmt: skip
    return text + _RECORDED if parts.has_recorded else text


def _run(parts: ScriptParts) -> Iterator[str]:
    """The lines from ``leaves``, the inputs, to ``results``."""
    if parts.with_gradients:
        for _, number in parts.differentiated:
            yield f"leaves[{number}].requires_grad_()"
    if parts.variables:
        names = ", ".join(parts.variables)
        yield f"{names if len(parts.variables) > 1 else f'({names},)'} = (x.clone() for x in leaves)"
    if parts.has_random_state and parts.device == "cpu":
        # There dropout draws the same in each dtype.
        yield "torch.set_rng_state(RANDOM_STATE)"
    elif parts.has_random_state:
        yield "if not high:"
        yield f"    torch.{parts.device.partition(':')[0]}.set_rng_state(RANDOM_STATE, device)"
    if parts.autocast:
        yield f"with torch.autocast(torch.device(device).type, torch.{parts.autocast}, enabled=not high):"
        yield from (f"    {line}" for line in parts.call("output = ").split("\n"))
    else:
        yield from parts.call("output = ").split("\n")
    yield f"results = {{{', '.join(f'{source(name)}: {value}' for name, value in parts.results)}}}"
    if parts.with_gradients:
        leaves = ", ".join(f"leaves[{number}]" for _, number in parts.differentiated)
        yield f"outputs = [{', '.join(parts.with_gradients)}]"
        yield "output_gradients = [x.to(y) for x, y in zip(OF_OUTPUTS, outputs)]"
        yield f"gradients = torch.autograd.grad(outputs, [{leaves}], output_gradients, allow_unused=True)"
        names = ", ".join(source(name) for name, _ in parts.differentiated)
        yield f"results.update(zip([{names}], gradients))"
