"""A stand-alone script in MindSpore's words: `probe.backends.protocol.ScriptWords` for MindSpore."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.backends.mindspore import statistics
from probe.backends.mindspore.execution import values
from probe.backends.protocol import ScriptParts, UnknownValue
from probe.common.numerics.formats import Format, format_of
from probe.common.source_text import arguments, source

SUFFIX = ".npy"
_TARGETS = {"cpu": "CPU", "cuda": "GPU", "npu": "Ascend"}
_TEMPLATE = Template('''"""$title

$found
"""

$imports

DEVICE = $device
if mindspore.get_context("device_target") != DEVICE:
    mindspore.set_device(DEVICE)
$definitions
HIGH = {$high}
BITS = {$bits}  # behind the point, and the smallest exponent


def run(high=False):
    """The results in the recorded types, or in those of higher precision."""

    def kind(dtype):
        return HIGH.get(dtype, dtype) if high else dtype

    def call(*leaves):
$call

    leaves = [x.astype(kind(x.dtype)) for x in INPUTS]
$run
    return results


def values(x):
    return (mindspore.ops.cast(x, mindspore.float32) if x.dtype == mindspore.bfloat16 else x).asnumpy()


numpy.seterr(all="ignore")
exact = run(high=True)
for name, now in run().items():
    if not now.size:
        continue
    value, right = values(now), values(exact[name])
    nearest = values(mindspore.Tensor(right, now.dtype))
    wide = "complex128" if right.dtype.kind == "c" else "float64"
    same = (value == nearest) | (numpy.isnan(value) & numpy.isnan(nearest))
    error = numpy.where(same, 0, numpy.abs(value.astype(wide) - right))
    worst = numpy.nan_to_num(error / (numpy.abs(right) + numpy.abs(right).mean()), nan=numpy.inf)
    index = tuple(map(int, numpy.unravel_index(worst.argmax(), worst.shape)))
    print(f"{name} at {list(index)}: {value[index]} on {DEVICE}, exactly {right[index]}")
    if now.dtype in BITS:
        bits, smallest = BITS[now.dtype]
        last_place = 2.0 ** (max(numpy.frexp(numpy.abs(right[index]))[1] - 1, smallest) - bits)
        print(f"    error {error[index] / last_place:.4g} ULP of {now.dtype}")
''')
_RECORDED = """    if name in RECORDED:
        print(f"    recorded {values(RECORDED[name])[index]}")
        was = values(RECORDED[name]).astype(wide)
        same = (was == right) | (numpy.isnan(was) & numpy.isnan(right))
        far = numpy.where(same, 0, numpy.abs(was - right)) / (numpy.abs(right) + numpy.abs(right).mean())
        far = numpy.nan_to_num(far, nan=numpy.inf)
        furthest = tuple(map(int, numpy.unravel_index(far.argmax(), far.shape)))
        if furthest != index:
            print(f"    furthest off when recorded, at {list(furthest)}: {was[furthest]}, exactly {right[furthest]}")
"""


def spelled(base: str, attributes: Mapping[str, Any] | None, called: str = "") -> str | None:
    """``mindspore.mint.add``, ``mindspore.Tensor.add``, or a primitive as it is made; ``None`` where it has no name."""
    found = values.place(base, called)
    if found is not None:
        owner, attribute = found
        return f"mindspore.Tensor.{attribute}" if isinstance(owner, type) else f"{owner.__name__}.{attribute}"
    named, settings = values.primitive_name(base), values.settings(attributes)
    if named is None:
        return None
    return f"{named}({', '.join(arguments((), settings))})"


def plain(entry: Mapping[str, Any]) -> str:
    """The Python text of `values.plain_value` for an entry; a dtype goes through ``kind``.

    Raises:
        UnknownValue: it cannot be made from what the dump says.
    """
    return f"kind(mindspore.{statistics.plain_name(values.plain_value(entry, 'cpu'))})"


def inline(numbers: str, dtype: str) -> str:
    """A tensor of nested lists."""
    return f"mindspore.Tensor({numbers}, {_dtype(dtype)})"


def loaded(path: str, dtype: str) -> str:
    """A tensor from the file at `path`, which is an expression; the file of a bfloat16 holds float32."""
    return f"mindspore.Tensor(numpy.load({path}), {_dtype(dtype)})"


def content(array: NDArray[Any], dtype: str) -> bytes:
    """The bytes of that file."""
    stream = io.BytesIO()
    np.save(stream, array if dtype == "bfloat16" else array.astype(dtype), allow_pickle=False)
    return stream.getvalue()


def _dtype(name: str) -> str:
    return "mindspore.bool_" if name == "bool" else f"mindspore.{name}"


def _last_place(form: Format) -> tuple[int, int]:
    """The bits behind the point, and the smallest exponent."""
    return form.digits - 1, form.least_exponent


def script(parts: ScriptParts, imported: str = "mindspore") -> str:
    """The script: it runs the call in the recorded types and exactly, and prints the worst element of each result.

    Args:
        parts: What it is made of.
        imported: The framework that the call is spelled in, where that is another one over MindSpore.

    Raises:
        UnknownValue: it was recorded under autocast, of which MindSpore has none.
    """
    if parts.autocast:
        raise UnknownValue("MindSpore has no autocast")
    modules = sorted({"mindspore", imported, "numpy"})
    imports = ["import pathlib", "", *(f"import {name}" for name in modules)]
    forms = [form for form in map(format_of, parts.dtypes) if form is not None and form.rounds]
    raised = {form.name: "complex128" if form.is_complex else "float64" for form in forms}
    text = _TEMPLATE.substitute(
        title=parts.title,
        found=parts.found,
        imports="\n".join(imports if parts.needs_folder else imports[2:]),
        device=source(_TARGETS[parts.device.partition(":")[0]]),
        definitions=parts.definitions,
        high=", ".join(f"mindspore.{name}: mindspore.{to}" for name, to in raised.items() if name != to),
        bits=", ".join(f"mindspore.{form.name}: {_last_place(form)}" for form in forms if not form.is_complex),
        call="\n".join(f"        {line}" for line in _call(parts)),
        run="\n".join(f"    {line}".rstrip() for line in _run(parts)),
    )
    return text + _RECORDED if parts.has_recorded else text


def _call(parts: ScriptParts) -> Iterator[str]:
    if parts.variables:
        names = ", ".join(parts.variables)
        yield f"{names if len(parts.variables) > 1 else f'({names},)'} = (x.copy() for x in leaves)"
    yield from parts.call("output = ").split("\n")
    yield f"return ({', '.join(expression for _, expression in parts.results)},)"


def _run(parts: ScriptParts) -> Iterator[str]:
    names = ", ".join(source(name) for name, _ in parts.results)
    yield f"results = dict(zip([{names}], call(*leaves)))"
    if not parts.with_gradients:
        return
    given = {number: f"x{number}" for _, number in parts.differentiated}
    arguments = ", ".join(given.get(number, f"leaves[{number}]") for number in range(len(parts.variables)))
    expressions = [expression for _, expression in parts.results]
    places = ", ".join(str(expressions.index(expression)) for expression in parts.with_gradients)
    gradients = ", ".join(source(name) for name, _ in parts.differentiated)
    yield ""
    yield f"def outputs({', '.join(given.values())}):"
    yield f"    found = call({arguments})"
    yield f"    return tuple(found[place] for place in [{places}])"
    yield ""
    leaves = ", ".join(f"leaves[{number}]" for number in given)
    yield f"_, backward = mindspore.ops.vjp(outputs, {leaves})"
    yield "gradients = backward(*(x.astype(kind(x.dtype)) for x in OF_OUTPUTS))"
    yield f"results.update(zip([{gradients}], gradients))"
