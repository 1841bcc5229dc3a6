"""What a command of ours takes: wall time, processor time, the largest memory of a process, and what it writes.

    python benchmarks/commands.py                                   # every command, in a size that takes a minute
    python benchmarks/commands.py compare graph --sizes 20000 --repeats 3 --real PYTHON

Every number is that of a whole command in a process of its own, the least of some runs. Another tool (``--real``,
an interpreter that has it under our import name) runs on the same files in between. The commands:

- ``start``: what there is to wait for before any work.
- ``compare``: so many nodes a side with sketches, the same numbers, or every number another one.
- ``values``: so many megabytes of tensors a side, which are compared, and only read.
- ``graph``: so many nodes a side, alone and beside each other; ``ranks``: 8 ranks of 4 steps.
- ``overflow_check``: 64 ranks of so many records each, or a single one.
- ``ckpt_compare``: so many megabytes a side; sparse files of the shape of a 70B model; one of them transposed.
- ``acc_check``: so many steps of small calls of many kinds in three dtypes, with their tensors or generated inputs;
  needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import deep_dumps
import measure

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT), str(ROOT / "tests" / "support")]
_COMMAND = "import sys; from {module} import main; sys.exit(main())"
MODULES = {"ours": "probe.api.cli", "real": "msprobe.msprobe"}
_READ = """
import sys, probe
for records in zip(*map(probe.read, sys.argv[1:])):
    for dump, record in zip(map(probe.read, sys.argv[1:]), records):
        for item in record.items():
            dump.tensor(item)
"""
_RANKS, _STEPS = 8, 4
_HIDDEN, _FFN, _WORDS, _KEYS = 8192, 28672, 128256, 1024
"""Llama 3 70B."""


class Work(NamedTuple):
    """One line of the table: a command over files that are there."""

    name: str
    arguments: Sequence[str]
    writes: bool = True
    only_ours: bool = False


# --- the files of each command; `size` is what `--sizes` says


def start(folder: Path, size: int) -> Iterator[Work]:
    sides = [_deep(folder / side, size) for side in ("target", "golden")]
    yield Work("compare --help", ["compare", "--help"], False)
    yield Work(f"compare, {size} nodes", ["compare", *_pair(*sides)])


def compare(folder: Path, size: int) -> Iterator[Work]:
    golden = _deep(folder / "golden", size, sketches=True)
    target = _deep(folder / "target", size, sketches=True, everywhere=True)
    yield Work(f"compare, {size:,} nodes, the same", ["compare", *_pair(golden, golden)])
    yield Work(f"compare, {size:,} nodes, all differ", ["compare", *_pair(target, golden)])


def values(folder: Path, size: int) -> Iterator[Work]:
    for kind in (".npy", ".pt"):
        sides = [folder / f"{side}{kind}" for side in ("target", "golden")]
        for side, apart in zip(sides, (1e-5, 0.0)):
            deep_dumps.write_values(side, size * 500_000, kind, apart)
        # Another tool looks for .npy beside a MindSpore dump only: it would compare nothing.
        yield Work(f"compare, {size} MB of {kind}", ["compare", *_pair(*sides)], True, kind == ".npy")
        yield Work(f"{size} MB of {kind}, only read", ["-c", _READ, *map(str, sides)], False, True)


def graph(folder: Path, size: int) -> Iterator[Work]:
    golden, target = _deep(folder / "golden", size), _deep(folder / "target", size, faulty="llama_weight")
    yield Work(f"graph, {size:,} nodes", ["graph_visualize", "-tp", str(target)])
    yield Work(f"graph, two of {size:,} nodes", ["graph_visualize", *_pair(target, golden, "")])


def ranks(folder: Path, size: int) -> Iterator[Work]:
    for step in range(_STEPS):
        for rank in range(_RANKS):
            for side, faulty in (("golden", ""), ("target", "llama_weight")):
                _deep(folder / side / f"step{step}" / f"rank{rank}", size, faulty=faulty, seed=_RANKS * step + rank)
    name = f"graph, {_RANKS} ranks, {_STEPS} steps, {size:,} nodes"
    pair = _pair(folder / "target", folder / "golden", "")
    yield Work(name, ["graph_visualize", *pair, "--jobs", "2"], only_ours=True)


def overflow_check(folder: Path, size: int) -> Iterator[Work]:
    for count, jobs in ((64, 2), (1, 1)):
        made = deep_dumps.write_overflowing(folder / str(count), count, size)
        arguments = ["overflow_check", "-i", str(folder / str(count) / "run"), "--no_page", "--jobs", str(jobs)]
        yield Work(f"overflow_check, {count} ranks of {made:,} records", arguments, only_ours=True)


def ckpt_compare(folder: Path, size: int) -> Iterator[Work]:
    rows = size * 1_000_000 // 4 // 4096 // 16
    shapes = {f"layers.{number}.w": (rows, 4096) for number in range(16)}
    matrices = {
        f"self_attn.{name}": (rows, _HIDDEN)
        for name, rows in (("q_proj", _HIDDEN), ("k_proj", _KEYS), ("v_proj", _KEYS), ("o_proj", _HIDDEN))
    }
    matrices.update({"mlp.gate_proj": (_FFN, _HIDDEN), "mlp.down_proj": (_HIDDEN, _FFN)})
    for name, one, other, dtype, changed in (
        (f"{size} MB, equal", shapes, shapes, "F32", False),
        (f"{size} MB, different", shapes, shapes, "F32", True),
        ("a layer of 70B, sparse", matrices, matrices, "BF16", None),
        ("the same, transposed", matrices, {name: shape[::-1] for name, shape in matrices.items()}, "BF16", None),
    ):
        sides = [folder / f"{side}.safetensors" for side in ("one", "other")]
        _write_checkpoint(sides[0], one, dtype, None if changed is None else False)
        _write_checkpoint(sides[1], other, dtype, changed)
        yield Work(f"ckpt_compare, {name}", ["ckpt_compare", *map(str, sides)], only_ours=True)


def acc_check(folder: Path, size: int) -> Iterator[Work]:
    import recorded_step
    import torch

    from msprobe.pytorch import PrecisionDebugger, seed_all

    seed_all(1)
    for task in ("tensor", "statistics"):
        PrecisionDebugger.reset()
        debugger = PrecisionDebugger(dump_path=str(folder / task), task=task, level="L1")
        debugger.start()
        for _ in range(size):
            for dtype in (torch.float32, torch.bfloat16, torch.float16):
                recorded_step.calls(dtype).backward()
        debugger.stop()
        debugger.step()
        (path,) = (folder / task).glob("step0/*/dump.json")
        for jobs in ("1", "2"):
            name = f"acc_check, {size} steps, task {task}, {jobs} process(es)"
            yield Work(name, ["acc_check", "-api_info", str(path), "--jobs", jobs], only_ours=True)


COMMANDS: dict[str, tuple[Callable[[Path, int], Iterator[Work]], list[int]]] = {
    "start": (start, [303]),
    "compare": (compare, [2000, 20_000]),
    "values": (values, [256]),
    "graph": (graph, [303, 5429, 21_554]),
    "ranks": (ranks, [1000]),
    "overflow_check": (overflow_check, [5000]),
    "ckpt_compare": (ckpt_compare, [500]),
    "acc_check": (acc_check, [1]),
}


def _deep(folder: Path, nodes: int, **options: Any) -> Path:
    deep_dumps.write_deep(folder, nodes, **options)
    return folder


def _pair(target: Path, golden: Path, file: str = "dump.json") -> list[str]:
    return ["-tp", str(target / file), "-gp", str(golden / file)]


def _write_checkpoint(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, changed: bool | None) -> None:
    """Write a safetensors file, sparse where `changed` is ``None``."""
    import numpy as np

    entries, at = {}, 0
    for name, shape in shapes.items():
        length = {"BF16": 2, "F32": 4}[dtype] * int(np.prod(shape))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    header, drawn = json.dumps(entries).encode(), np.random.default_rng(0)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        for _ in range(at >> 24 if changed is not None else 0):
            block = drawn.standard_normal(1 << 22, dtype=np.float32)
            stream.write((block * np.float32(1.001) if changed else block).tobytes())
        stream.truncate(8 + len(header) + at)


# --- measuring


class Measured(NamedTuple):
    """The cost of a command, and the megabytes of what it wrote."""

    cost: measure.Cost
    megabytes: float


def measured(work: Work, tool: str, python: str, folder: Path, repeats: int) -> Measured:
    """Run a command some times.

    Raises:
        measure.Failed: it failed, or wrote nothing though it should.
    """
    # What makes ours importable would make it stand in for another tool of the same name.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if tool == "ours":
        environment["PYTHONPATH"] = str(ROOT)
    program = [] if work.arguments[0] == "-c" else ["-c", _COMMAND.format(module=MODULES[tool])]
    output, costs, size = folder / "output", [], 0
    for _ in range(repeats):
        shutil.rmtree(output, ignore_errors=True)
        # Other tools want a folder that only its owner writes to.
        output.mkdir(mode=0o750)
        into = ["-o", str(output)] if work.writes else []
        costs.append(measure.cost([python, *program, *work.arguments, *into], str(folder), environment))
        size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
        if work.writes and not size:
            raise measure.Failed(f"{work.name}: nothing is written.")
    return Measured(measure.least(costs), size / 1e6)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help=", ".join(COMMANDS))
    parser.add_argument("--sizes", nargs="+", type=int, metavar="N", help="of all chosen commands")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="the least of N is taken (default 1)")
    parser.add_argument("--real", metavar="PYTHON", help="interpreter with another tool of the same import name")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    unknown = set(options.commands) - set(COMMANDS)
    if unknown or options.repeats < 1 or min(options.sizes or [1]) < 1:
        parser.error(f"COMMAND is one of {', '.join(COMMANDS)}; --sizes and --repeats are 1 or more")
    about = measure.machine(("torch", "numpy", "msgspec"), f"{os.cpu_count()} processors")
    print(about, flush=True)
    tools = {"ours": sys.executable, **({"real": options.real} if options.real else {})}
    results: dict[str, dict[str, Measured]] = {}
    failed = False
    for command in options.commands or COMMANDS:
        make, sizes = COMMANDS[command]
        for size in options.sizes or sizes:
            with tempfile.TemporaryDirectory(prefix="commands_") as folder:
                for work in make(Path(folder), size):
                    results[work.name] = {}
                    for tool, python in tools.items():
                        if tool != "ours" and work.only_ours:
                            continue
                        try:
                            found = measured(work, tool, python, Path(folder), options.repeats)
                            results[work.name][tool] = found
                        except measure.Failed as error:
                            print(f"{tool}: {error}", file=sys.stderr, flush=True)
                            failed |= tool == "ours"
    head = ["", *(f"{tool} {unit}" for tool in tools for unit in ("wall s", "CPU s", "MiB", "MB"))]
    rows = [[name, *(cell for tool in tools for cell in _cells(found.get(tool)))] for name, found in results.items()]
    print(f"\n{measure.table(head, rows)}", flush=True)
    if options.json:
        content = {
            name: {tool: {**each.cost._asdict(), "megabytes": each.megabytes} for tool, each in found.items()}
            for name, found in results.items()
        }
        Path(options.json).write_text(json.dumps({"machine": about, "results": content}, indent=1) + "\n", "utf-8")
    return int(failed)


def _cells(found: Measured | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    numbers = (found.cost.wall_s, found.cost.cpu_s)
    return [*(f"{number:.2f}" for number in numbers), f"{found.cost.memory_mib:.0f}", f"{found.megabytes:.2f}"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
