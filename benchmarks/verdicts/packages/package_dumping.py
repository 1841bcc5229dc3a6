"""Make the dumps of pairs, in the environment that has their packages: ``package_dumping.py OUT PAIR ...``.

Each pair is checked without the debugger first: the second program computes the same as the first, and each fault moves
its output.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path

import torch
from package_index import GOLDEN, RIGHT, Run, folder_of, write
from package_pairs import FLOAT32, Pair, Program, loss_of
from torch import nn

from msprobe.pytorch import PrecisionDebugger

MODULES = (
    "package_language", "package_more_language", "package_vision", "package_layouts", "package_reshapes",
    "package_engine",
)  # fmt: skip
SETTINGS = ("mix:statistics", "L0:statistics")
SAME = 1e-5
"""Largest difference between the outputs of two correct programs, relative to the largest value."""
SAME_GRADIENTS = 1e-4
MOVES = 1e-4
"""Smallest difference that a fault makes to the output."""
SHOWS = 4.0
"""In bfloat16, a fault is used if it moves the output so many times as far as rounding does."""


class Unfit(Exception):
    """A pair is not what it claims to be."""


def without_cuda() -> None:
    """Let packages be imported whose compiled operators cannot be loaded, because torch has no CUDA.

    Of `torchaudio`, models alone are used, which are Python and need none.
    """
    audio = importlib.util.find_spec("torchaudio")
    if audio is not None and audio.origin is not None:
        package = types.ModuleType("torchaudio")
        package.__spec__, package.__path__ = audio, [str(Path(audio.origin).parent)]
        sys.modules["torchaudio"] = package
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).parent / "_C.so"))
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def pairs() -> Iterator[Pair]:
    """All pairs."""
    for name in MODULES:
        if (Path(__file__).parent / f"{name}.py").exists():
            yield from importlib.import_module(name).PAIRS


def _gradient_norm(model: nn.Module) -> float:
    squares = [value.grad.double().square().sum() for value in model.parameters() if value.grad is not None]
    return float(torch.stack(squares).sum().sqrt())


def _output(program: Program, trains: bool) -> torch.Tensor:
    """Output of one run without the debugger; gradients are left in the parameters."""
    program.model.zero_grad()
    if not trains:
        with torch.no_grad():
            return program.run(program.model).double()
    output = program.run(program.model)
    loss_of(output.float()).backward()
    return output.detach().double()


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    if found.shape != expected.shape:
        raise Unfit(f"The output has the shape {tuple(found.shape)}, not {tuple(expected.shape)}.")
    return float((found - expected).abs().max() / expected.abs().max())


def _programs(pair: Pair, type_: str, fault: str) -> tuple[Program, Program]:
    golden = pair.golden()
    target = pair.target(golden.model)
    if fault != RIGHT:
        with torch.no_grad():
            pair.faults[fault].plant(target.model)
    if type_ != FLOAT32:
        for program in (golden, target):
            program.model.to(getattr(torch, type_))
    return golden, target


def checked(pair: Pair, type_: str) -> dict[str, float]:
    """The move of the output by each run.

    Raises:
        Unfit: the two programs do not compute the same, or a fault does nothing.
    """
    found: dict[str, float] = {}
    for fault in (RIGHT, *pair.faults):
        golden, target = _programs(pair, type_, fault)
        torch.manual_seed(0)
        expected = _output(golden, pair.trains)
        torch.manual_seed(0)
        found[fault] = _apart(_output(target, pair.trains), expected)
        if fault == RIGHT and type_ == FLOAT32:
            if found[RIGHT] > SAME:
                raise Unfit(f"{pair.name}: the outputs differ by {found[RIGHT]:.1e}.")
            if pair.trains and pair.gradients:
                mine, theirs = _gradient_norm(target.model), _gradient_norm(golden.model)
                if abs(mine / theirs - 1) > SAME_GRADIENTS:
                    raise Unfit(f"{pair.name}: the norms of all gradients are {mine} and {theirs}.")
        elif fault != RIGHT and found[fault] < MOVES:
            raise Unfit(f"{pair.name}: {fault} moves the output by {found[fault]:.1e} only.")
    return found


def _dump(program: Program, trains: bool, setting: str, path: Path) -> None:
    level, task = setting.split(":")
    # A process has one debugger; here each run has its own.
    PrecisionDebugger._instance = None
    debugger = PrecisionDebugger(task=task, level=level, dump_path=str(path))
    torch.manual_seed(0)
    debugger.start(program.model)
    if trains:
        loss_of(program.run(program.model).float()).backward()
    else:
        with torch.no_grad():
            program.run(program.model)
    debugger.stop()
    debugger.step()
    PrecisionDebugger._instance = None


def make(pair: Pair, out: Path) -> None:
    """Check a pair and make its dumps.

    Raises:
        Unfit: the pair is not what it claims to be.
    """
    shutil.rmtree(out / pair.name, ignore_errors=True)
    runs = []
    for type_ in pair.types:
        moved = checked(pair, type_)
        least = 0.0 if type_ == FLOAT32 else SHOWS * moved[RIGHT]
        for fault in (RIGHT, *(name for name in pair.faults if moved[name] > least)):
            where = pair.faults[fault].where if fault != RIGHT else ""
            runs.append(Run(type_, fault, where, moved[fault], list(SETTINGS)))
            for setting in SETTINGS:
                golden, target = _programs(pair, type_, fault)
                if fault == RIGHT:
                    _dump(golden, pair.trains, setting, folder_of(out, pair.name, type_, setting, GOLDEN))
                _dump(target, pair.trains, setting, folder_of(out, pair.name, type_, setting, fault))
    write(out, pair.name, runs)


def main(arguments: list[str]) -> int:
    """Make the dumps of the named pairs that are not there yet; ``--check`` as the folder only checks them."""
    torch.set_num_threads(1)
    without_cuda()
    bad = 0
    for pair in pairs():
        if pair.name not in arguments[1:]:
            continue
        start = time.time()
        try:
            if arguments[0] == "--check":
                said = "; ".join(f"{type_}: {_texts(checked(pair, type_))}" for type_ in pair.types)
            else:
                make(pair, Path(arguments[0]))
                said = "made"
        except Unfit as error:
            bad, said = 1, f"UNFIT {error}"
        except Exception:  # One package that fails leaves the others.
            bad, said = 1, f"FAILED {traceback.format_exc(limit=-3)}"
        print(f"{pair.name}: {said} ({time.time() - start:.0f} s)", flush=True)
    return bad


def _texts(moved: dict[str, float]) -> str:
    return ", ".join(f"{fault} {value:.1e}" for fault, value in moved.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
