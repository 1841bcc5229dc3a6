"""Runs whose arithmetic numpy does, with the sketches and makers that a recorder writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_dumps
import numpy as np
from made_dumps import tensor_of
from numpy.typing import NDArray

from probe.common.dump.naming import BACKWARD, PARAMETERS_GRAD, is_module, parse
from probe.common.dump.reading.dump import read
from probe.common.dump.sketch_file import MAKER, SERIAL, SKETCH
from probe.common.dump.sketch_writer import SketchWriter
from probe.common.numerics.sketch import sketch
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult, Divergence

RNG = np.random.default_rng(20)
X = RNG.normal(size=(16, 64)).astype(np.float32)
W = (RNG.normal(size=(64, 64)) / 8).astype(np.float32)
Array = NDArray[np.float32]
Record = dict[str, Any]
Run = dict[str, Record]


def tensor(array: Any, dtype: str = "torch.float32", **more: Any) -> Record:
    """The entry of an array, with its statistics and its sketch."""
    values = np.asarray(array)
    return {**tensor_of(values, dtype, **more), **({SKETCH: sketch(values).packed()} if values.size else {})}


def whole(array: Any) -> Record:
    """The entry of a tensor of whole numbers."""
    return tensor(array, "torch.int64")


def rounded(array: Any, kind: str) -> Any:
    """An array in bfloat16, by cutting off half of each number and rounding, or as it is."""
    if kind == "float32":
        return array
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def call(inputs: list[Any], *outputs: Any, **parameters: Any) -> Record:
    return made_dumps.call(inputs, list(outputs), **({"parameters": parameters} if parameters else {}))


def backward(inputs: list[Any], *outputs: Any) -> Record:
    return {"input": inputs, "output": list(outputs)}


def write(
    folder: Path,
    data: Run,
    tree: dict[str, str | None] | None = None,
    level: str = "mix",
    has_sketches: bool = True,
    **head: str,
) -> Path:
    """Write the dump of one process; a tensor with the numbers of an earlier one is that one."""
    data = _copied(data)
    folder.mkdir(parents=True, exist_ok=True)
    writer = SketchWriter()
    _find_makers(data)
    for name, fields in data.items():
        writer.take(name, fields)
    if has_sketches:
        writer.write(str(folder))
    writer.close()
    line = f"File {folder.name}.py, line {{}}, in f, \n g()"
    stacks = {str(place): [[name], [line.format(place)]] for place, name in enumerate(data)}
    return made_dumps.write(folder, data, {**dict.fromkeys(data), **(tree or {})}, stacks, level=level, **head)


def _copied(value: Any) -> Any:
    """A copy in which no entry is the same object as another one."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def _find_makers(data: Run) -> None:
    """Give each tensor what the recorder knows of its maker."""
    made: dict[bytes, Any] = {}
    serial = 0
    for name, fields in data.items():
        parsed = parse(name)
        path = "" if parsed is None else parsed.base.rpartition(".")[0].partition(".")[2]
        for owner, entry in _entries(fields):
            if owner == "parameters":
                (own,) = (each for each, value in fields["parameters"].items() if value is entry)
                made.setdefault(entry[SKETCH], f"parameter:{path}.{own}")
            elif parsed is not None and parsed.direction == PARAMETERS_GRAD:
                (own,) = (each for each, value in fields.items() if any(entry is one for one in value))
                made[entry[SKETCH]] = f"gradient:{path}.{own}"
    for name, fields in data.items():
        is_backward = BACKWARD in name
        for owner, entry in _entries(fields):
            serial += 1
            entry[SERIAL] = serial
            known = made.get(entry[SKETCH])
            if owner == "output" and not (is_module(name) and type(known) is int):
                made[entry[SKETCH]] = serial
            elif known is not None:
                entry[MAKER] = known
            elif owner.startswith("input") and not is_backward:
                made[entry[SKETCH]] = entry[MAKER] = serial


def _entries(fields: Any, owner: str = "") -> Iterator[tuple[str, Record]]:
    """The entries that have a sketch, each with the field of the record that it stands in."""
    if isinstance(fields, dict):
        if SKETCH in fields:
            yield owner, fields
        elif "type" not in fields:
            for key, value in fields.items():
                yield from _entries(value, owner or key)
    elif isinstance(fields, list):
        for value in fields:
            yield from _entries(value, owner)


def compared(folder: Path, target: Run, golden: Run, *trees: dict[str, str | None], **head: str) -> Divergence | None:
    return result_of(folder, target, golden, *trees, **head).divergence


def result_of(folder: Path, target: Run, golden: Run, *trees: dict[str, str | None], **head: str) -> ComparisonResult:
    of_target, of_golden = trees if len(trees) == 2 else (trees * 2 or ({}, {}))
    write(folder / "target", target, of_target, **head)
    write(folder / "golden", golden, of_golden, **head)
    return compare_dumps(read(folder / "target"), read(folder / "golden"))


def named(divergence: Divergence | None) -> str:
    assert divergence is not None
    return divergence.record


def chain(dtype: Any = np.float32, constant: float = 1.0, at: int = -1, nan: int = -1, calls: int = 6) -> Run:
    """Products and activations, one after the other, computed in `dtype` and rounded to float32."""
    data, x = {}, X
    for number in range(calls):
        y = (x.astype(dtype) @ W.astype(dtype)).astype(np.float32)
        if number == at:
            y = y * np.float32(constant)
        if number == nan:
            y[3, 3] = np.nan
        data[f"Functional.linear.{number}.forward"] = call([tensor(x), tensor(W)], tensor(y))
        x = np.tanh(y.astype(dtype)).astype(np.float32)
        data[f"Torch.tanh.{number}.forward"] = call([tensor(y)], tensor(x))
    return data
