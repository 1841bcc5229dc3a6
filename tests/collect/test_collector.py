"""What hooks report becomes records: driven through the listener's methods, as a backend does, with numpy tensors."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import collector_runs
import pytest
from collector_runs import ADD, INNER, MATMUL, OUTER, RELU, Run, names, statistics, tensor
from numpy_tensors import NumpyTensors

import probe
from probe.collect.sinks.sink import Discarded
from probe.common.dump.journal import JournalReader
from probe.common.interfaces import ModuleName

pytestmark = pytest.mark.usefixtures("ended_runs")


# --- records


def test_a_call_is_a_record(tmp_path: Path) -> None:
    run = Run(tmp_path, level="L1")
    run.api(RELU, tensor(1, -2), 3, output=tensor(1, 0), inplace=False)
    run.api(RELU, output=None)
    dump = run.files()
    assert dump.data == {
        "Torch.relu.0.forward": {
            "input_args": [statistics(1, -2), {"type": "int", "value": 3}],
            "input_kwargs": {"inplace": {"type": "bool", "value": False}},
            "output": [statistics(1, 0)],
        },
        "Torch.relu.1.forward": {"input_args": [], "input_kwargs": {}, "output": [None]},
    }
    assert dump.tree == {}
    assert dump.head["level"] == "L1" and dump.head["dump_data_dir"] is None
    stack = dump.stack_of("Torch.relu.0.forward")
    assert f"File {collector_runs.__file__}, line " in stack[0] and ", in api, \n " in stack[0]


def test_calls_inside_an_api_belong_to_it_on_each_thread_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path, level="L1")
    outer = run.collector.enter_api(RELU, [], {})
    assert run.collector.enter_api(ADD, [], {}) is None
    thread = threading.Thread(target=run.api, args=[MATMUL])
    thread.start()
    thread.join()
    run.collector.leave_api(outer, None)
    run.api(ADD)
    assert run.files().names == ["Torch.relu.0.forward", "Torch.matmul.0.forward", "Tensor.__add__.0.forward"]


def test_the_tree_says_inside_what_a_call_ran(tmp_path: Path) -> None:
    run = Run(tmp_path)
    collector = run.collector
    run.api(RELU)
    outer = collector.enter_module(OUTER, [tensor(1)], {})
    inner = collector.enter_module(INNER, [], {})
    run.api(RELU)
    collector.leave_module(inner, None, {})
    run.api(RELU)
    collector.leave_module(outer, tensor(2), {"weight": tensor(3)})
    again = collector.enter_module(OUTER, [], {})
    collector.leave_module(again, None, {})
    dump = run.files()
    module, inside = "Module.o.Outer.forward.0", "Module.o.i.Inner.forward.0"
    # Modules stand where they ended, and in the tree where they began.
    assert dump.names == [*names(0, 1), inside, *names(2), module, "Module.o.Outer.forward.1"]
    parents = [None, None, module, inside, module, None]
    order = [*names(0), module, inside, *names(1, 2), "Module.o.Outer.forward.1"]
    assert list(dump.tree.items()) == list(zip(order, parents))
    assert dump.data[module] == {
        "input_args": [statistics(1)], "input_kwargs": {}, "output": [statistics(2)],
        "parameters": {"weight": statistics(3)},
    }  # fmt: skip


def test_a_call_that_raised_has_its_inputs_and_one_that_declined_never_was(tmp_path: Path) -> None:
    run = Run(tmp_path)
    module = run.collector.enter_module(OUTER, [], {})
    failing = run.collector.enter_api(RELU, [1], {})
    run.collector.fail_api(failing)
    run.collector.fail_module(module, {})
    declined = run.collector.enter_api(ADD, [1], {})
    run.collector.cancel_api(declined)
    run.api(ADD)
    dump = run.files()
    assert list(dump.data["Torch.relu.0.forward"]) == ["input_args", "input_kwargs"]
    assert dump.data["Module.o.Outer.forward.0"]["output"] == [None]
    assert dump.names == ["Torch.relu.0.forward", "Module.o.Outer.forward.0", "Tensor.__add__.0.forward"]
    assert dump.tree["Tensor.__add__.0.forward"] is None


def test_work_in_the_background_gets_its_output_later_and_keeps_its_place(tmp_path: Path) -> None:
    run = Run(tmp_path)
    call = run.collector.enter_api(RELU, [1], {})
    run.collector.suspend_api(call)
    run.api(ADD)
    assert "output" not in run.files().data["Torch.relu.0.forward"]
    run.collector.update_api(call, tensor(5))
    run.collector.update_api(call, tensor(6))
    dump = run.files()
    assert dump.data["Torch.relu.0.forward"]["output"] == [statistics(5)]
    assert dump.names == ["Torch.relu.0.forward", "Tensor.__add__.0.forward"]


def test_work_in_the_background_says_after_which_record_it_was_waited_for(tmp_path: Path) -> None:
    run = Run(tmp_path)
    collector = run.collector
    begun = []
    for _ in range(4):
        begun.append(collector.enter_api(RELU, [tensor(1)], {}))
        collector.suspend_api(begun[-1])
    first, second, third, last = begun
    collector.update_api(last, tensor(5))
    outer = collector.enter_module(OUTER, [], {})
    run.api(ADD)
    collector.update_api(first, tensor(5))
    collector.update_api(second, tensor(5))
    collector.leave_module(outer, tensor(2), {})
    dump = run.files()
    waited = {name: record.get("waited_after") for name, record in dump.data.items()}
    added = "Tensor.__add__.0.forward"
    assert [waited[call.name] for call in (first, second, third, last)] == [added, added, None, None]
    assert "output" not in dump.data[third.name] and "waited_after" not in dump.data[last.name]
    assert dump.names == [first.name, second.name, third.name, last.name, added, "Module.o.Outer.forward.0"]
    # As a killed process would leave it, and by the readers.
    with JournalReader(os.path.join(run.folder.path, "dump.journal")) as journal:
        assert {name: fields.get("waited_after") for name, fields in journal.records()} == waited
    read = probe.read(run.path / "step0" / "rank0")
    assert {record.name: record.waited_after for record in read} == waited
    assert [item.name for item in read[first.name].items()] == [f"{first.name}.input.0", f"{first.name}.output.0"]


def test_work_in_the_background_of_which_nothing_can_be_described_has_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> bool:
        raise ValueError("ours")

    monkeypatch.setattr(NumpyTensors, "is_tensor", failing)
    run = Run(tmp_path)
    call = run.collector.enter_api(RELU, [tensor(1)], {})
    run.collector.suspend_api(call)
    run.collector.update_api(call, tensor(5))
    dump = run.files()
    assert dump.names == [] and list(dump.tree) == ["Torch.relu.0.forward"]
    assert dump.errors.count("Torch.relu.0.forward") == 2


def test_gradients_are_records_of_the_step_their_call_was_in(tmp_path: Path) -> None:
    run = Run(tmp_path)
    collector = run.collector
    call = run.api(RELU)
    collector.collecting = False  # stop() before backward
    collector.backward_api(call, [tensor(1)], [None, tensor(2)])
    collector.parameter_gradient(OUTER, "weight", tensor(3), True)
    collector.parameter_gradient(OUTER, "bias", tensor(4), True)
    collector.parameter_gradient(OUTER, "weight", tensor(5), True)
    dump = run.files()
    assert dump.data["Torch.relu.0.backward"] == {"input": [statistics(1)], "output": [None, statistics(2)]}
    assert dump.data["Module.o.Outer.parameters_grad.0"] == {"weight": [statistics(3)], "bias": [statistics(4)]}
    assert dump.data["Module.o.Outer.parameters_grad.1"] == {"weight": [statistics(5)]}
    assert list(dump.tree) == ["Torch.relu.0.forward", "Torch.relu.0.backward"]
    run.end_step()
    collector.backward_api(call, [tensor(1)], [])
    run.begin(1)
    collector.backward_api(call, [tensor(1)], [])
    assert collector.enter_backward(call, 1, 1) is None
    assert run.files(1).names == [] and len(run.files(0).names) == 4


def test_a_modules_backward_is_filled_in_as_gradients_arrive(tmp_path: Path) -> None:
    run = Run(tmp_path)
    collector = run.collector
    call = collector.enter_module(OUTER, [], {})
    collector.leave_module(call, None, {})
    backward = collector.enter_backward(call, 1, 2)
    inside = run.api(RELU)
    collector.backward_gradient(backward, "output", 1, tensor(2))
    collector.backward_gradient(backward, "input", 0, tensor(1))
    collector.leave_backward(backward)
    dump = run.files()
    assert dump.data["Module.o.Outer.backward.0"] == {"input": [statistics(1)], "output": [None, statistics(2)]}
    assert dump.tree[inside.name] == "Module.o.Outer.backward.0" and dump.names[-1] == "Module.o.Outer.backward.0"


def test_clipping_and_the_optimizer_are_in_the_tree_and_nowhere_else(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.collector.enter_optimizer("optimizer")
    run.api(ADD)
    run.collector.leave_optimizer("optimizer")
    run.collector.leave_optimizer("never begun")
    run.api(ADD)
    dump = run.files()
    assert dump.tree == {"optimizer": None, **dict(zip(names(0, 1, api=ADD), ("optimizer", None)))}
    assert dump.names == names(0, 1, api=ADD)


def test_clipping_and_the_optimizer_are_in_the_tree_only_if_something_ran_inside(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.collector.enter_optimizer("clip_grad")
    run.collector.leave_optimizer("clip_grad")
    run.collector.enter_optimizer("optimizer")
    run.api(ADD)
    run.collector.leave_optimizer("optimizer")
    run.collector.enter_optimizer("clip_grad")  # one that raised: nothing says that it has ended
    assert list(run.files().tree) == ["optimizer", *names(0, api=ADD)]


def test_numbers_begin_again_with_each_step(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for step in range(2):
        if step:
            run.begin(step)
        run.api(RELU)
        run.api(RELU)
        assert run.files(step).names == names(0, 1)
        run.end_step()


DIRECTIONS = ["forward", "backward"]


@pytest.mark.parametrize(
    "mode",
    [set(mode) for n in range(5) for mode in itertools.combinations(["forward", "backward", "input", "output"], n)],
    ids=lambda mode: "-".join(sorted(mode)) or "none",
)
def test_data_mode_leaves_out_halves_and_directions(tmp_path: Path, mode: set[str]) -> None:
    run = Run(tmp_path, data_mode=frozenset(mode))
    call = run.api(RELU, 1, output=2)
    run.collector.backward_api(call, [tensor(1)], [tensor(2)])
    module = run.collector.enter_module(OUTER, [1], {})
    run.collector.leave_module(module, 2, {"w": tensor(1)})
    backward = run.collector.enter_backward(module, 1, 1)
    run.collector.leave_backward(backward)
    directions, halves = (mode & set(DIRECTIONS) or set(DIRECTIONS)), (mode - set(DIRECTIONS) or {"input", "output"})
    forward = ["input_args", "input_kwargs"] * ("input" in halves) + ["output"] * ("output" in halves)
    backward_fields = [half for half in ("input", "output") if half in halves]
    expected: dict[str, list[str]] = {}
    if "forward" in directions:
        expected["Torch.relu.0.forward"] = forward
    if "backward" in directions:
        expected["Torch.relu.0.backward"] = backward_fields
    if "forward" in directions:
        expected["Module.o.Outer.forward.0"] = forward + ["parameters"] * ("output" in halves)
    if "backward" in directions:
        expected["Module.o.Outer.backward.0"] = backward_fields
    dump = run.files()
    assert {name: list(fields) for name, fields in dump.data.items()} == expected
    assert len(dump.tree) == 4, "the tree is complete whatever is left out"


@pytest.mark.parametrize(
    ("level", "wanted"), [("CORE", ["Torch.matmul"]), ("FOCUS", ["Torch.matmul", "Torch.relu"]), ("ALL", None)]
)
def test_risk_levels_leave_out_apis_and_never_their_numbers(tmp_path: Path, level: str, wanted: list[str]) -> None:
    run = Run(tmp_path, level="L1", risk_level=level)
    for api in (MATMUL, RELU, ADD):
        run.api(api)
    bases = [name.rsplit(".", 2)[0] for name in run.files().names]
    assert bases == (wanted or ["Torch.matmul", "Torch.relu", "Tensor.__add__"])


# --- failures


class Hostile(Mapping):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("hostile")

    def __iter__(self) -> Any:
        raise RuntimeError("hostile")

    def __len__(self) -> int:
        raise RuntimeError("hostile")


@dataclasses.dataclass
class Raises:
    x: int = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise RuntimeError("hostile")
        return super().__getattribute__(name)


@pytest.mark.parametrize("value", [Hostile(), Raises(), tensor()], ids=["mapping", "attribute", "tensor"])
def test_a_value_that_cannot_be_described_costs_itself_only(tmp_path: Path, value: Any) -> None:
    run = Run(tmp_path)
    run.api(RELU, 1, value, output=[value, 2])
    run.api(RELU, 3)
    dump = run.files()
    record = dump.data["Torch.relu.0.forward"]
    assert record["input_args"] == [{"type": "int", "value": 1}, None]
    assert record["output"] == [None, {"type": "int", "value": 2}]
    assert "Torch.relu.0.forward" in dump.errors and dump.names == names(0, 1)


def test_a_module_left_without_a_word_is_nobodys_parent(tmp_path: Path) -> None:
    run = Run(tmp_path)

    def forward() -> None:
        run.collector.enter_module(OUTER, [1], {})
        raise KeyboardInterrupt

    def user() -> None:
        try:
            forward()
        except KeyboardInterrupt:
            pass
        run.api(RELU)

    user()
    dump = run.files()
    assert dump.tree["Torch.relu.0.forward"] is None
    assert list(dump.data["Module.o.Outer.forward.0"]) == ["input_args", "input_kwargs"]


def test_modules_left_without_a_word_inside_one_that_goes_on_keep_their_inputs(tmp_path: Path) -> None:
    run = Run(tmp_path, level="L0")

    def deepest() -> None:
        run.collector.enter_module(ModuleName("Module.o.i.d.Deepest"), [3], {})
        raise KeyboardInterrupt

    def inner() -> None:
        run.collector.enter_module(INNER, [2], {})
        deepest()

    def forward() -> None:
        outer = run.collector.enter_module(OUTER, [1], {})
        try:
            inner()
        except KeyboardInterrupt:
            pass
        run.collector.leave_module(outer, 4, {})

    forward()
    dump = run.files()
    inner_one, deepest_one, outer_one = names = [
        "Module.o.i.Inner.forward.0", "Module.o.i.d.Deepest.forward.0", "Module.o.Outer.forward.0"
    ]  # fmt: skip
    assert dump.names == names, "where they began, for where they ended is not known"
    assert [dump.data[name]["input_args"][0]["value"] for name in names] == [2, 3, 1]
    assert ["output" in dump.data[name] for name in names] == [False, False, True]
    assert dump.tree == {outer_one: None, inner_one: outer_one, deepest_one: inner_one}
    assert all(dump.stack_of(name) for name in names)


def test_after_abandon_nothing_is_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.api(RELU)
    before = (Path(run.folder.path) / "dump.journal").read_bytes()
    call = run.collector.enter_api(RELU, [], {})
    run.collector.leave_step()
    run.sink.discard(Discarded.OF_PARENT_FOR_GOOD)
    run.collector.leave_api(call, None)
    run.api(ADD)
    run.collector.parameter_gradient(OUTER, "w", tensor(1), True)
    run.collector.enter_optimizer("optimizer")
    run.sink.flush()
    run.end_step()
    assert (Path(run.folder.path) / "dump.journal").read_bytes() == before


FULL = """
import json, os, resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:4]
from collector_runs import INNER, OUTER, RELU, ADD, Run, tensor
run = Run(Path(sys.argv[1]), task="tensor", delayed=sys.argv[4] == "delayed")
collector = run.collector


def program():
    for n in range(300):
        collector.enter_optimizer("optimizer")
        run.api(ADD, tensor(n))
        collector.leave_optimizer("optimizer")
        outer = collector.enter_module(OUTER, [tensor(n)], {})
        def leaves():
            collector.enter_module(INNER, [], {})
        leaves()
        call = run.api(RELU, tensor(n), output=tensor(n))
        failing = collector.enter_api(RELU, [tensor(n)], {})
        collector.fail_api(failing)
        waiting = collector.enter_api(RELU, [tensor(n)], {})
        collector.suspend_api(waiting)
        collector.leave_module(outer, tensor(n), {"w": tensor(n)})
        collector.update_api(waiting, tensor(n))
        collector.backward_api(call, [tensor(n)], [tensor(n)])
        backward = collector.enter_backward(outer, 1, 1)
        collector.backward_gradient(backward, "input", 0, tensor(n))
        collector.leave_backward(backward)
        collector.parameter_gradient(OUTER, "w", tensor(n), True)
        collector.leave_all()


size = os.path.getsize(os.path.join(run.folder.path, "dump.journal"))
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30_000, resource.RLIM_INFINITY))
program()
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
after = run.api(ADD, tensor(1), output=tensor(2))
dump = run.files()
assert 20 < len(dump.names) < 2000, len(dump.names)
assert dump.data[after.name]["output"][0]["Max"] == 2.0
# What is there again is complete: its stack too, although the place was first seen while the disk was full.
assert len(dump.stack_of(after.name)) >= 1
print("survived")
"""


@pytest.mark.parametrize("how", ["at once", "delayed"])
def test_a_full_disk_reaches_no_caller(tmp_path: Path, how: str) -> None:
    tests = Path(__file__).parents[1]
    paths = (str(tests / folder) for folder in ("support", "backends/support"))
    command = [sys.executable, "-c", FULL, str(tmp_path), *paths, how]
    environment = {**os.environ, "PYTHONPATH": str(tests.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout.endswith("survived\n"), done.stdout[-1000:] + done.stderr
    assert len(done.stderr.splitlines()) < 40, "the user is told once and not thousands of times"


def test_files_that_cannot_be_written_leave_the_journal(tmp_path: Path, capsys: Any) -> None:
    run = Run(tmp_path)
    run.api(RELU)
    path = Path(run.folder.path)
    (path / "dump.json").unlink()
    (path / "dump.json").mkdir()
    run.sink.flush()
    assert re.search(r"the files of step 0 cannot be written.*dump\.json", capsys.readouterr().err)
    run.end_step()
    with JournalReader(str(path / "dump.journal")) as reader:
        assert [name for name, _ in reader.records()] == names(0)
    assert json.loads((path / "stack.json").read_text()) == {}
