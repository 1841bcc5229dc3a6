"""``msprobe doctor``: what is installed, the trial of each framework, and the environments of dumps.

A framework is tried in a process of its own: it is imported, a dump is made with it, and read back. Nothing stands in
for anything: the debugger, the hooks and the reader are those of a training. What only the work needs is imported then;
all commands wait for this file.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from probe import _version as package
from probe.api.commands import arguments
from probe.api.commands.question import Answer, Invocation, Question
from probe.common import log
from probe.common.dump.frameworks import (
    FRAMEWORKS,
    Framework,
    all_tested_text,
    is_installed,
    numbers,
    version,
)
from probe.common.environment import environment_file as environment_files
from probe.common.environment.differences import in_words
from probe.common.errors import FrameworkError, MsprobeException, failure_text
from probe.common.log import ERROR_LOG
from probe.common.progress import ProgressCallback

if TYPE_CHECKING:
    import subprocess

IMPORTING, COLLECTING, READING = "importing it", "collecting a training step with it", "reading what was collected"
"""The parts of the check, as a message names them."""
PARTS = (IMPORTING, COLLECTING, READING)
RECORDS, BROKEN = "records", "broken"
_SHOWN = 3
"""Texts of one kind that a line lists; a guess."""
_TIMEOUT_S = 180
"""Seconds that the trial of a framework may take. A guess: MindSpore's first import takes up to one minute."""
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
    ("backends/torch/_backward_tracker", "following a module's backward takes up to twice the time"),
    ("backends/torch/hooks/_function_calls", "recording calls of functions takes up to 1.3 times as long"),
    ("collect/_calls", "recording calls of functions takes up to 1.3 times as long"),
    ("collect/describing/_makers", "finding who made a tensor takes several times as long"),
    ("common/numerics/_differences", "ckpt_compare of different values takes several times as long"),
    ("common/numerics/_digests", "fingerprints of weights take more than a hundred times as long"),
    ("common/_frames", "call stacks are walked in Python"),
    ("common/dump/_journal_frames", "a record goes to the journal in ten steps of Python and not in one"),
    ("common/dump/_records", "the files of a step are written in Python, which takes twice as long"),
)
_ROOT = os.path.dirname(os.path.abspath(package.__file__))
_THERE = "there"
_OPTIONAL = (
    ("rich", "colours, and the bar of a comparison", "pip install rich"),
    ("openpyxl", "workbooks: compare --xlsx, merge_result", "pip install openpyxl"),
    ("isal", "checksums ten times as fast", "pip install isal"),
    ("xxhash", "equal tensor files found without reading them", "pip install xxhash"),
    ("distributed", "compare --dask", "pip install 'dask[distributed]'"),
    ("polars", "data frames, to_frame(); pandas does as well", "pip install polars"),
    ("pandas", "data frames, to_frame(); polars does as well", "pip install pandas"),
)


class Doctor(Question):
    """Print what is there and whether it works: Python, frameworks, compiled parts, packages; how to get the rest.

    With each framework that is there a training step is collected and read back, in a process of its own, so that one
    that is broken neither ends this command nor hides the others. Nothing is fetched, and nothing stays. The exit
    status is 1 if a framework that is there does not work. With --dump the command prints the environment in which a
    dump was made instead.
    """

    name = "doctor"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--no-import", action="store_true", help="do not try the frameworks, which takes seconds")
        add("--dump", metavar="DIR", type=arguments.path, help="print the environment of the run that made this dump")

    def answer(self, args: argparse.Namespace, invocation: Invocation, watch: ProgressCallback | None) -> Answer:
        if args.dump is not None:
            environments = environment_files.all_in(args.dump)
            return Answer(lambda: _environment_lines(args.dump, environments), lambda: dict(environments))
        there = Installation(not args.no_import)
        return Answer(there.lines, there.as_json, there.is_broken)


# --- the installation


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
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor()
        there = [one for one in _PACKAGES if one.name in self._found] if tried else []
        self._tried = {one.name: pool.submit(_try, one) for one in there}
        self._conflicts = [*_other_owners(), *_conflicts(self._found)]

    def is_broken(self) -> bool:
        """True if a framework is there and does not work."""
        return any(tried.result().is_broken for tried in self._tried.values())

    def lines(self) -> Iterator[str]:
        """All of it, line by line."""
        system = f"{platform.system()} {platform.machine()}"
        yield f"msprobe {package.__version__} in {_ROOT}"
        yield f"Python {platform.python_version()} ({system}) at {sys.executable}"
        for title, found in (
            ("frameworks", self._frameworks()),
            ("compiled parts", _compiled()),
            ("packages", _packages()),
        ):
            yield from ("", title)
            yield from (f"  {text}" for text in found)

    def as_json(self) -> dict[str, Any]:
        """The diagnosis as values that JSON has; ``works`` is ``None`` if the framework was not tried."""
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
            "compiled": {os.path.basename(path): _built(path) is not None for path, _ in _COMPILED},
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
    own = "needs an environment of its own"
    after_mindspore = f"{_MINDSPORE_OF_MINDTORCH} && {_MINDTORCH}"
    if "mindspore" in found and numbers(found["mindspore"])[:3] not in map(numbers, _MSADAPTER.tested_bases):
        after_mindspore = f"{own}, with MindSpore 2.7.0"
    advice = {
        "torch": f"{own}: it would hide mindtorch" if "mindtorch" in found else "pip install torch",
        "mindspore": _MINDSPORE_OF_MINDTORCH if "mindtorch" in found else _MINDSPORE,
        "mindtorch": f"{own}: torch would hide it" if "torch" in found else after_mindspore,
    }
    return advice.get(missing, "")


def _shown(one: _Package, installed: str) -> str:
    return installed if one.name == one.distribution else f"of {one.distribution} {installed}"


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
    import importlib.metadata

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


def _built(path: str) -> str | None:
    """The file of a compiled part, if there is one for this Python."""
    found = (f"{_ROOT}/{path}{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next(filter(os.path.isfile, found), None)


def _state(path: str, cost: str) -> str:
    """The state of a compiled part; `cost` is the price of its absence."""
    built, source = _built(path), f"{_ROOT}/{path}.c"
    if built is None:
        return f"missing: {cost}"
    # One that does not fit the Python code beside it is not used, and nothing else says so. An installed package has
    # them from one build, and the times at which they were unpacked.
    is_checkout = os.path.isfile(os.path.join(os.path.dirname(_ROOT), "setup.py"))
    if is_checkout and os.path.isfile(source) and os.path.getmtime(source) > os.path.getmtime(built):
        return f"older than its source; if it does not fit, {cost}"
    return _THERE


def _compiled() -> Iterator[str]:
    parts = {path: _state(path, cost) for path, cost in _COMPILED}
    for path, state in parts.items():
        yield f"{os.path.basename(path):20} {state}"
    if any(state != _THERE for state in parts.values()):
        yield "the installation of the package builds them if there is a C compiler; in a checkout:"
        yield "  python setup.py build_ext --inplace"


def _packages() -> Iterator[str]:
    for name, purpose, command in _OPTIONAL:
        if is_installed(name):
            yield f"{name:12} {version(name):14} {purpose}"
        else:
            yield f"{name:12} {'not installed':14} {purpose}: {command}"


# --- the trial of a framework


def _try(one: _Package) -> _Tried:
    """Import a package in a process of its own, and check the backend that it has."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="msprobe_doctor_") as folder:
        answers = os.path.join(folder, "answers.jsonl")
        program = "from probe.api.commands.doctor import main; main()"
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
    return next((part for part in PARTS if part not in answers), "ending the process")


def _judge(one: _Package, answers: Mapping[str, Any], done: subprocess.CompletedProcess[str]) -> _Tried:
    if BROKEN in answers:
        text = answers[BROKEN]
        part = "" if IMPORTING not in answers else f"{_part(answers)}: "
        return _Tried(f"BROKEN: {part}{text}", True)
    if done.returncode < 0:
        return _Tried(f"BROKEN: {_part(answers)} ends the process (signal {-done.returncode})", True)
    wanted = RECORDS if one.backend else IMPORTING
    if done.returncode or wanted not in answers:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        ended = f"{_part(answers)} ends the process with status {done.returncode}"
        return _Tried(f"BROKEN: {said[-1] if said else ended}", True)
    text = f"imports in {answers[IMPORTING]:.1f} s"
    if one.backend:
        number, seconds = answers[RECORDS], answers[READING]
        text += f"; a dump of {number} records made and read in {seconds:.1f} s"
    return _Tried(text)


def main() -> None:
    """Check the module and the backend (or ``""``) in ``sys.argv``, in a folder; a line for each part that ends."""
    module, backend, folder, answers = sys.argv[1:]
    with open(answers, "a", encoding="utf-8") as stream:

        def tell(key: str, value: Any) -> None:
            stream.write(json.dumps([key, value]) + "\n")
            stream.flush()

        try:
            start = time.perf_counter()
            importlib.import_module(module)
            tell(IMPORTING, time.perf_counter() - start)
            if backend:
                check(backend, folder, tell)
        except Exception as error:
            original = error.__context__ if isinstance(error, FrameworkError) else None
            tell(BROKEN, str(error) if type(error) is MsprobeException else failure_text(original or error))


def check(backend: str, folder: str, tell: Callable[[str, Any], None]) -> None:
    """Collect a training step into `folder`, read it, and look for the numbers that are known.

    Raises:
        MsprobeException: something is missing or wrong, in words for the user.
    """
    from probe.api.run import debugger_class
    from probe.backends import loader

    known = loader.room(backend, "self_check")
    start = time.perf_counter()
    with log.collected() as lines:
        kind = debugger_class(backend)
        known.train(kind(dump_path=folder, level="mix"))
        kind.reset()
    told = [line.text for line in lines if line.level >= log.WARNING]
    why = _first_failure(folder) or "; ".join(told[:_SHOWN])
    if not why:
        tell(COLLECTING, time.perf_counter() - start)
    try:
        number = _read(folder, known.EXPECTED)
    except MsprobeException as error:
        raise MsprobeException(f"{why}; {error}" if why else str(error)) from None
    if any(line.level >= log.ERROR for line in lines):
        raise MsprobeException(why)
    tell(READING, time.perf_counter() - start)
    tell(RECORDS, number)


def _read(folder: str, expected: Mapping[str, float]) -> int:
    """Number of records in the one dump below `folder`, in which the items of `expected` are correct."""
    # The readers need packages that collecting does not.
    from probe.common.dump.reading.several_dumps import Run

    dumps = list(Run(folder))
    if len(dumps) != 1:
        raise MsprobeException(f"{len(dumps)} dumps were written; expected 1")
    (dump,) = dumps
    largest = {item.name: item.max for record in dump for item in dump.items(record)}
    missing = [name for name in expected if name not in largest]
    if missing:
        raise MsprobeException(f"not recorded: {_listed(missing)}; {len(largest)} other items were")
    wrong = [f"{name} is {largest[name]}, not {value}" for name, value in expected.items() if largest[name] != value]
    if wrong:
        raise MsprobeException(f"records with wrong values: {_listed(wrong)}")
    return len(dump)


def _listed(texts: list[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _first_failure(folder: str) -> str:
    """The first entry in the log of errors below `folder`: the error and its line; empty if there is none."""
    for path, _, names in os.walk(folder):
        if ERROR_LOG in names:
            with open(os.path.join(path, ERROR_LOG), encoding="utf-8") as stream:
                # An entry begins with its time.
                entry = re.split(r"\n\n(?=\d{4}-\d\d-)", stream.read().strip())[0]
            # As in `failure_text`.
            locations = re.findall(r'File "([^"]+)", line (\d+), in (?!__getattr__)', entry)
            where = f" ({locations[-1][0]}, line {locations[-1][1]})" if locations else ""
            return entry.splitlines()[-1] + where
    return ""


# --- the environments of a dump


def _environment_lines(path: str, environments: Mapping[str, environment_files.Environment]) -> Iterator[str]:
    for name, content in environments.items():
        yield f"{path}: {name}"
        yield from (f"  {text}" for text in _texts(content))


def _texts(content: environment_files.Environment) -> Iterator[str]:
    for name, value in content.items():
        if name in ("format", "withheld"):
            continue
        if isinstance(value, Mapping):
            yield from (f"{name}.{each}: {in_words(one)}" for each, one in value.items())
        elif name == "optimizers" and isinstance(value, list):
            for number, optimizer in enumerate(value):
                yield f"optimizer {number}: {optimizer.get('type')}"
                for group in optimizer.get("groups", ()):
                    yield "  " + ", ".join(f"{each} = {in_words(one)}" for each, one in group.items())
        elif name == "command" and isinstance(value, list):
            yield f"{name}: {' '.join(map(str, value))}"
        elif name == "modules" and isinstance(value, list):
            for table in value:
                yield from _module_lines(table)
        elif value not in ([], ""):
            yield f"{name}: {in_words(value)}"
    yield f"withheld: {content.get('withheld', 0)} variables, which may hold secrets or decide nothing"


def _module_lines(table: Mapping[str, Any]) -> Iterator[str]:
    """A line for each group of modules with equal settings that has plain ones."""
    for group in table.get("settings", ()):
        values = [f"{each} = {in_words(one)}" for each, one in group.get("values", {}).items() if one is not None]
        values += group.get("hooks", ())
        if values:
            yield f"modules from step {table.get('step')}: {', '.join(group.get('names', ()))}: {', '.join(values)}"
