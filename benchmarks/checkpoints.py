"""The speed of `msprobe ckpt_compare` from the page cache, and its memory on sparse files of the shape of a 70B model.

    python benchmarks/checkpoints.py [--gigabytes 2] [--layers 2]

Each measurement is a process of its own. "GB/s" counts the bytes of one of the two checkpoints. The memory is the peak
beyond that of the imports, and depends on the largest parameter, not on how many there are: two layers show it. All 80
are 280 GB of zeros, which the kernel makes one page at a time.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_MEASURE = """
import json, sys, time
from pathlib import Path
from probe.checkpoint.run import compare_checkpoints
def peak():
    # Not ru_maxrss, which begins with that of the process that started this one.
    return next(int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith("VmHWM"))
before = peak()
start, cpu = time.perf_counter(), time.process_time()
report = compare_checkpoints(*sys.argv[1:3])
print(json.dumps({"answer": report.answer, "seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu,
    "memory": (peak() - before) * 1024}))
"""
_HIDDEN, _FFN, _WORDS, _KEYS = 8192, 28672, 128256, 1024
"""Llama 3 70B."""


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, fill: bool, changed: bool = False) -> int:
    """A safetensors file, sparse unless it is filled; gives the bytes of its tensors."""
    size, entries, at = {"BF16": 2, "F32": 4}[dtype], {}, 0
    for name, shape in shapes.items():
        length = size * int(np.prod(shape))
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + length]}
        at += length
    header = json.dumps(entries).encode()
    random = np.random.default_rng(0)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        if fill:
            for _ in range(at >> 24):
                block = random.standard_normal(1 << 22, dtype=np.float32)
                stream.write((block * np.float32(1.001) if changed else block).tobytes())
        stream.truncate(8 + len(header) + at)
    return at


def large(layers: int) -> dict[str, tuple[int, ...]]:
    """The parameters of a 70B model with so many layers."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (_WORDS, _HIDDEN)}
    for number in range(layers):
        for name, rows, columns in (
            ("self_attn.q_proj", _HIDDEN, _HIDDEN), ("self_attn.k_proj", _KEYS, _HIDDEN),
            ("self_attn.v_proj", _KEYS, _HIDDEN), ("self_attn.o_proj", _HIDDEN, _HIDDEN),
            ("mlp.gate_proj", _FFN, _HIDDEN), ("mlp.up_proj", _FFN, _HIDDEN), ("mlp.down_proj", _HIDDEN, _FFN),
        ):  # fmt: skip
            found[f"model.layers.{number}.{name}.weight"] = (rows, columns)
    return {**found, "lm_head.weight": (_WORDS, _HIDDEN)}


def measure(one: Path, other: Path, size: int, largest: int, what: str) -> None:
    """Print what a comparison costs."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, str(one), str(other)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print(
        f"{what}: {found['answer']}, {size / 1e9:.1f} GB a side, {found['seconds']:.1f} s, "
        f"{size / found['cpu'] / 1e9:.2f} GB/s a core, memory {found['memory'] / 1e6:.0f} MB "
        f"({found['memory'] / largest:.3f} of the largest parameter)",
        flush=True,
    )


def main() -> None:
    """Make the files, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--layers", type=int, default=2, help="of the 70B shape; 80 are all, 140 GB a side")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = int(args.gigabytes * 1e9 / 4 / 4096 / 16)
        shapes: dict[str, tuple[int, ...]] = {f"layers.{number}.w": (rows, 4096) for number in range(16)}
        one, same, other = (Path(folder) / f"{name}.safetensors" for name in ("one", "same", "other"))
        size = write(one, shapes, "F32", True)
        write(same, shapes, "F32", True)
        measure(one, same, size, rows * 4096 * 4, "equal values")
        same.unlink()
        write(other, shapes, "F32", True, True)
        measure(one, other, size, rows * 4096 * 4, "different values")
        one.unlink()
        other.unlink()
        shapes = large(args.layers)
        size = write(one, shapes, "BF16", False)
        write(other, shapes, "BF16", False)
        measure(one, other, size, _WORDS * _HIDDEN * 2, f"the shape of 70B, {args.layers} layers, sparse")
        # A matrix that is transposed on one side is held as a whole.
        matrices = {name: shape for name, shape in large(1).items() if ".layers." in name}
        size = write(one, matrices, "BF16", False)
        write(other, {name: shape[::-1] for name, shape in matrices.items()}, "BF16", False)
        measure(one, other, size, _FFN * _HIDDEN * 2, "one layer of it, transposed on one side, sparse")


if __name__ == "__main__":
    main()
