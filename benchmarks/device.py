"""What a training step costs with the tool on a CUDA device, and whether anything waits for the device.

Wall time from one synchronisation to the next, a step with the tool (statistics and sketches) against a bare one in
turns. Besides, torch's profiler counts what makes the host wait in a collected step (synchronisations, copies to the
host), which must not grow with the records, and the statistics of large tensors are timed against a copy of the same
bytes inside the device.

    python benchmarks/device.py                              # a Llama of a billion parameters, bfloat16
    python benchmarks/device.py --model small --device cpu   # what it does by itself where there is no CUDA device

On the CPU the same code runs over a small model: it shows that the script works, and its ratios are not those of a
device, which the goals are for. Needs transformers. It was never run on a device, as RESULTS.md says.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import measure

LEVELS = ("L0", "L1")
GOALS = {"L0": 1.2, "L1": 2.0}
SHAPES = {
    # hidden, intermediate, layers, heads, vocabulary, batch, length
    "small": (64, 128, 2, 4, 256, 2, 32),
    "billion": (2048, 5632, 22, 32, 32000, 8, 2048),
}
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "Memcpy DtoH")


def llama(shape: Sequence[int], device: str) -> tuple[Any, Callable[[], None]]:
    """A model with random weights, and one training step of it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, inner, layers, heads, words, batch, length = shape
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, vocab_size=words, max_position_embeddings=length, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16)
    tokens = torch.randint(words, (batch, length), device=device)

    def step() -> None:
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()

    return model, step


class _Waiting:
    """Seconds until the device has done everything."""

    def __init__(self, device: str) -> None:
        import torch

        self._synchronise = torch.cuda.synchronize if device.startswith("cuda") else lambda: None

    def __call__(self, program: Callable[[], Any]) -> float:
        self._synchronise()
        before = time.perf_counter()
        program()
        self._synchronise()
        return time.perf_counter() - before


def _debugger(level: str) -> Any:
    from msprobe.pytorch import PrecisionDebugger

    config = {"task": "statistics", "dump_path": os.path.abspath("dump"), "rank": [], "step": [], "level": level}
    Path("config.json").write_text(json.dumps({**config, "risk_level": "ALL", "statistics": {}}), encoding="utf-8")
    return PrecisionDebugger(config_path=os.path.abspath("config.json"))


def level_cost(level: str, shape: Sequence[int], device: str, repeats: int) -> dict[str, Any]:
    """Bare and collected seconds of a step, the records, and what made the host wait in one collected step."""
    from torch.profiler import ProfilerActivity, profile

    model, step = llama(shape, device)
    seconds = _Waiting(device)
    debugger = _debugger(level)

    def collected() -> None:
        debugger.start(model=model)
        step()
        debugger.stop()
        debugger.step()

    turns = [(seconds(step), seconds(collected)) for _ in range(1 + repeats)][1:]
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    with profile(activities=activities) as profiler:
        collected()
    waits = dict.fromkeys(_WAITS, 0)
    for event in profiler.key_averages():
        for name in _WAITS:
            waits[name] += event.count if name in event.key else 0
    newest = max(Path("dump").rglob("dump.json"), key=lambda path: path.stat().st_mtime)
    records = len(json.loads(newest.read_text(encoding="utf-8"))["data"])
    bare, whole = measure.middle([turn[0] for turn in turns]), measure.middle([turn[1] for turn in turns])
    return {"bare": bare, "collected": whole, "records": records, "waits": waits}


def bandwidth(device: str, elements: int, repeats: int) -> list[dict[str, Any]]:
    """GB/s of describing a tensor, and of copying it to another place on the device, which reads and writes it."""
    import torch

    from probe.backends import loader
    from probe.common.interfaces import StatisticsMode

    adapter, seconds = loader.load("torch"), _Waiting(device)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        tensor = torch.randn(elements, device=device).to(dtype)
        place, size = torch.empty_like(tensor), elements * tensor.element_size()
        copy = min(seconds(lambda: place.copy_(tensor)) for _ in range(1 + repeats))  # noqa: B023
        described = min(
            seconds(lambda: adapter.tensors.describe_tensor(tensor, StatisticsMode("statistics", False)))  # noqa: B023
            for _ in range(1 + repeats)
        )
        adapter.tensors.resolve()
        found.append({"dtype": str(dtype), "copy": 2 * size / copy / 1e9, "statistics": size / described / 1e9})
    return found


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Overhead and bandwidth on a device.")
    parser.add_argument("--device", help="cuda, or cpu where torch finds no CUDA device (default)")
    parser.add_argument("--model", choices=SHAPES, help="default: billion on a device, small on the CPU")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="steps of each kind (default 5)")
    parser.add_argument("--elements", type=int, metavar="N", help="of the tensors of the bandwidth")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args(arguments)
    if options.repeats < 1 or (options.elements is not None and options.elements < 1):
        parser.error("--repeats and --elements must be 1 or more")
    import torch

    options.device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    is_device = options.device.startswith("cuda")
    if is_device and not torch.cuda.is_available():
        parser.error(f"--device {options.device}: torch finds no CUDA device here; cpu is allowed to try the script")
    options.model = options.model or ("billion" if is_device else "small")
    # 1 GiB of float32 on a device; on the CPU 64 MiB, which its caches do not hold.
    options.elements = options.elements or (1 << 28 if is_device else 1 << 24)
    name = torch.cuda.get_device_name() if is_device else "CPU (no CUDA device)"
    about = measure.machine(("torch", "transformers", "msprobe"), name)
    print(about, flush=True)
    results: dict[str, Any] = {}
    rows = []
    for level in LEVELS:
        # In a process of its own, which has one debugger.
        given = {"level": level, "shape": SHAPES[options.model], "device": options.device, "repeats": options.repeats}
        try:
            found = results[level] = measure.run_worker(sys.executable, __file__, given)
        except measure.Failed as error:
            print(error, file=sys.stderr)
            return 1
        ratio = found["collected"] / found["bare"]
        times = [f"{found[kind] * 1e3:.1f}" for kind in ("bare", "collected")]
        waits = str(sum(found["waits"].values())) if is_device else "-"
        goal = f"{GOALS[level]}" if is_device else "-"
        rows.append([level, *times, f"{ratio:.2f}", goal, str(found["records"]), waits])
    head = ("level", "bare ms", "with the tool ms", "ratio", "goal", "records", "times the host waited")
    print(f"\n{measure.table(head, rows)}", flush=True)
    results["bandwidth"] = bandwidth(options.device, options.elements, options.repeats)
    rows = [[found["dtype"], f"{found['copy']:.1f}", f"{found['statistics']:.1f}"] for found in results["bandwidth"]]
    print(f"\n{measure.table(('dtype', 'copy GB/s', 'statistics GB/s'), rows)}", flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps({"machine": about, **results}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    worker = measure.worker_arguments()
    if worker is not None:
        measure.give_result(level_cost(**worker))
    else:
        sys.exit(main(sys.argv[1:]))
