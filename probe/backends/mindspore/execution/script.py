"""A stand-alone script in MindSpore's words: `probe.backends.protocol.ScriptWords`.

Inputs are pairs of a numpy array and a dtype: numpy has no bfloat16, and float32 has all its values.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from string import Template
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.backends.mindspore.execution import in_float64
from probe.backends.mindspore.execution.functions import place, primitive
from probe.backends.mindspore.execution.values import plain_value
from probe.backends.mindspore.tensors.dtypes import plain_name
from probe.backends.protocol import ScriptParts, UnknownValue

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".npy"
_TARGETS = {"cpu": "CPU", "cuda": "GPU", "npu": "Ascend"}
_RAISED = {"complex64": "complex128", "float16": "float64", "bfloat16": "float64", "float32": "float64"}
_OWNERS = {
    "Functional": "mindspore.ops",
    "Mint": "mindspore.mint",
    "MintFunctional": "mindspore.mint.nn.functional",
    "Tensor": "mindspore.Tensor",
}
_TEMPLATE = Template('''"""$title

$found
"""

$imports

DEVICE = "$device"
mindspore.set_device($target)
$definitions
HIGH = {$high}
# Of each type the distance from 1 to the next number, and the smallest normal number.
FORMS = {
    mindspore.float16: (2.0**-10, 2.0**-14),
    mindspore.bfloat16: (2.0**-7, 2.0**-126),
    mindspore.float32: (2.0**-23, 2.0**-126),
    mindspore.float64: (2.0**-52, 2.0**-1022),
}


def values(tensor):
    return (tensor.astype(mindspore.float32) if tensor.dtype == mindspore.bfloat16 else tensor).asnumpy()


def run(high=False):
    """The results in the recorded types or in those of higher precision."""

    def kind(dtype):
        return HIGH.get(dtype, dtype) if high else dtype

    leaves = [mindspore.Tensor(array, kind(dtype)) for array, dtype in INPUTS]
    results = {}

$run
    return {name: (values(tensor), tensor.dtype) for name, tensor in results.items()}


exact = run(high=True)
for name, (now, dtype) in run().items():
    if not now.size:
        continue
    right = exact[name][0].astype(complex if now.dtype.kind == "c" else float)
    value = now.astype(right.dtype)
    nearest = values(mindspore.Tensor(exact[name][0], dtype)).astype(right.dtype)
    error = numpy.abs(value - right)
    error[(value == nearest) | (numpy.isnan(value) & numpy.isnan(nearest))] = 0
    with numpy.errstate(all="ignore"):
        worst = numpy.nan_to_num(error / (numpy.abs(right) + numpy.abs(right).mean()), nan=numpy.inf)
    worst[error == 0] = 0
    index = numpy.unravel_index(int(worst.argmax()), worst.shape)
    print(f"{name} at {[int(each) for each in index]}: {value[index]} on {DEVICE}, exactly {right[index]}")
    if dtype in FORMS:
        epsilon, smallest = FORMS[dtype]
        last_place = epsilon * 2 ** numpy.floor(numpy.log2(max(abs(right[index]), smallest)))
        print(f"    error {error[index] / last_place:.4g} ULP of {dtype}")
''')
_RECORDED = '''    if name in RECORDED:
        print(f"    recorded {RECORDED[name][0][index]}")
'''


def spelled(base: str, attributes: Mapping[str, Any] | None = None) -> str | None:
    """``mindspore.ops.silu``, for a primitive ``mindspore.ops.MatMul(transpose_b=True)``.

    ``None`` where it has no name.

    Raises:
        UnknownValue: MindSpore has no kernel in float64 that a script could call.
    """
    if in_float64.function(base, attributes) is not None:
        raise UnknownValue(f"MindSpore has no float64 kernel of {base} on the CPU")
    prefix, _, name = base.partition(".")
    if prefix == "Primitive":
        kind = name.rpartition(".")[2]
        made = primitive(kind, attributes)
        if made is None:
            return None
        settings = ", ".join(f"{key}={_as_tuple(value)!r}" for key, value in (attributes or {}).items())
        return f"mindspore.ops.{kind}({settings})"
    return f"{_OWNERS[prefix]}.{name}" if prefix in _OWNERS and place(base) is not None else None


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


def plain(entry: Mapping[str, Any]) -> str:
    """What `plain_value` makes of an entry; a dtype goes through ``kind``.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    return f"kind({_dtype(plain_name(plain_value(entry, 'cpu')))})"


def inline(numbers: str, dtype: str) -> str:
    """A tensor of nested lists."""
    return f"(numpy.array({numbers}), {_dtype(dtype)})"


def loaded(path: str, dtype: str) -> str:
    """A tensor from the file at `path`, which is an expression."""
    return f"(numpy.load({path}, allow_pickle=False), {_dtype(dtype)})"


def content(values: NDArray[Any], dtype: str) -> bytes:
    """That file."""
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return stream.getvalue()


def script(parts: ScriptParts) -> str:
    """The script: it runs the call on a device and exactly, and prints the worst element of each result."""
    imports = ["import mindspore", "import numpy"]
    if parts.needs_folder:
        imports = ["import pathlib", "", *imports]
    kind, _, number = parts.device.partition(":")
    high = ", ".join(f"{_dtype(name)}: {_dtype(_RAISED[name])}" for name in parts.dtypes if name in _RAISED)
    text = _TEMPLATE.substitute(
        title=parts.title, found=parts.found, imports="\n".join(imports), device=parts.device,
        target=f'"{_TARGETS[kind]}", {number}' if number else f'"{_TARGETS[kind]}"',
        definitions=parts.definitions, high=high, run="\n".join(f"    {line}" for line in _run(parts)),
    )  # fmt: skip
    return text + _RECORDED if parts.has_recorded else text


def _run(parts: ScriptParts) -> Iterator[str]:
    """The lines from ``leaves``, the inputs, to ``results``."""
    yield "def call(*differentiated):"
    places = ", ".join(str(number) for _, number in parts.differentiated)
    if parts.of_outputs:
        yield f"    for place, tensor in zip(({places},), differentiated):"
        yield "        leaves[place] = tensor"
    if parts.variables:
        names = ", ".join(parts.variables)
        yield f"    {names if len(parts.variables) > 1 else f'({names},)'} = leaves"
    yield from (f"    {line}" for line in parts.call("output = ").split("\n"))
    yield f"    results.update({{{', '.join(f'{chr(34)}{name}{chr(34)}: {value}' for name, value in parts.results)}}})"
    yield f"    return ({', '.join(parts.of_outputs)},)" if parts.of_outputs else "    return ()"
    yield ""
    if not parts.of_outputs:
        yield "call()"
        return
    yield f"inputs = [leaves[place] for place in ({places},)]"
    yield "outputs = call(*inputs)"
    yield "of_outputs = tuple(mindspore.Tensor(array, y.dtype) for (array, _), y in zip(OF_OUTPUTS, outputs))"
    yield "backward = mindspore.ops.GradOperation(get_all=True, sens_param=True)(call)"
    names = ", ".join(f'"{name}"' for name, _ in parts.differentiated)
    yield f"results.update(zip([{names}], backward(*inputs, of_outputs)))"


def _dtype(name: str) -> str:
    return f"mindspore.{'bool_' if name == 'bool' else name}"
