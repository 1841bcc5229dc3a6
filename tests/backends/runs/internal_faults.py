"""Every function of the tool that a training runs through fails in turn, and the training does not notice.

The functions are not listed: one run is watched, and what it called is made to fail, so a new function is covered by
itself. A profile function raises as the first thing that happens inside of the call, wherever that is made from:
closures, hooks of the autograd engine, list comprehensions and property getters included.

A run of all tests does it to a share of them, under some of the settings. ``PROBE_TEST_LONG=1`` fails each at its first
and its last call with each kind of error, and at one call between them, and prints the counts.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import random
import re
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import dumped
import numpy as np
import pytest
from fault_borders import BORDERS, Borders
from programs import BIAS1, BIAS2, WEIGHT1, WEIGHT2, batch, chain

import probe
from probe.backends.protocol import Tensors
from probe.collect.collector import Collector
from probe.common import log
from probe.common.dump.journal import MAGIC
from probe.common.interfaces import Listener

ROOT = str(Path(probe.__file__).parent) + os.sep
LONG = os.environ.get("PROBE_TEST_LONG") == "1"
SHARE = {"torch": 0.012, "mindspore": 0.004, "msadapter": 0.004}
"""Of the functions that fail in a run of all tests; the environments `reliability*` have all of them fail."""
SEED = int(os.environ.get("PROBE_TEST_SEED", 3))
"""Which share; another number has others fail."""


class OurFault(Exception):
    pass


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is said once in a process is said once for each fault, which stands for a process of its own.
    monkeypatch.setattr(log, "_given", set())


@pytest.fixture(scope="module", autouse=True)
def no_rank_afterwards(backend: Any) -> Iterator[None]:
    yield
    backend.end_background_work()


KINDS: tuple[type[Exception], ...] = (OurFault, MemoryError, RecursionError)


def place(code: CodeType) -> str:
    return code.co_filename[len(ROOT) :].replace(os.sep, "/")


class Watching:
    """Counts the calls of the tool's own functions, but of those at its borders."""

    def __init__(self, borders: Borders) -> None:
        self._borders = borders
        self.calls: Counter[CodeType] = Counter()

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        ours = event == "call" and code.co_filename.startswith(ROOT)
        if ours and code.co_name not in self._borders.get(place(code), ()):
            self.calls[code] += 1


class Failing:
    """Raises `error` in call number `number` of a function, and notes which folder was being written then."""

    def __init__(self, code: CodeType, number: int, error: Exception, debugger: Any) -> None:
        self.code = code
        self.left = number
        self.error = error
        self.done = False
        self.folder: Path | None = None
        self._debugger = debugger

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is self.code and not self.done:
            if self.left == 0:
                self.done = True
                self.folder = self._open_folder()
                raise self.error
            self.left -= 1

    def _open_folder(self) -> Path | None:
        """That of the step which has begun and not ended, told by the journal in it, which has its header."""
        session = self._debugger.session()
        journals = Path(session.config.dump_path).glob(f"step{session.current_step}/*/dump.journal")
        return next((path.parent for path in journals if path.stat().st_size > len(MAGIC)), None)


class Training:
    """Two steps, and everything that a user could notice of them.

    Args:
        own: whether the user's own functions are registered with `debugger`.
    """

    def __init__(
        self, backend: Any, debugger: Any = None, watch: Callable[..., None] | None = None, own: bool = False
    ) -> None:
        model = self._model = self._network(backend)
        self._own = SimpleNamespace(decline=lambda _: NotImplemented, begin=backend.background_work)
        for name in ("decline", "begin") if own else ():
            debugger.register_custom_api(self._own, name, "Own")
        train = backend.trainer(model)
        backend.seed(3)
        self._debugger = debugger
        before = _pristine.setdefault(backend, backend.api_objects())
        losses, unusual = [], []
        sys.setprofile(watch)
        try:
            for _ in range(2):
                self._begin(model)
                unusual.append(self._unusual_calls(backend))
                losses.append(train(batch(backend)))
                self._end()
        finally:
            sys.setprofile(None)
        state = [None if value is None else np.asarray(value).tobytes() for value in backend.state(model).values()]
        self.outcome = [np.asarray(loss).tobytes() for loss in losses], unusual, state, backend.random_state()
        self._backend, self._before = backend, before
        self.left = self._traces()

    def _traces(self) -> list[str]:
        after, before = self._backend.api_objects(), self._before
        return [*self._backend.traces_left(self._model), *(name for name in before if before[name] is not after[name])]

    def left_after_another_step(self) -> list[str]:
        self._begin(self._model)
        self._end()
        return self._traces()

    def _network(self, backend: Any) -> Any:
        """That of `block_network`, which saves what is between its parts."""

        def forward(module: Any, x: Any) -> Any:
            hidden = module.body(x)
            self._save(hidden)
            return module.head(hidden)

        def broken(module: Any, x: Any) -> Any:
            raise ValueError("the user's")

        body = backend.module("Block", chain("fc", "act"), fc=backend.linear(WEIGHT1, BIAS1), act=backend.relu())
        aside = backend.module("Broken", broken)
        return backend.module("Net", forward, body=body, head=backend.linear(WEIGHT2, BIAS2), aside=aside)

    def _unusual_calls(self, backend: Any) -> list[str]:
        """What became of calls that raise, that decline, and that go on in the background.

        Not where gradients are taken: MindSpore itself goes on recording them after an exception.
        """
        x = batch(backend)
        total = backend.apis["sum"].call(x, dtype=backend.dtype("float32"))
        seen = [repr(backend.numpy(total)), repr(self._own.decline(x)), repr(backend.declined(x))]
        seen.append(repr(backend.seldom_calls(x)))
        seen.append(repr(backend.numpy(backend.largest_place(x))))
        # No shapes to multiply, which MindSpore says when the result is looked at.
        for call in (lambda: backend.numpy(backend.apis["matmul"].call(x, x)), lambda: self._model.aside(x)):
            try:
                seen.append(repr(call()))
            except Exception as error:
                seen.append(type(error).__name__)
        for begin in (backend.background_work, self._own.begin):
            begin(x).wait()
        return [*seen, repr(backend.numpy(x))]

    def _save(self, hidden: Any) -> None:
        if self._debugger is not None and self._debugger.session().config.level == "debug":
            self._debugger.save(hidden, "hidden")

    def _begin(self, model: Any) -> None:
        if self._debugger is not None:
            self._debugger.start(model)

    def _end(self) -> None:
        if self._debugger is not None:
            self._debugger.stop()
            self._debugger.step()


SETTINGS: list[dict[str, Any]] = [
    {"level": "mix", "task": "tensor"},
    {"level": "L0", "summary_mode": "md5", "list": ["Linear"]},
    {"level": "L1", "risk_level": "FOCUS"},
    {"level": "debug", "task": "tensor"},
    {"level": "L0", "task": "tensor", "async_dump": True, "list": ["ReLU", "Linear"]},
    {"level": "mix", "task": "overflow_check"},
    {"level": "L1", "task": "free_benchmark", "pert_mode": "add_noise"},
]
_pristine: dict[Any, dict[str, Any]] = {}
"""The functions as they were before the first run: what one fault has left, the next step must take away."""


@functools.cache
def alone(backend: Any) -> Any:
    """What the training gives without the tool."""
    return Training(backend).outcome


_seen: set[tuple[str, int, str]] = set()
"""What has failed under earlier settings; without ``PROBE_TEST_LONG`` it is not made to fail again."""


def faults(calls: Counter[CodeType], draw: random.Random, share: float) -> Iterator[tuple[CodeType, int, Exception]]:
    for code, count in calls.items():
        key = place(code), code.co_firstlineno, code.co_name
        if LONG:
            for number in sorted({0, count - 1}):
                for kind in KINDS:
                    yield code, number, kind("ours")
            if count > 2:
                yield code, draw.randrange(1, count - 1), draw.choice(KINDS)("ours")
        elif key not in _seen and draw.random() < share:
            yield code, draw.choice((0, count - 1)), draw.choice(KINDS)("ours")
        _seen.add(key)


# A generator or a file that was just made when its owner failed is closed by the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(map(str, settings.values())))
def test_whatever_fails_inside_the_tool_the_training_goes_on_unchanged(
    backend: Any, runs: Any, settings: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.errors_expected = True
    print(f"PROBE_TEST_SEED={SEED}")
    draw = random.Random(f"{SEED} {settings}")
    expected = alone(backend)
    borders = BORDERS[backend.name]
    first, again = Watching(borders), Watching(borders)
    kept = runs.new(tmp_path / "kept", **settings)
    assert Training(backend, kept, first).outcome == expected
    assert Training(backend, kept, again).outcome == expected
    whole = files_of(tmp_path / "kept", 0)
    # Of values that are all finite, or calls that are all right, nothing is written: lines alone tell of a failure.
    is_silent = settings.get("task") in ("overflow_check", "free_benchmark")
    assert len(again.calls) > 80 and len(whole["data"]) == (0 if is_silent else 2)
    assert whole == files_of(tmp_path / "kept", 2), "what is held against each fault is the same in each run"
    # A call that the settings leave out has a name as well.
    assert Training(backend, runs.new(tmp_path / "every", level="mix")).outcome == expected
    everything = files_of(tmp_path / "every", 0)
    names = {name for content in (*whole["names"], *everything["names"]) for name in content}
    assert Training(backend, kept).outcome == expected, "hooks are one debugger's, and back with this one"
    only_first = Counter({code: count for code, count in first.calls.items() if code not in again.calls})
    problems: list[str] = []
    tried = done = 0
    share = SHARE[backend.name]
    for code, number, error in (*faults(only_first, draw, share), *faults(again.calls, draw, share)):
        log._given.clear()
        tried += 1
        debugger = runs.new(tmp_path / f"new{tried}", **settings) if code in only_first else kept
        path, step = Path(debugger.session().config.dump_path), debugger.session().current_step
        failing = Failing(code, number, error, debugger)
        found, left = [], False
        capsys.readouterr()
        try:
            training = Training(backend, debugger, failing)
            if training.outcome != expected:
                found.append("the training gave something else")
            left = bool(training.left)
        except Exception as raised:
            found.append(f"the training got {raised!r}")
            debugger.stop()  # which the training did not come to, and is no fault of the next one
        if not failing.done:
            continue  # done once in a process, and that was in the run that was watched
        done += 1
        found += list(untold(failing, path, step, capsys.readouterr().err, whole, names))
        if debugger.session().current_step != step + 2 and code.co_name != "step":
            found.append(f"the steps are counted wrongly: {step}, then {debugger.session().current_step}")
        # What could not be taken away did nothing, and the end of the next step takes it away.
        stayed = training.left_after_another_step() if left else []
        if stayed:
            found.append(f"left behind: {stayed}")
        if found:
            problems.append(f"{place(code)} {code.co_name}, call {number}, {type(error).__name__}: {'; '.join(found)}")
            if LONG and len(problems) <= 20:
                with capsys.disabled():
                    print(f"\n{done}: {problems[-1]}")
    if LONG:
        with capsys.disabled():
            print(f"\n{settings}: {len(first.calls)} functions, {done} faults, {len(problems)} problems")
    assert not problems, "\n".join([f"{len(problems)} of {done}:", *problems])
    step = kept.session().current_step
    last = Training(backend, kept)
    gc.collect()
    assert last.outcome == expected and last.left == []
    assert files_of(tmp_path / "kept", step) == whole, "what was left behind does nothing, and all is recorded again"


NO_RECORD = re.compile(
    r"(start|stop|step)\(\)|save\('hidden'\)|the (end|beginning) of (the step|step \d+)|"
    r"the files of (the step|step \d+)|the (end|beginning) of (collection|the program)|hooks on the models|"
    r"the look for an earlier run|the environment of the run|the step of the optimizer|UpdateRecorder\.\w+|"
    r"what a dead run left|what waited for its statistics|process\.json|the faster way to describe tensors|"
    r"ms\.jit|torch\.jit\.script|"
    r"(Session|CollectedStep|CallDescriber|SavedValues|Collector|RunEnvironment|\w+Hooks)\._?[a-z_]+|\w+\.remove|\w+"
)
"""What fails besides records, as it stands in the log.

These are the beginning and the end of a step, what is attached and removed there, and (a word alone) a function of the
framework that is not recorded itself.
"""
WITHOUT_RECORD = ("Tensor.__eq__.0.forward", "Tensor.__truediv__.0.forward")
"""Calls that have a name and no record: one declines, the other is made by a function that is recorded."""


def untold(failing: Failing, path: Path, step: int, out: str, whole: Whole, names: set[str]) -> Iterator[str]:
    """What the user was not told, or told too often; `names` are those of all calls that there are."""
    said = (line for line in out.splitlines() if re.search(r"\[(WARNING|ERROR)\]", line))
    # Each training here has a model of its own, which the debugger says.
    lines = [line for line in said if "was another module in an earlier start" not in line]
    if len(lines) > 1:
        yield f"{len(lines)} lines: {lines}"
    written = files_of(path, step)
    if written == whole and not lines:
        return
    # Where a value has no statistics its entry says why.
    if '"not_supported": "ours"' in json.dumps(written["data"]):
        return
    if failing.folder is None or failing.code is log.ErrorLog.__init__.__code__:
        # Before there is a folder or its log, and after, the line is all there can be.
        if not (lines and "ours" in lines[0]):
            yield f"neither told nor complete: {lines}"
        return
    noted = [name for name, text in failures_in(failing.folder) if text.endswith(": ours")]
    if not noted:
        yield f"not noted in {failing.folder.name}, nor complete: {lines}"
    known = [f"{name}." for name in (*names, *WITHOUT_RECORD)]
    unknown = [name for name in noted if not NO_RECORD.fullmatch(name) and not any_of(known, name)]
    if unknown:
        yield f"noted under {unknown}, which is no record"


def any_of(known: list[str], name: str) -> bool:
    """Whether `name` is a record's, what comes before its number, or that of one of its tensors."""
    return any(one.startswith(f"{name}.") or f"{name}.".startswith(one) for one in known)


Whole = dict[str, list[Any]]
"""Of two steps, by kind: ``data``, the tree (``construct``), ``stack``, the tensor ``files``, and the ``names``."""


def folders(path: Path, step: int) -> list[Path]:
    return sorted([*path.glob(f"step{step}/*"), *path.glob(f"step{step + 1}/*")])


def files_of(path: Path, step: int) -> Whole:
    """Everything that two steps have left but for their failures; whatever failed, the files that are there are valid.

    The bytes of a tensor file stand as their checksum.
    """
    found: Whole = {"data": [], "construct": [], "stack": [], "files": [], "names": []}
    for folder in folders(path, step):
        contents = {file.stem: dumped.read_file(file) for file in sorted(folder.glob("*.json"))}
        data = next((content["data"] for content in contents.values() if "data" in content), {})
        found["data"].append(data)
        found["construct"].append(contents.get("construct"))
        found["stack"].append([[names, inner(frames)] for names, frames in (contents.get("stack") or {}).values()])
        found["files"].append({file.name: zlib.crc32(file.read_bytes()) for file in folder.glob("dump_tensor_data/*")})
        found["names"].append([*data, *(contents.get("construct") or {})])
    return found


def inner(frames: list[str]) -> list[str]:
    """Without the lines of the test from which a training is called, which are several."""
    outer = next(place for place, frame in enumerate(frames) if "in test_whatever_fails" in frame)
    return frames[:outer]


def failures_in(folder: Path) -> list[tuple[str, str]]:
    """What ``dump_error_info.log`` says: the name of each failure, and its last line."""
    log_file = folder / "dump_error_info.log"
    text = log_file.read_text(encoding="utf-8") if log_file.exists() else ""
    _, *parts = re.split(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (.+)\n", text, flags=re.M)
    return [(name, details.strip().splitlines()[-1]) for name, details in zip(parts[::2], parts[1::2])]


def public(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize("name", [name for name in public(Listener) if name != "failed"])
def test_a_listener_that_always_fails_is_told_of_once_in_each_step(
    backend: Any, runs: Any, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    always_fails(backend, runs, Collector, name, monkeypatch, capsys)


ASKED_BY_THE_COLLECTOR = [
    *(("tensors", name) for name in public(Tensors)),
    ("hooks", "risk_class"), ("randomness", "random_state"), ("", "rank"),
]  # fmt: skip


@pytest.mark.sampled(least=3, each=False)
@pytest.mark.parametrize(("group", "name"), ASKED_BY_THE_COLLECTOR)
def test_an_adapter_that_always_fails_is_told_of_once_in_each_step(
    backend: Any, runs: Any, group: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = getattr(backend.adapter, group) if group else backend.adapter
    always_fails(backend, runs, owner, name, monkeypatch, capsys)


_NO_HOOKS = "clipping and the optimizer have no place of their own in the module tree of MindSpore"
_ONLY_WATCHED = "only task overflow_check asks whether a tensor holds what it held"
_OF_MINDSPORE = {
    "content_mark": _ONLY_WATCHED, "enter_optimizer": _NO_HOOKS, "leave_optimizer": _NO_HOOKS,
}  # fmt: skip
NEVER_CALLED: dict[str, dict[str, str]] = {
    "torch": {"content_mark": _ONLY_WATCHED},
    "mindspore": _OF_MINDSPORE,
    "mindspore 2.7": {"fail_module": "MindSpore before 2.10 tells nobody that the construct of a cell raised"},
    "msadapter": _OF_MINDSPORE,
}
"""By backend, or one release of its framework, what no program on the CPU makes the tool call, and why; a line that is
not so fails."""


def always_fails(
    backend: Any,
    runs: Any,
    owner: Any,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Method `name` of `owner` fails for every debugger that is made from now on, wherever it is kept then."""
    runs.errors_expected = True
    expected = alone(backend)
    called = []

    def failing(*_: Any) -> Any:
        called.append(name)
        raise OurFault("ours")

    monkeypatch.setattr(owner, name, failing)
    if name == "describe_tensor":
        # Which is left to describe what the faster way does not.
        monkeypatch.setattr(owner, "direct_describer", lambda summary: None)
    capsys.readouterr()
    debugger = runs.new(level="mix", task="tensor", risk_level="FOCUS" if name == "risk_class" else "ALL")
    training = Training(backend, debugger, own=True)
    assert training.outcome == expected and training.left == []
    lines = [line for line in capsys.readouterr().err.splitlines() if re.search(r"\[(WARNING|ERROR)\]", line)]
    noted = [name for folder in folders(runs.path, 0) for name, _ in failures_in(folder)]
    never = {**NEVER_CALLED[backend.name], **NEVER_CALLED.get(f"{backend.name} {backend.release}", {})}
    if name in never:
        assert not called and not lines and not noted, f"it is called: {never[name]}"
        return
    assert called, "nothing has failed"
    assert all("OurFault: ours" in line for line in lines), lines
    # Before there is a folder the line is all there can be, and it is said once in a process.
    # On the CPU only the buffers of modules wait for `resolve`, which are described once for a run.
    without_folder = name in ("rank", "direct_describer", "resolve")
    assert len(lines) == (1 if without_folder else 2), lines
    assert len(noted) <= len(called) and "a record" not in noted and (noted or without_folder)


def test_only_what_stands_between_the_user_and_his_own_function_is_not_made_to_fail(backend: Any) -> None:
    borders = BORDERS[backend.name]
    assert sum(map(len, borders.values())) == {"torch": 47, "mindspore": 29, "msadapter": 29}[backend.name]
    for path, names in borders.items():
        text = Path(ROOT, path).read_text(encoding="utf-8")
        gone = [name for name in names if f"def {name}(" not in text and name != "<lambda>"]
        assert not gone, f"{path} has these no longer: {gone}"
