"""Answers to command lines of msProbe that are no command here: the one to type, or the reason."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence

from probe.common import files
from probe.common.errors import MsprobeException

_FRAMEWORKS, _FRAMEWORK_FLAGS = ("pytorch", "mindspore"), ("-f", "--framework")
_OF_PAIRS = {"compare": "compare", "graph": "graph_visualize", "graph_visualize": "graph_visualize"}
"""The commands to which a file named the two dumps."""
_ONNX = "it runs ONNX and OM models on an Ascend device, and only programs in Python are collected from here"
_KERNELS = "{} chooses kernels of graphs for Ascend, which are not compared here; give the folder of one rank or step"
_MODE = ("-m", "--mode")

ANSWERS: dict[tuple[str, tuple[str, ...], str], str] = {
    ("run_ut", (), ""): "it is called acc_check; type: msprobe acc_check DUMP.json",
    ("multi_run_ut", (), ""): "it is called multi_acc_check; type: msprobe multi_acc_check DUMP.json",
    ("run_overflow_check", (), ""): "it is part of overflow_check; type: msprobe overflow_check DUMP.json",
    ("op_generate", (), ""): "replay writes the script; type: msprobe replay DUMP.json API_NAME --emit SCRIPT.py",
    ("config_checking", (), ""): "it is called config_check; type: msprobe config_check -d SCRIPT",
    ("offline_dump", (), ""): f"{_ONNX}; type: msprobe run SCRIPT.py",
    ("install_deps", (), ""): (
        "it installs packages for models on Ascend devices, and nothing here needs them; type: msprobe doctor"
    ),
    ("compare", _MODE, "atb"): (
        "-m atb compares what ATB wrote on Ascend, which is not compared here; msprobe parse -d DIR writes it as .npy"
    ),
    ("compare", _MODE, "torchair"): (
        "-m torchair compares graphs that TorchAir compiled for Ascend, which cannot be read here; collect both runs "
        "in eager mode, and leave -m out"
    ),
    ("compare", _MODE, "offline_data"): (
        "-m offline_data compares dumps of OM and ONNX models, which cannot be read here; leave -m out for dumps of "
        "frameworks"
    ),
    ("compare", _MODE, "offline_model"): f"-m offline_model: {_ONNX}; leave -m out for dumps of frameworks",
    ("compare", ("--consistent_check",), ""): (
        "--consistent_check compares a training with its rollout; type: msprobe rollout_check OLD NEW, and compare "
        "the two dumps without this flag"
    ),
    ("compare", ("--rank",), ""): _KERNELS.format("--rank"),
    ("compare", ("--step",), ""): _KERNELS.format("--step"),
    ("acc_check", ("-nfs_path", "--nfs_path"), ""): (
        "-nfs_path checks calls while the training on another device sends them; here the training is dumped first, "
        "and checked afterwards; leave -nfs_path out"
    ),
}  # fmt: skip
"""A sentence for a command, or a flag of it, or a value of that flag; the first that fits is answered."""


def without_framework(given: Sequence[str]) -> tuple[Sequence[str], str]:
    """The arguments without a leading ``-f pytorch``, and the line that says so, if there is one."""
    flag, is_one, value = given[0].partition("=") if given else ("", "", "")
    rest = list(given[1:])
    if flag in _FRAMEWORK_FLAGS and not is_one and rest:
        value = rest.pop(0)
    if flag not in _FRAMEWORK_FLAGS or value not in _FRAMEWORKS:
        return given, ""
    return rest, f"{flag} {value} belongs to older releases and has no effect: each dump has its framework."


def refuse(given: Sequence[str]) -> None:
    """Do nothing for a command line of today.

    Raises:
        MsprobeException: `given` is one of the table, or names the dumps in a file; the message says what to type.
    """
    command = given[0] if given else ""
    if command.partition("=")[0] in _FRAMEWORK_FLAGS:
        raise MsprobeException(f"{' '.join(given[:2])} names no framework; leave it out: each dump has its framework.")
    words = [part for word in given[1:] for part in (word.split("=", 1) if word.startswith("-") else [word])]
    for (name, flags, value), sentence in ANSWERS.items():
        if name == command and (not flags or _has(words, flags, value)):
            raise MsprobeException(f"{command}: {sentence}." if not flags else f"{sentence}.")
    if command in _OF_PAIRS:
        inputs = [path for flag, path in zip(words, words[1:]) if flag in ("-i", "--input_path")]
        if inputs:
            raise MsprobeException(_command_for_pair_file(_OF_PAIRS[command], inputs[0]))


def _has(words: Sequence[str], flags: Sequence[str], value: str) -> bool:
    return any(word in flags and (not value or words[at + 1 : at + 2] == [value]) for at, word in enumerate(words))


_LARGEST = 100_000
"""In bytes; the file holds two paths."""


def _command_for_pair_file(command: str, path: str) -> str:
    """The command to type instead of ``-i FILE``, which names the two dumps."""
    target, golden = "TARGET", "GOLDEN"
    # Anything may be given; a damaged one only makes the hint less precise.
    with contextlib.suppress(OSError, ValueError, RecursionError):
        with files.open_for_reading(path) as stream:
            content = json.loads(stream.read(_LARGEST))
        if isinstance(content, dict) and isinstance(content.get("npu_path"), str):
            target, golden = content["npu_path"], content.get("bench_path") or ""
    pair = target + (f" {golden}" if golden else "")
    return f"-i {os.path.basename(path)} belongs to older releases; type: msprobe {command} {pair} -o OUTPUT"
