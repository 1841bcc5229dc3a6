"""What is installed: Python, frameworks, compiled parts, optional packages; and how to get what is missing."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from probe import _version as package

_TIMEOUT_S = 120


class _Framework(NamedTuple):
    """A framework, or what belongs to one."""

    name: str
    distribution: str
    oldest: tuple[int, ...]


_FRAMEWORKS = (
    _Framework("torch", "torch", (2, 2)),
    _Framework("torch_npu", "torch_npu", ()),
    _Framework("mindspore", "mindspore", (2, 7)),
    _Framework("mindtorch", "mindnlp", ()),
)
# With numpy 2 MindSpore fails at arithmetic between a tensor and a number.
_MINDSPORE = "pip install 'mindspore==2.10.0' 'numpy<2'"
_MINDSPORE_OF_MINDTORCH = "pip install 'mindspore==2.7.0' 'numpy<2' ml_dtypes"
_VERSIONS_OF_MINDTORCH = ((2, 7, 0), (2, 7, 1))
# It comes inside of mindnlp, which must be installed without what it asks for.
_MINDTORCH = "pip install --no-deps mindnlp==0.5.1"
_COMPILED = (
    ("backends/shared/_reduction", "statistics on the CPU take three or four passes over a tensor and not one"),
    ("backends/torch/tensors/_plain_tensors", "describing a small PyTorch tensor takes more than twice the time"),
    ("common/_frames", "call stacks are walked in Python"),
)
_OPTIONAL = (
    ("rich", "colours, and the bar of a comparison", "pip install rich"),
    ("openpyxl", "workbooks: compare --xlsx, merge_result", "pip install openpyxl"),
    ("isal", "checksums ten times as fast", "pip install isal"),
    ("xxhash", "equal tensor files found without reading them", "pip install xxhash"),
    ("distributed", "compare --dask", "pip install 'dask[distributed]'"),
    ("polars", "to_frame(); pandas serves as well", "pip install polars"),
    ("pandas", "to_frame(); polars serves as well", "pip install pandas"),
)


def lines(imported: bool = True) -> Iterator[str]:
    """What is there and what is missing, line by line.

    Args:
        imported: whether it is tried to import the frameworks.
    """
    system = f"{platform.system()} {platform.machine()}"
    yield f"msprobe {package.__version__} in {os.path.dirname(os.path.abspath(package.__file__))}"
    yield f"Python {platform.python_version()} ({system}) at {sys.executable}"
    for title, found in (
        ("frameworks", _frameworks(imported)),
        ("compiled parts", _compiled()),
        ("packages", _packages()),
    ):
        yield from ("", title)
        yield from (f"  {text}" for text in found)


# --- frameworks


def _frameworks(imported: bool) -> Iterator[str]:
    # Found without importing any: that takes seconds, and may end the process.
    found = {one.name: _version(one.distribution) for one in _FRAMEWORKS if _is_installed(one.name)}
    with ThreadPoolExecutor() as pool:
        tried = {name: pool.submit(_try_import, name) for name in found if imported}
        for one in _FRAMEWORKS:
            if one.name in found:
                result = tried[one.name].result() if one.name in tried else "installed"
                yield f"{one.name:12} {_shown(one, found[one.name]):20} {result}"
            elif advice := _advice(one.name, found):
                yield f"{one.name:12} {'not installed':20} {advice}"
    yield from _conflicts(found)


def _advice(missing: str, found: dict[str, str]) -> str:
    """What to say of a framework that is missing beside those in `found`: no command that breaks these."""
    if missing == "torch":
        own = "wants an environment of its own: it would hide mindtorch"
        return own if "mindtorch" in found else "pip install torch"
    if missing == "mindspore":
        return _MINDSPORE_OF_MINDTORCH if "mindtorch" in found else _MINDSPORE
    if missing == "mindtorch":
        if "torch" in found:
            return "wants an environment of its own: torch would hide it"
        if "mindspore" in found and not _suits_mindtorch(found["mindspore"]):
            return "wants an environment of its own, with MindSpore 2.7.0"
        return f"{_MINDSPORE_OF_MINDTORCH} && {_MINDTORCH}"
    return ""  # few need what is left


def _suits_mindtorch(mindspore: str) -> bool:
    return _numbers(mindspore)[:3] in _VERSIONS_OF_MINDTORCH


def _shown(one: _Framework, version: str) -> str:
    return version if one.name == one.distribution else f"of {one.distribution} {version}"


def _is_installed(module: str) -> bool:
    """Whether a package of this name would be imported; it is not imported to find out."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    # Without an origin it is any folder of that name.
    return found is not None and found.origin is not None


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def _try_import(name: str) -> str:
    start = time.perf_counter()
    command = [sys.executable, "-c", f"import {name}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"BROKEN: importing it did not end within {_TIMEOUT_S} s"
    if done.returncode == 0:
        return f"imports in {time.perf_counter() - start:.1f} s"
    if done.returncode < 0:
        return f"BROKEN: importing it ends the process (signal {-done.returncode})"
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return f"BROKEN: {said[-1] if said else f'importing it ends with status {done.returncode}'}"


def _conflicts(found: dict[str, str]) -> Iterator[str]:
    for one in _FRAMEWORKS:
        if one.name in found and one.oldest and _numbers(found[one.name]) < one.oldest:
            yield f"! {one.name} {found[one.name]} is older than what is supported{_newer(one, found)}"
    if "mindtorch" in found and "torch" in found:
        yield "! torch stands beside mindtorch, which it hides: pip uninstall torch, where MSAdapter is meant"
    if "mindspore" in found and _is_installed("numpy") and _numbers(_version("numpy")) >= (2,):
        yield "! MindSpore fails at arithmetic between a tensor and a number with numpy 2: pip install 'numpy<2'"


def _newer(one: _Framework, found: dict[str, str]) -> str:
    if "mindtorch" in found:
        # There a newer MindSpore is wrong as well, and a torch is not to be there at all.
        return f": {_MINDSPORE_OF_MINDTORCH}" if one.name == "mindspore" else ""
    return f": pip install '{one.name}>={'.'.join(map(str, one.oldest))}'"


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with; those of an unknown version are newer than any."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else (sys.maxsize,)


# --- the rest


def _compiled() -> Iterator[str]:
    root = os.path.dirname(os.path.abspath(package.__file__))
    missing = False
    for path, cost in _COMPILED:
        name = os.path.basename(path)
        is_there = any(os.path.isfile(f"{root}/{path}{suffix}") for suffix in importlib.machinery.EXTENSION_SUFFIXES)
        missing = missing or not is_there
        yield f"{name:20} there" if is_there else f"{name:20} missing: {cost}"
    if missing:
        yield "they are made where a C compiler is found when the package is installed; in a checkout:"
        yield "  python setup.py build_ext --inplace"


def _packages() -> Iterator[str]:
    for name, purpose, command in _OPTIONAL:
        if _is_installed(name):
            yield f"{name:12} {_version(name):14} {purpose}"
        else:
            yield f"{name:12} {'not installed':14} {purpose}: {command}"
