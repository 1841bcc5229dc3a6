"""Dumps that a disk has damaged, that somebody wrote by hand, or who means harm; each beside a whole one.

A case changes the files of the run under test, or whatever else a command is given. What has to come of it stands
beside it: a page, with what is missing said on it, or one line that names the file.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import made_dumps

Files = dict[str, Any]
"""Name of a file -> its content: bytes as they are, everything else as JSON; ``None`` where there is none."""

TOP = "Module.net.Net.forward.0"
LAYER = "Module.net.fc.Linear.forward.0"
LINEAR, RELU = "Functional.linear.0.forward", "Functional.relu.0.forward"
GRADIENT = "Module.net.fc.Linear.parameters_grad.0"
NAMES = (LINEAR, LAYER, RELU, TOP, "Module.net.fc.Linear.backward.0", GRADIENT)


def tensor(shift: float = 0.0) -> dict[str, Any]:
    """A tensor with statistics."""
    return made_dumps.tensor(1.5 + shift, -0.5, 0.25, 2.75 + shift, (2, 4), requires_grad=True)


def call(shift: float = 0.0) -> dict[str, Any]:
    """A record of a call."""
    return made_dumps.call([tensor(shift)], [tensor(shift)])


def whole() -> Files:
    """The files of a dump in which nothing is wrong."""
    data: dict[str, Any] = {name: call() for name in (LINEAR, LAYER, RELU, TOP)}
    data[LAYER]["parameters"] = {"weight": tensor()}
    data["Module.net.fc.Linear.backward.0"] = {"input": [tensor()], "output": [tensor()]}
    data[GRADIENT] = {"weight": [tensor()]}
    tree = {LINEAR: LAYER, LAYER: TOP, RELU: TOP, TOP: None, "Module.net.fc.Linear.backward.0": None}
    frames = ["File net.py, line 7, in forward, \n x = self.fc(x)", "File train.py, line 3, in <module>, \n net(x)"]
    head = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    return {"dump.json": {**head, "data": data}, "construct.json": tree, "stack.json": {"0": [list(NAMES[:4]), frames]}}


def write(folder: Path, files: Files) -> None:
    """Write the files of a dump."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if content is not None:
            made = content if isinstance(content, bytes) else json.dumps(content).encode()
            (folder / name).write_bytes(made)


@dataclass
class Given:
    """What a case may change before the command runs."""

    folder: Path
    files: Files
    """Of the run under test, not written yet."""
    target: Path
    golden: Path
    output: Path
    options: list[str]
    is_written: bool = False
    """Whether the case wrote the run under test itself."""


@dataclass(frozen=True)
class Page:
    """There is a page; it says this, and has these nodes."""

    says: str = ""
    has: tuple[str, ...] = NAMES
    status: int = 0
    """1 where a part of what was asked for is not on it."""


@dataclass(frozen=True)
class Refused:
    """One line says this; it names `path` below the case's folder."""

    says: str = ""
    path: str = "target"


Outcome = Union[Page, Refused]


@dataclass(frozen=True)
class Case:
    """One hostile input."""

    name: str
    change: Callable[[Given], None]
    outcome: Outcome


CASES: list[Case] = []


def _case(outcome: Outcome) -> Callable[[Callable[[Given], None]], Callable[[Given], None]]:
    def add(change: Callable[[Given], None]) -> Callable[[Given], None]:
        CASES.append(Case(change.__name__.strip("_"), change, outcome))
        return change

    return add


def _add(name: str, outcome: Outcome, change: Callable[[Files], None]) -> None:
    CASES.append(Case(name, lambda given: change(given.files), outcome))


def _set(file: str, content: Any) -> Callable[[Files], None]:
    return lambda files: files.update({file: content})


def _cut(file: str, share: float) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        content = json.dumps(files[file]).encode()
        files[file] = content[: int(share * len(content))]

    return change


def _text(file: str, old: str, new: str) -> Callable[[Files], None]:
    """The file with a piece of its text replaced, which may then be no JSON any more."""

    def change(files: Files) -> None:
        content = json.dumps(files[file])
        assert old in content, old
        files[file] = content.replace(old, new).encode("utf-8", "surrogatepass")

    return change


def _renamed(name: str) -> Callable[[Files], None]:
    """The call of ReLU under another name, in every file."""

    def change(files: Files) -> None:
        for file, content in files.items():
            files[file] = json.loads(json.dumps(content).replace(json.dumps(RELU), json.dumps(name)))

    return change


def _record(content: Any) -> Callable[[Files], None]:
    return lambda files: files["dump.json"]["data"].update({RELU: content})


def _field(key: str, content: Any) -> Callable[[Files], None]:
    return lambda files: files["dump.json"]["data"][RELU]["output"][0].update({key: content})


def _head(key: str, content: Any) -> Callable[[Files], None]:
    return lambda files: files["dump.json"].update({key: content})


def _parent(name: str, parent: Any) -> Callable[[Files], None]:
    return lambda files: files["construct.json"].update({name: parent})


def _chain(depth: int) -> Callable[[Files], None]:
    """So many modules inside of each other; the root of the page comes on top."""

    def change(files: Files) -> None:
        names = [f"Module.a{number}.Deep.forward.0" for number in range(depth - 1)] + [RELU]
        files["construct.json"].update({name: above for above, name in zip([None, *names], names)})

    return change


ALL_BUT_RELU = tuple(name for name in NAMES if name != RELU)

# --- dump.json

_add("dump_is_empty", Refused("dump.json"), _set("dump.json", b""))
_add("dump_is_cut_in_the_middle", Page("is cut off at byte", ()), _cut("dump.json", 0.5))
_add("dump_lacks_its_last_bytes", Page("is cut off at byte", ()), _cut("dump.json", 0.995))
_add("dump_has_no_data", Refused("data"), lambda files: files["dump.json"].pop("data"))
_add("data_is_a_list", Refused("data"), _head("data", []))
_add("data_is_empty", Page(has=()), _head("data", {}))
_add("record_is_a_number", Refused(RELU), _record(5))
_add("record_is_null", Refused(RELU), _record(None))
_add("record_is_empty", Page(), _record({}))
_add("output_is_a_text", Refused(RELU), _record({"input_args": "a", "input_kwargs": "b", "output": "c"}))
_add("keys_are_double", Page(), _text("dump.json", f'"{RELU}": {{', f'"{RELU}": {{"output": []}}, "{RELU}": {{'))
_add("numbers_are_text", Page(), _text("dump.json", '"Max": 1.5', '"Max": "1.5"'))
_add("numbers_are_bare_nan", Page(), _text("dump.json", '"Max": 1.5', '"Max": NaN'))
_add("numbers_are_bare_infinity", Page(), _text("dump.json", '"Norm": 2.75', '"Norm": -Infinity'))
_add("numbers_are_huge", Refused("401 digits"), _text("dump.json", '"Max": 1.5', f'"Max": 1{"0" * 400}'))
_add("number_is_a_list", Refused(RELU), _field("Max", [1, 2]))
_add("shape_is_a_text", Refused("shape"), _field("shape", "2x4"))
_add("shape_is_negative", Page(), _field("shape", [-1, 10**30]))
_add("dtype_is_a_number", Page(), _field("dtype", 7))
_add("type_is_unknown", Page(), _field("type", "jax.Array"))
_add("framework_is_unknown", Refused("framework"), _head("framework", "jax"))
_add("level_is_unknown", Page(), _head("level", "L9"))
_add("task_is_a_number", Refused("task"), _head("task", 3))

# --- names

_LONG = f"Functional.{'x' * 10_000}.0.forward"
_SCRIPT = "Functional.</script><script>alert(1)</script>.0.forward"
_RIGHT_TO_LEFT = "Functional.\u202eאבג\u202c.0.forward"
_COMMENT = "Functional.<!--<img src=x onerror=alert(1)>.0.forward"

for _name, _hostile in (
    ("long", _LONG), ("script", _SCRIPT), ("right_to_left", _RIGHT_TO_LEFT), ("comment", _COMMENT),
    ("nul", "Functional.re\x00lu.0.forward"), ("newline", "Functional.re\nlu\u2028.0.forward"),
    ("escape", "Functional.\x1b[31mrelu.0.forward"), ("quotes", "Functional.\"re'lu`.0.forward"),
    ("percent", "Functional.%s{0}$&.0.forward"), ("prototype", "__proto__"), ("constructor", "constructor"),
    ("no_grammar", "hello"), ("dots", "...."), ("emoji", "Functional.\U0001f600.0.forward"),
):  # fmt: skip
    _add(f"name_is_{_name}", Page(has=(*ALL_BUT_RELU, _hostile)), _renamed(_hostile))
_add("name_is_empty", Page(has=(*ALL_BUT_RELU, "")), _renamed(""))
_add("name_is_the_roots", Page(has=(*ALL_BUT_RELU, "DefaultModel")), _renamed("DefaultModel"))
_add("name_is_a_groups", Page(has=(*ALL_BUT_RELU, "Apis_Between_Modules.0")), _renamed("Apis_Between_Modules.0"))
_add("name_is_half_a_character", Refused("dump.json"), _text("dump.json", "Functional.relu", "Functional.rel\\ud800"))

# --- construct.json and stack.json

_add("construct_is_missing", Page("tree"), lambda files: files.pop("construct.json"))
_add("construct_has_no_entry", Page("tree"), _set("construct.json", {}))
_add("construct_is_cut", Page("construct.json is cut off at byte"), _cut("construct.json", 0.5))
_add("construct_is_a_list", Refused("construct.json"), _set("construct.json", []))
_add("parents_go_in_a_circle", Refused("circle"), lambda f: f["construct.json"].update({TOP: LAYER}))
_add("call_is_its_own_parent", Refused("inside of itself"), _parent(RELU, RELU))
_add("tree_is_401_deep", Page(), _chain(401))
_add("tree_is_400_deep", Page(), _chain(400))
_add("parent_is_nowhere", Page("Module.gone.Gone.forward.0"), _parent(RELU, "Module.gone.Gone.forward.0"))
_add("parent_is_a_number", Refused("construct.json"), _parent(RELU, 7))
_add("parent_is_empty", Page(), _parent(RELU, ""))
_add("call_has_no_record", Page(has=(*NAMES, "Tensor.view.0.forward")), _parent("Tensor.view.0.forward", TOP))
_add("record_is_not_in_construct", Page(), lambda files: files["construct.json"].pop(RELU))
_add("stack_is_missing", Page(), lambda files: files.pop("stack.json"))
_add("stack_is_cut", Refused("stack.json"), _cut("stack.json", 0.5))
_add("stack_is_a_list", Refused("stack.json"), _set("stack.json", [1]))
_add("stack_is_of_other_calls", Page(), _set("stack.json", {"0": [["Torch.add.7.forward"], ["File a.py"]]}))
_add("stack_is_of_numbers", Refused("stack.json"), _set("stack.json", {"0": [[1, 2], [3]], "1": 5}))
_add("stack_has_a_script", Page(), _set("stack.json", {"0": [list(NAMES), [_SCRIPT]]}))

# --- both sides


@_case(Refused("task"))
def _modes_differ(given: Given) -> None:
    given.files["dump.json"]["task"] = "structure"
    for record in given.files["dump.json"]["data"].values():
        record.clear()


@_case(Page())
def _levels_differ(given: Given) -> None:
    files = given.files
    files["dump.json"]["level"] = "L1"
    files["construct.json"] = {}


@_case(Page(has=("Cell.net.fc.Dense.forward.0",)))
def _frameworks_differ(given: Given) -> None:
    data = {"Cell.net.fc.Dense.forward.0": call()}
    given.files["dump.json"].update({"framework": "mindspore", "data": data})
    given.files["construct.json"] = {"Cell.net.fc.Dense.forward.0": None}


@_case(Refused(path="golden"))
def _golden_is_cut(given: Given) -> None:
    (given.golden / "dump.json").write_bytes((given.golden / "dump.json").read_bytes()[:100])


@_case(Page())
def _both_are_one_folder(given: Given) -> None:
    write(given.target, given.files)
    given.is_written = True
    given.golden = given.target


@_case(Page(has=()))
def _dump_is_of_debug_points(given: Given) -> None:
    head = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
    for folder in (given.target, given.golden):
        write(folder, {"dump.json": None, "debug.json": {**head, "data": {"loss.0.debug": tensor()}}})
        if folder == given.golden:
            for name in ("dump.json", "construct.json", "stack.json"):
                (folder / name).unlink()
    given.is_written = True


@_case(Page("rank1"))
def _rank_has_no_partner(given: Given) -> None:
    _as_steps(given, {0: ("rank0", "rank1", "rank2")}, {0: ("rank0", "rank2")})


@_case(Page("step1"))
def _step_has_no_partner(given: Given) -> None:
    _as_steps(given, {0: ("rank0",), 1: ("rank0",)}, {0: ("rank0",)})


@_case(Page("proc"))
def _step_has_proc_and_rank(given: Given) -> None:
    _as_steps(given, {0: ("rank0", "proc4711")}, {0: ("rank0",)})


@_case(Page("rank1", status=2))
def _one_rank_of_two_is_cut(given: Given) -> None:
    _as_steps(given, {0: ("rank0", "rank1")}, {0: ("rank0", "rank1")})
    (given.target / "step0" / "rank1" / "dump.json").write_bytes(b'{"task": "stat')


def _as_steps(given: Given, target: dict[int, tuple[str, ...]], golden: dict[int, tuple[str, ...]]) -> None:
    files = whole()
    for folder, steps in ((given.target, target), (given.folder / "golden_steps", golden)):
        for step, ranks in steps.items():
            for rank in ranks:
                write(folder / f"step{step}" / rank, copy.deepcopy(files))
    given.golden = given.folder / "golden_steps"
    given.is_written = True


# --- what else is given


@_case(Refused(path="output"))
def _output_is_a_file(given: Given) -> None:
    given.output.write_text("keep me", encoding="utf-8")


@_case(Refused(path="output"))
def _output_is_inside_a_file(given: Given) -> None:
    given.output.write_text("keep me", encoding="utf-8")
    given.output = given.output / "deeper"


@_case(Refused("mapping.yaml", path="mapping.yaml"))
def _mapping_is_broken(given: Given) -> None:
    path = given.folder / "mapping.yaml"
    path.write_text("a: [1, {", encoding="utf-8")
    given.options += ["-lm", str(path)]


@_case(Refused("pairs.json", path="pairs.json"))
def _pairs_are_broken(given: Given) -> None:
    path = given.folder / "pairs.json"
    path.write_text('{"a": ', encoding="utf-8")
    given.options += ["--pairs", str(path)]


@_case(Refused("pairs.json", path="pairs.json"))
def _pairs_name_no_node(given: Given) -> None:
    path = given.folder / "pairs.json"
    path.write_text(json.dumps([{"target": "Functional.gone.0.forward", "golden": LINEAR}]), encoding="utf-8")
    given.options += ["--pairs", str(path)]
