"""Read what a demo collected; needs no framework."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUTPUT = os.path.join(_ROOT, "demo_output")


def text() -> list[int]:
    """The bytes that the demos learn from."""
    with open(os.path.join(_ROOT, "LICENSE"), "rb") as stream:
        return list(stream.read())


def show(train: Callable[[], None]) -> None:
    """Call `train`, which collects into `OUTPUT`, and print what is there."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    train()
    process = sorted(os.listdir(os.path.join(OUTPUT, "step0")))[0]
    folder = os.path.join(OUTPUT, "step0", process)
    print(f"\nThe files of the first step are in {folder}:")
    for name, meaning in (
        ("dump.json", "what went in and out of every module and API, and the gradients"),
        ("stack.json", "the call stacks that led there"),
        ("construct.json", "which call ran inside which module"),
    ):
        size = os.path.getsize(os.path.join(folder, name)) / 1024
        print(f"  {name:15} {size:7.0f} KiB  {meaning}")
    print()
    describe(folder)
    print("\nA backward record's output is the gradient of the forward's input.")
    print("docs/reference/output.md explains every field.")


def first_tensor(value: object) -> dict | None:
    if isinstance(value, dict):
        if "shape" in value:
            return value
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        found = first_tensor(item)
        if found:
            return found
    return None


def describe(folder: str) -> None:
    """Print what one dump folder holds."""
    with open(os.path.join(folder, "dump.json"), encoding="utf-8") as stream:
        data = json.load(stream)["data"]
    kinds = dict.fromkeys(
        ("modules, forward", "modules, backward", "parameter gradients", "APIs, forward", "APIs, backward"), 0
    )
    for name in data:
        who = "modules" if name.startswith(("Module.", "Cell.")) else "APIs"
        kind = "parameter gradients" if ".parameters_grad." in name else None
        kinds[kind or f"{who}, {'backward' if '.backward' in name else 'forward'}"] += 1
    print("records: " + "; ".join(f"{count} of {kind}" for kind, count in kinds.items()))
    print(f"\n{'record':52} {'shape of output':>16} {'Max':>11} {'Min':>11} {'Mean':>11} {'Norm':>11}")
    shown = [name for name in data if "blocks.0." in name or "head" in name or "cross_entropy" in name]
    for name in shown:
        tensor = first_tensor(data[name].get("output", data[name]))
        if tensor is None or tensor["Max"] is None:
            continue
        numbers = " ".join(f"{tensor[key]:11.4g}" for key in ("Max", "Min", "Mean", "Norm"))
        print(f"{name:52} {tensor['shape']!s:>16} {numbers}")
