"""Dumps to measure a comparison with, as long as wanted.

`write_made` makes them up, layer after layer of a transformer, with sketches: the statistics are float32 numbers, as
those of tensors are, and the calls of one place share a stack. `write_repeated` takes the dump of a real
model and lets its step begin again and again. `write_values` makes tensors, with numpy.
"""

from __future__ import annotations

import json
import random
import re
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

Record = dict[str, Any]

HIDDEN, INNER, HEADS = [8, 1024, 4096], [8, 1024, 11008], [8, 32, 1024, 128]
SCORES = [8, 32, 1024, 1024]
LINEARS = (
    ("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", HIDDEN, HIDDEN), ("self_attn.v_proj", HIDDEN, HIDDEN),
    ("self_attn.o_proj", HIDDEN, HIDDEN), ("mlp.gate_proj", HIDDEN, INNER), ("mlp.up_proj", HIDDEN, INNER),
    ("mlp.down_proj", INNER, HIDDEN),
)  # fmt: skip
_FRAMES = 14


def _single(number: float) -> float:
    """The nearest float32, which is what statistics are made of."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def _scalar(value: Any) -> Record:
    return {"type": type(value).__name__, "value": value}


class _Run:
    """One training step: the calls of layer after layer, with the stacks they came from."""

    def __init__(self, seed: int, apart: float) -> None:
        self._numbers = random.Random(seed)
        self._noise = random.Random(seed + 1)
        self._apart = apart
        self._calls: dict[str, count[int]] = {}
        self.stacks: dict[str, list[str]] = {}

    def tensor(self, shape: list[int], requires_grad: bool = True) -> Record:
        draw = self._numbers.uniform
        values = [draw(0.5, 6), -draw(0.5, 6), draw(-0.01, 0.01), draw(5, 500)]
        if self._apart:
            values = [value * (1 + self._apart * self._noise.gauss(0, 1)) for value in values]
        statistics = dict(zip(("Max", "Min", "Mean", "Norm"), map(_single, values)))
        head = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape}
        return {**head, **statistics, "requires_grad": requires_grad}

    def api(self, name: str, inputs: list[Any], shape: list[int], **kwargs: Any) -> Iterator[tuple[str, Record]]:
        number = next(self._calls.setdefault(name, count()))
        yield self._at(name, f"{name}.{number}.forward"), self._call(inputs, shape, kwargs)
        gradients = [self.tensor(item["shape"], False) for item in inputs if isinstance(item, dict) and "shape" in item]
        yield f"{name}.{number}.backward", {"input": [self.tensor(shape, False)], "output": gradients}

    def module(self, name: str, kind: str, before: list[int], after: list[int]) -> Iterator[tuple[str, Record]]:
        weight = {"weight": self.tensor([after[-1], before[-1]]), "bias": self.tensor(after[-1:])}
        positions = [self.tensor(HEADS, False), self.tensor(HEADS, False)]
        kwargs = {"mask": self.tensor(SCORES, False), "positions": positions, "use_cache": _scalar(False)}
        call = {**self._call([self.tensor(before)], after, kwargs), "parameters": weight}
        yield self._at(kind, f"{name}.{kind}.forward.0"), call
        gradients = [self.tensor(after, False)], [self.tensor(before, False)]
        yield f"{name}.{kind}.backward.0", dict(zip(("input", "output"), gradients))
        saved = {key: [self.tensor(item["shape"], False)] for key, item in weight.items()}
        yield f"{name}.{kind}.parameters_grad.0", saved

    def _call(self, inputs: list[Any], shape: list[int], kwargs: dict[str, Any]) -> Record:
        return {"input_args": inputs, "input_kwargs": kwargs, "output": [self.tensor(shape)]}

    def _at(self, site: str, record: str) -> str:
        self.stacks.setdefault(site, []).append(record)
        return record

    def layers(self) -> Iterator[tuple[str, Record]]:
        """The calls, without an end."""
        for number in count():
            yield from self._layer(number)

    def _layer(self, number: int) -> Iterator[tuple[str, Record]]:
        t = self.tensor
        path = f"Module.model.layers.{number}"
        yield from self.api("Functional.layer_norm", [t(HIDDEN), [_scalar(4096)], t([4096]), t([4096])], HIDDEN)
        for name, before, after in LINEARS:
            weights = [t(before), t([after[-1], before[-1]]), t(after[-1:])]
            yield from self.api("Functional.linear", weights, after)
            yield from self.module(f"{path}.{name}", "Linear", before, after)
        yield from self.api("Tensor.transpose", [t(HEADS), _scalar(1), _scalar(2)], HEADS)
        yield from self.api("Torch.matmul", [t(HEADS), t(HEADS)], SCORES)
        yield from self.api("Tensor.__mul__", [t(SCORES), _scalar(0.125)], SCORES)
        dtype = {"type": "torch.dtype", "value": "torch.float32"}
        yield from self.api("Functional.softmax", [t(SCORES)], SCORES, dim=_scalar(-1), dtype=dtype)
        yield from self.api("Torch.cat", [[t(HIDDEN), t(HIDDEN)]], HIDDEN, dim=_scalar(-1))
        yield from self.api("Functional.silu", [t(INNER)], INNER, inplace=_scalar(False))
        yield from self.api("Tensor.__add__", [t(HIDDEN), t(HIDDEN)], HIDDEN)


def write_made(folder: Path, records: int, apart: float = 0.0) -> None:
    """A dump of so many records, whose numbers are `apart` times a normal deviate from those of the one without."""
    run = _Run(1, apart)
    data: dict[str, Record] = {}
    for name, record in run.layers():
        if len(data) == records:
            break
        data[name] = record
    frames = [
        f"File model/part_{number}.py, line {100 + 7 * number}, in forward, \n "
        f"hidden_states = self.layer_{number}(hidden_states, attention_mask=mask)"
        for number in range(3 * _FRAMES)
    ]
    stacks = {
        str(number): [[name for name in names if name in data], frames[number : number + _FRAMES]]
        for number, names in enumerate(run.stacks.values())
    }
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    folder.mkdir(parents=True)
    _write_sketches(folder, data, apart)
    _write(folder, {**head, "data": data}, stacks, dict.fromkeys(data))


def _write_sketches(folder: Path, data: dict[str, Record], apart: float) -> None:
    """The sketches that tensors of these norms could have; nobody made what calls take."""
    import numpy as np

    from probe.common.dump.sketch_file import MAKER, SERIAL, SKETCH
    from probe.common.dump.sketch_writer import SketchWriter

    writer, numbers, noise, serial = SketchWriter(), np.random.default_rng(1), np.random.default_rng(2), count(1)
    for name, record in data.items():
        for part, value in record.items():
            for own, tensor in _tensors(part, value):
                sums = numbers.standard_normal(64) * tensor["Norm"] / 8
                sums *= 1 + apart * noise.standard_normal(64)
                tensor[SKETCH], tensor[SERIAL] = sums.astype("<f4").tobytes(), next(serial)
                if part == "parameters":
                    tensor[MAKER] = f"parameter:{name}.{own}"
                elif part.startswith("input"):
                    tensor[MAKER] = tensor[SERIAL]
        writer.take(name, record)
    writer.write(str(folder))
    writer.close()


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Record]]:
    if isinstance(value, dict) and "shape" in value:
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(str(key), each)


def _write(folder: Path, dump: Record, stacks: Record, tree: Record) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("dump", dump), ("stack", stacks), ("construct", tree)):
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


_NUMBER = re.compile(r"\.([0-9]+)(\.forward|\.backward)?\Z")


def write_repeated(folder: Path, dump: Path, records: int) -> None:
    """The dump in the folder `dump`, its calls made again with further numbers until there are so many records."""
    whole, stacks, tree = (
        json.loads((dump / f"{name}.json").read_text(encoding="utf-8")) for name in ("dump", "stack", "construct")
    )
    # Further than any number of one step.
    shift = 1 + max(int(found[1]) for name in whole["data"] if (found := _NUMBER.search(name)))

    def again(name: str, time: int) -> str:
        return _NUMBER.sub(lambda found: f".{int(found[1]) + time * shift}{found[2] or ''}", name) if time else name

    times = range(-(-records // len(whole["data"])))
    calls = [(name, time) for time in times for name in whole["data"]][:records]
    data = {again(name, time): whole["data"][name] for name, time in calls}
    new_stacks = {
        key: [[found for time in times for name in names if (found := again(name, time)) in data], frames]
        for key, (names, frames) in stacks.items()
    }
    new_tree = {again(name, time): parent and again(parent, time) for time in times for name, parent in tree.items()}
    _write(folder, {**whole, "data": data}, new_stacks, new_tree)


def write_values(folder: Path, total: int, kind: str, apart: float = 0.0) -> int:
    """A dump with real data, `total` bytes of float32 tensors of mixed sizes in files that end in `kind`.

    Returns:
        The number of tensors.
    """
    import numpy as np

    rng = np.random.default_rng(5)
    noise = np.random.default_rng(6)
    (folder / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Record] = {}
    # From a bias to the activations of a long batch.
    sizes = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 3 << 20, 1 << 22, 1 << 24]
    left = total // 4
    while left > 0:
        size = min(sizes[len(data) % len(sizes)], left)
        left -= size
        values = rng.standard_normal(size, dtype=np.float32).reshape(-1, 256) if size % 256 == 0 else np.ones(size)
        values = values.astype(np.float32)
        if apart:
            values *= 1 + np.float32(apart) * noise.standard_normal(values.shape, dtype=np.float32)
        name = f"Functional.relu.{len(data)}.forward"
        file = f"{name}.output.0{kind}"
        if kind == ".pt":
            import torch

            torch.save(torch.from_numpy(values), folder / "dump_tensor_data" / file)
        else:
            np.save(folder / "dump_tensor_data" / file, values)
        statistics = {"Max": float(values.max()), "Min": float(values.min()), "Mean": float(values.mean())}
        norm = float(np.sqrt(np.square(values, dtype=np.float64).sum()))
        head = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape)}
        item = {**head, **statistics, "Norm": norm, "requires_grad": False, "data_name": file}
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [item]}
    dump = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": "dump_tensor_data", "data": data}
    (folder / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
    return len(data)
