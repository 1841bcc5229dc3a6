"""Dumps as large as wanted: the second layer of a recorded two-layer Llama, there again and again, and real data.

What such a layer makes has other statistics each time, so that files have the size of real ones: every number is that
of the recorded layer times a factor, the same for a tensor wherever it stands and on both sides of a comparison.
"""

from __future__ import annotations

import json
import os
import random
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

DUMPS = Path(__file__).resolve().parents[1] / "tests" / "graph" / "cases" / "dumps"
Record = dict[str, Any]

_NUMBER = re.compile(r"\.([0-9]+)\.(forward|backward)\Z")
_STATISTICS = ("Max", "Min", "Mean", "Norm")
_LAYER = "Module.model.layers.1."
_FILES = ("dump.json", "construct.json", "stack.json")
_NODES_OF_LAYER, _NODES_OF_TWO = 125, 303
"""Of the recorded Llama."""
_REDUCED_EVERY = 100
"""Records between two calls of all_reduce."""


class Recorded(NamedTuple):
    """The files of a recorded dump with two layers."""

    dump: Record
    tree: dict[str, str | None]
    stacks: dict[str, Any]


def recorded(name: str) -> Recorded:
    """Read a recorded dump of the tests of the graph."""
    return Recorded(*(json.loads((DUMPS / name / file).read_text("utf-8")) for file in _FILES))


def layers_of(nodes: int) -> int:
    """How many layers so many nodes take."""
    return max(2, 2 + round((nodes - _NODES_OF_TWO) / _NODES_OF_LAYER))


class _Names:
    """The names of a model of `layers` layers, made of those of one with two."""

    def __init__(self, tree: Mapping[str, str | None], layers: int) -> None:
        self._layers = layers
        self._of_layer = {name for name in tree if any(each.startswith(_LAYER) for each in _around(name, tree))}
        self._ranges: dict[str, tuple[int, int]] = {}
        for name in self._of_layer:
            found = _NUMBER.search(name)
            if found is not None and not name.startswith("Module."):
                api, number = name[: found.start()], int(found[1])
                low, high = self._ranges.get(api, (number, number))
                self._ranges[api] = min(low, number), max(high, number)

    def expanded(self, names: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """Each name of the deep model, the recorded one behind it, and the number of its layer; -1 outside of them."""
        run: list[str] = []
        for name in names:
            if name in self._of_layer or name.startswith(_LAYER):
                run.append(name)
                continue
            yield from self._again(run)
            run = []
            yield self.of(name, -1), name, -1
        yield from self._again(run)

    def _again(self, names: list[str]) -> Iterator[tuple[str, str, int]]:
        forward = [name for name in names if ".forward" in name]
        others = [name for name in names if ".forward" not in name]
        for layer in range(1, self._layers):
            yield from ((self.of(name, layer), name, layer) for name in forward)
        for layer in reversed(range(1, self._layers)):
            yield from ((self.of(name, layer), name, layer) for name in others)

    def of(self, name: str, layer: int) -> str:
        """The name of a call of the layer, or of one outside of the layers that are repeated."""
        if name.startswith("Module."):
            return name.replace(_LAYER, f"Module.model.layers.{layer}.") if layer >= 1 else name
        found = _NUMBER.search(name)
        if found is None:
            return name
        api, number = name[: found.start()], int(found[1])
        low, high = self._ranges.get(api, (0, -1))
        if layer >= 1:
            number += (layer - 1) * (high - low + 1)
        elif number > high >= low:
            number += (self._layers - 2) * (high - low + 1)
        return f"{api}.{number}.{found[2]}"


def _around(name: str, tree: Mapping[str, str | None]) -> Iterator[str]:
    above: str | None = name
    while above is not None:
        yield above
        above = tree.get(above)


def _changed(value: Any, clean: Any, layer: int, seed: int) -> Any:
    """`value` with its statistics times a factor that depends on the layer and on what the recorded tensor is."""
    if isinstance(value, dict):
        if not isinstance(clean, dict):
            clean = value
        found = {key: _changed(each, clean.get(key, each), layer, seed) for key, each in value.items()}
        if "Max" in value:
            statistics = tuple(clean.get(key) for key in _STATISTICS)
            factor = random.Random(f"{seed} {layer} {statistics}").uniform(0.5, 2.0)
            found.update({key: _times(value[key], factor) for key in _STATISTICS if key in value})
        return found
    if isinstance(value, list):
        others = clean if isinstance(clean, list) and len(clean) == len(value) else value
        return [_changed(each, other, layer, seed) for each, other in zip(value, others)]
    return value


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) > 1e37:
        return value
    # Statistics are float32 numbers.
    return struct.unpack("f", struct.pack("f", value * factor))[0]


def write_deep(
    folder: Path, nodes: int, *, faulty: str = "", everywhere: bool = False, seed: int = 0, sketches: bool = False
) -> int:
    """Write a dump of about so many nodes.

    Args:
        folder: where it goes.
        nodes: how many.
        faulty: the recorded dump whose numbers stand from the layer in the middle on.
        everywhere: every number differs by a millionth from that of the dump without it.
        seed: other numbers in all layers.
        sketches: write sketches that tensors of these norms could have.

    Returns:
        The number of records.
    """
    clean, layers = recorded("llama"), layers_of(nodes)
    other = recorded(faulty) if faulty else None
    names = _Names(clean.tree, layers)
    data: dict[str, Record] = {}
    for new, old, layer in names.expanded(clean.dump["data"]):
        here = clean.dump["data"][old]
        is_after = layer >= layers // 2 or (layer < 0 and not old.startswith("Module.model.layers.0."))
        source = other.dump["data"].get(old, here) if other is not None and is_after else here
        # The layers that are there once keep what was recorded.
        data[new] = _changed(source, here, layer, seed) if layer > 0 else source
        if everywhere:
            data[new] = _scaled(data[new], 1 + 1e-6)
    tree: dict[str, str | None] = {}
    for new, old, layer in names.expanded(clean.tree):
        above = clean.tree[old]
        is_repeated = above is not None and (above.startswith(_LAYER) or not above.startswith("Module."))
        tree[new] = above and names.of(above, layer if is_repeated else -1)
    stacks = {key: [[new for new, _, _ in names.expanded(calls)], of] for key, (calls, of) in clean.stacks.items()}
    folder.mkdir(parents=True)
    if sketches:
        _write_sketches(folder, data, 1e-6 if everywhere else 0.0)
    for file, content in zip(_FILES, ({**clean.dump, "data": data}, tree, stacks)):
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    return len(data)


def _scaled(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: _times(x, factor) if key in _STATISTICS else _scaled(x, factor) for key, x in value.items()}
    return [_scaled(each, factor) for each in value] if isinstance(value, list) else value


def _write_sketches(folder: Path, data: dict[str, Record], apart: float) -> None:
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
                    # Nobody made what calls take.
                    tensor[MAKER] = tensor[SERIAL]
        writer.take(name, record)
    writer.write(str(folder))
    writer.close()


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Record]]:
    if isinstance(value, dict) and isinstance(value.get("Norm"), float):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _tensors(str(key), each)


# --- a run of several ranks, one of which makes a NaN


def write_overflowing(folder: Path, ranks: int, records: int) -> int:
    """Write a step in which one rank makes a NaN, which reaches the others with the next all_reduce.

    Ranks that hold the same are links to one file.

    Returns:
        The number of records of a rank.
    """
    made = folder / "made"
    write_deep(made, records * _NODES_OF_TWO // len(recorded("llama").dump["data"]))
    dump = json.loads((made / "dump.json").read_text("utf-8"))
    clean = dump["data"]
    names = [name for name in clean if isinstance(clean[name], dict) and ".forward" in name and "output" in clean[name]]
    bad_from, number = list(clean).index(names[len(names) // 2]), 0
    for kind in ("faulty", "other"):
        data = dict(_overflowing(clean, ranks, bad_from, kind == "faulty"))
        number = len(data)
        (folder / kind).mkdir()
        (folder / kind / "dump.json").write_text(json.dumps({**dump, "data": data}, indent=1), encoding="utf-8")
        for name in _FILES[1:]:
            os.link(made / name, folder / kind / name)
    for rank in range(ranks):
        place = folder / "run" / "step0" / f"rank{rank}"
        place.mkdir(parents=True)
        for name in _FILES:
            os.link(folder / ("faulty" if rank == ranks // 2 else "other") / name, place / name)
    return number


def _overflowing(clean: Record, ranks: int, bad_from: int, is_faulty: bool) -> Iterator[tuple[str, Any]]:
    """The records of a rank: NaN from `bad_from` on where it is the faulty one, else from the next all_reduce on."""
    number, reached = 0, False
    for index, (name, record) in enumerate(clean.items()):
        if index == bad_from and is_faulty:
            yield name, {**record, "output": _with_nan(record["output"])}
        else:
            yield name, _with_nan(record) if reached else record
        was_reached = reached
        reached = reached or (is_faulty and index >= bad_from)
        if ranks > 1 and index % _REDUCED_EVERY == _REDUCED_EVERY - 1:
            after = float("nan") if index >= bad_from else 1.0
            yield (
                f"Distributed.all_reduce.{number}.forward",
                _all_reduce(ranks, float("nan") if reached else 1.0, after),
            )
            reached, number = was_reached or index >= bad_from, number + 1


def _all_reduce(ranks: int, before: float, after: float) -> Record:
    group = {"type": "torch.ProcessGroup", "group_ranks": list(range(ranks)), "group_id": "00000000"}

    def tensor(value: float) -> Record:
        head = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [32, 32], "requires_grad": False}
        return {**head, **dict.fromkeys(_STATISTICS, value)}

    return {"input_args": [tensor(before)], "input_kwargs": {"group": group}, "output": [tensor(after), group]}


def _with_nan(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("Max"), float):
            return {**value, **dict.fromkeys(_STATISTICS, float("nan"))}
        return {key: _with_nan(item) for key, item in value.items()}
    return [_with_nan(item) for item in value] if isinstance(value, list) else value


# --- real data


def write_values(folder: Path, total: int, kind: str, apart: float = 0.0) -> None:
    """Write a dump with `total` bytes of float32 tensors of mixed sizes in files that end in `kind`."""
    import numpy as np

    rng, noise = np.random.default_rng(5), np.random.default_rng(6)
    (folder / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Record] = {}
    # From a bias to the activations of a long batch.
    sizes = [1 << 10, 1 << 14, 1 << 17, 1 << 20, 3 << 20, 1 << 22, 1 << 24]
    left = total // 4
    while left > 0:
        size = min(sizes[len(data) % len(sizes)], left)
        left -= size
        values = rng.standard_normal(size, dtype=np.float32)
        if apart:
            values *= 1 + np.float32(apart) * noise.standard_normal(values.shape, dtype=np.float32)
        name = f"Functional.relu.{len(data)}.forward"
        file = f"{name}.output.0{kind}"
        if kind == ".pt":
            import torch

            torch.save(torch.from_numpy(values), folder / "dump_tensor_data" / file)
        else:
            np.save(folder / "dump_tensor_data" / file, values)
        norm = float(np.sqrt(np.square(values, dtype=np.float64).sum()))
        statistics = dict(zip(_STATISTICS, (*map(float, (values.max(), values.min(), values.mean())), norm)))
        head = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [size], "requires_grad": False}
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [{**head, **statistics, "data_name": file}]}
    dump = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": "dump_tensor_data", "data": data}
    (folder / "dump.json").write_text(json.dumps(dump), encoding="utf-8")
