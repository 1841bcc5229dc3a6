"""The installation: Python, frameworks, compiled parts, optional packages, and commands for missing parts."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from probe import _version as package
from probe.api import self_check
from probe.common.dump.frameworks import (
    FRAMEWORKS,
    Framework,
    all_tested_text,
    is_installed,
    numbers,
    version,
)

_TIMEOUT_S = 180
_OWN_DISTRIBUTION = "precision-probe"
_OWN_FILES = re.compile(r"^(?:(probe|msprobe)/__init__\.py|\S*/(?:bin|Scripts)/(msprobe)(?:\.exe)?),", re.MULTILINE)
"""Lines of a distribution's RECORD that name a package or the command of this one."""
_CONFLICT = "! "
"""The beginning of a line on packages that do not go together."""


class _Package(NamedTuple):
    """A framework, or what belongs to one."""

    name: str
    distribution: str
    backend: str = ""
    """The backend to check with it; ``""`` if it has none and is imported only."""


_PACKAGES = (
    *(_Package(each.module, each.distribution, backend) for backend, each in FRAMEWORKS.items()),
    _Package("torch_npu", "torch_npu"),
)
_MSADAPTER = FRAMEWORKS["msadapter"]
_MINDSPORE = f"pip install {FRAMEWORKS['mindspore'].install}"
_MINDSPORE_OF_MINDTORCH = f"pip install {_MSADAPTER.install}"
# It comes inside of mindnlp, which must be installed without what it asks for.
_MINDTORCH = f"pip install --no-deps {_MSADAPTER.distribution}=={_MSADAPTER.tested[-1]}"
_CHECKED_WITH = {"MSPROBE_LOG_LEVEL": "2", "GLOG_v": "3"}
"""Variables of the process in which a framework is tried: what the tool reports is looked at, MindSpore's notes not."""
_COMPILED = (
    ("backends/shared/_reduction", "statistics on the CPU take three or four passes over a tensor and not one"),
    ("backends/torch/tensors/_plain_tensors", "describing a small PyTorch tensor takes more than twice the time"),
    ("collect/describing/_makers", "finding who made a tensor takes several times as long"),
    ("common/numerics/_differences", "ckpt_compare of different values takes several times as long"),
    ("common/_frames", "call stacks are walked in Python"),
)
_OPTIONAL = (
    ("rich", "colours, and the bar of a comparison", "pip install rich"),
    ("openpyxl", "workbooks: compare --xlsx, merge_result", "pip install openpyxl"),
    ("isal", "checksums ten times as fast", "pip install isal"),
    ("xxhash", "equal tensor files found without reading them", "pip install xxhash"),
    ("distributed", "compare --dask", "pip install 'dask[distributed]'"),
    ("polars", "to_frame(), like pandas", "pip install polars"),
    ("pandas", "to_frame(), like polars", "pip install pandas"),
)


class _Tried(NamedTuple):
    """The result of trying a package."""

    text: str
    is_broken: bool = False


class Installation:
    """The installed and the missing packages.

    Args:
        tried: True if each framework is imported, and a dump made with it.
    """

    def __init__(self, tried: bool = True) -> None:
        # Found without importing any: that takes seconds, and may end the process.
        self._found = {one.name: version(one.distribution) for one in _PACKAGES if is_installed(one.name)}
        self._pool = ThreadPoolExecutor()
        there = [one for one in _PACKAGES if one.name in self._found] if tried else []
        self._tried = {one.name: self._pool.submit(_try, one) for one in there}
        self._conflicts = [*_other_owners(), *_conflicts(self._found)]

    @property
    def is_broken(self) -> bool:
        """True if a framework is there and does not work."""
        return any(tried.result().is_broken for tried in self._tried.values())

    def lines(self) -> Iterator[str]:
        """All of it, line by line."""
        system = f"{platform.system()} {platform.machine()}"
        yield f"msprobe {package.__version__} in {os.path.dirname(os.path.abspath(package.__file__))}"
        yield f"Python {platform.python_version()} ({system}) at {sys.executable}"
        for title, found in (
            ("frameworks", self._frameworks()),
            ("compiled parts", _compiled()),
            ("packages", _packages()),
        ):
            yield from ("", title)
            yield from (f"  {text}" for text in found)

    def as_json(self) -> dict[str, Any]:
        """The same for machines; ``works`` is ``None`` if it was not tried."""
        return {
            "msprobe": package.__version__,
            "python": platform.python_version(),
            "executable": sys.executable,
            "frameworks": [
                {
                    "name": one.name,
                    "version": self._found.get(one.name),
                    "works": not self._tried[one.name].result().is_broken if one.name in self._tried else None,
                    "text": self._tried[one.name].result().text if one.name in self._tried else "",
                }
                for one in _PACKAGES
            ],
            "conflicts": [text.removeprefix(_CONFLICT) for text in self._conflicts],
            "compiled": {os.path.basename(path): _is_compiled(path) for path, _ in _COMPILED},
            "packages": {name: version(name) if is_installed(name) else None for name, _, _ in _OPTIONAL},
        }

    def _frameworks(self) -> Iterator[str]:
        for one in _PACKAGES:
            if one.name in self._found:
                result = self._tried[one.name].result().text if one.name in self._tried else "installed"
                yield f"{one.name:12} {_shown(one, self._found[one.name]):20} {result}"
            elif advice := _advice(one.name, self._found):
                yield f"{one.name:12} {'not installed':20} {advice}"
        yield from self._conflicts
        yield f"tested: {all_tested_text()}"


# --- frameworks


def _advice(missing: str, found: dict[str, str]) -> str:
    """Advice for a framework that is missing: no command that would break the frameworks in `found`."""
    advice = _ADVICE.get(missing)
    return "" if advice is None else advice(found)


def _of_torch(found: dict[str, str]) -> str:
    own = "needs an environment of its own: it would hide mindtorch"
    return own if "mindtorch" in found else "pip install torch"


def _of_mindspore(found: dict[str, str]) -> str:
    return _MINDSPORE_OF_MINDTORCH if "mindtorch" in found else _MINDSPORE


def _of_mindtorch(found: dict[str, str]) -> str:
    if "torch" in found:
        return "needs an environment of its own: torch would hide it"
    if "mindspore" in found and not _suits_mindtorch(found["mindspore"]):
        return "needs an environment of its own, with MindSpore 2.7.0"
    return f"{_MINDSPORE_OF_MINDTORCH} && {_MINDTORCH}"


_ADVICE = {"torch": _of_torch, "mindspore": _of_mindspore, "mindtorch": _of_mindtorch}
"""By the package; few need others."""


def _suits_mindtorch(mindspore: str) -> bool:
    return numbers(mindspore)[:3] in map(numbers, _MSADAPTER.tested_bases)


def _shown(one: _Package, installed: str) -> str:
    return installed if one.name == one.distribution else f"of {one.distribution} {installed}"


def _try(one: _Package) -> _Tried:
    """Import a package in a process of its own, and check the backend that it has."""
    with tempfile.TemporaryDirectory(prefix="msprobe_doctor_") as folder:
        answers = os.path.join(folder, "answers.jsonl")
        program = "from probe.api.self_check import main; main()"
        command = [sys.executable, "-c", program, one.name, one.backend, os.path.join(folder, "dump"), answers]
        environment = {**os.environ, **_CHECKED_WITH}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, env=environment
            )
        except subprocess.TimeoutExpired:
            return _Tried(f"BROKEN: {_part(_answers(answers))} did not end within {_TIMEOUT_S} s", True)
        return _judge(one, _answers(answers), done)


def _answers(path: str) -> dict[str, Any]:
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        return dict(json.loads(line) for line in stream)


def _part(answers: Mapping[str, Any]) -> str:
    """The part of the check that did not end."""
    return next((part for part in self_check.PARTS if part not in answers), "ending the process")


def _judge(one: _Package, answers: Mapping[str, Any], done: subprocess.CompletedProcess[str]) -> _Tried:
    if self_check.BROKEN in answers:
        text = answers[self_check.BROKEN]
        part = "" if self_check.IMPORTING not in answers else f"{_part(answers)}: "
        return _Tried(f"BROKEN: {part}{text}", True)
    if done.returncode < 0:
        return _Tried(f"BROKEN: {_part(answers)} ends the process (signal {-done.returncode})", True)
    wanted = self_check.RECORDS if one.backend else self_check.IMPORTING
    if done.returncode or wanted not in answers:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        ended = f"{_part(answers)} ends the process with status {done.returncode}"
        return _Tried(f"BROKEN: {said[-1] if said else ended}", True)
    text = f"imports in {answers[self_check.IMPORTING]:.1f} s"
    if one.backend:
        number, seconds = answers[self_check.RECORDS], answers[self_check.READING]
        text += f"; a dump of {number} records made and read in {seconds:.1f} s"
    return _Tried(text)


def _conflicts(found: dict[str, str]) -> Iterator[str]:
    for backend in ("torch", "mindspore"):
        one = FRAMEWORKS[backend]
        if one.module in found and numbers(found[one.module]) < one.oldest:
            yield f"{_CONFLICT}{one.module} {found[one.module]} is older than supported releases{_newer(one, found)}"
    if "mindtorch" in found and "torch" in found:
        yield f"{_CONFLICT}torch hides mindtorch, which is installed too: pip uninstall torch, if you use MSAdapter"
    if "mindspore" in found and is_installed("numpy") and numbers(version("numpy")) >= (2,):
        yield f"{_CONFLICT}MindSpore fails at arithmetic of a tensor and a number with numpy 2: pip install 'numpy<2'"


def _other_owners() -> Iterator[str]:
    """A line for each other distribution that has installed this one's packages or command, and so replaced them."""
    for one in importlib.metadata.distributions():
        # A folder without a readable METADATA has no name.
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name in ("", _OWN_DISTRIBUTION):
            continue
        names = sorted({package or command for package, command in _OWN_FILES.findall(one.read_text("RECORD") or "")})
        if names:
            yield (
                f"{_CONFLICT}{name} {one.version}, another distribution, has installed {' and '.join(names)} too: "
                f"pip uninstall {name}, then install {_OWN_DISTRIBUTION} again"
            )


def _newer(one: Framework, found: dict[str, str]) -> str:
    if "mindtorch" in found:
        # There a newer MindSpore is wrong as well, and a torch is not to be there at all.
        return f": {_MINDSPORE_OF_MINDTORCH}" if one is FRAMEWORKS[_MSADAPTER.base] else ""
    return f": pip install '{one.module}>={'.'.join(map(str, one.oldest))}'"


# --- the rest


def _is_compiled(path: str) -> bool:
    root = os.path.dirname(os.path.abspath(package.__file__))
    return any(os.path.isfile(f"{root}/{path}{suffix}") for suffix in importlib.machinery.EXTENSION_SUFFIXES)


def _compiled() -> Iterator[str]:
    for path, cost in _COMPILED:
        name = os.path.basename(path)
        yield f"{name:20} there" if _is_compiled(path) else f"{name:20} missing: {cost}"
    if not all(_is_compiled(path) for path, _ in _COMPILED):
        yield "the installation of the package builds them if there is a C compiler; in a checkout:"
        yield "  python setup.py build_ext --inplace"


def _packages() -> Iterator[str]:
    for name, purpose, command in _OPTIONAL:
        if is_installed(name):
            yield f"{name:12} {version(name):14} {purpose}"
        else:
            yield f"{name:12} {'not installed':14} {purpose}: {command}"
