"""What hooks report becomes records: driven through the listener's methods, as a backend does, with numpy tensors."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import dumped
import numpy as np
import pytest
from numpy_tensors import NumpyAdapter, NumpyTensors

import probe
from probe.collect.collector import Collector
from probe.collect.sinks.journal.record_sink import RecordSink
from probe.collect.sinks.sink import Host
from probe.common import log
from probe.common.config.config import Config
from probe.common.dump.journal import JournalReader
from probe.common.interfaces import ApiName, ModuleName

RELU, MATMUL, ADD = ApiName("Torch.relu", "relu"), ApiName("Torch.matmul", "matmul"), ApiName("Tensor.__add__", "add")
OUTER, INNER = ModuleName("Module.o.Outer"), ModuleName("Module.o.i.Inner")


def tensor(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def statistics(*values: float) -> dict[str, Any]:
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [len(values)],
        "Max": max(values), "Min": min(values), "Mean": sum(values) / len(values),
        "Norm": sum(value * value for value in values) ** 0.5, "requires_grad": False,
    }  # fmt: skip


class Run:
    """A collector with an open step."""

    begun: ClassVar[list[Run]] = []

    def __init__(self, path: Path, delayed: bool = False, **settings: Any) -> None:
        self.config = Config(**{"dump_path": str(path), "level": "mix", "risk_level": "ALL", **settings})
        adapter = NumpyAdapter(delayed)
        self.tensors = adapter.tensors
        self.ended = 0
        host = Host(adapter, lambda *of: self.collector.failed(*of), lambda: 0, self.end, dict)  # type: ignore[arg-type]
        self.sink = RecordSink(self.config, host)
        self.collector = Collector(self.config, adapter, [self.sink])
        self.path = path
        Run.begun.append(self)
        self.begin(0)

    def begin(self, step: int) -> None:
        assert self.collector.begin_step(step, 0, "rank0")
        assert self.sink.folder is not None
        self.folder = self.sink.folder
        self.collector.collecting = True

    def end(self) -> None:
        self.ended += 1
        self.collector.collecting = False

    def api(self, api: ApiName, *args: Any, output: Any = None, **kwargs: Any) -> Any:
        call = self.collector.enter_api(api, args, kwargs)
        if call is not None:
            self.collector.leave_api(call, output)
        return call

    def files(self, step: int = 0) -> dumped.Dump:
        self.collector.sinks.flush()
        return dumped.read(self.path, step, "rank0")

    def in_journal(self) -> list[str]:
        """Names of the records a killed process would leave."""
        with JournalReader(os.path.join(self.folder.path, "dump.journal")) as reader:
            return [name for name, _ in reader.records()]


@pytest.fixture(autouse=True)
def ended_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test has left open."""
    monkeypatch.setattr(log, "_given", set())
    yield
    for run in Run.begun:
        run.folder.journal.close()
    Run.begun.clear()


def names(*numbers: int, api: ApiName = RELU) -> list[str]:
    return [f"{api.base}.{n}.forward" for n in numbers]


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
    assert f"File {__file__}, line " in stack[0] and ", in api, \n " in stack[0]


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
    collector.end_step()
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
        run.collector.end_step()


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


# --- statistics that come later


def test_records_wait_for_one_transfer_of_256(tmp_path: Path) -> None:
    run = Run(tmp_path, delayed=True, level="L1")
    for n in range(255):
        run.api(RELU, tensor(n), output=tensor(n, 2 * n))
    assert run.in_journal() == [] and run.tensors.resolved == []
    run.api(RELU, tensor(255), output=tensor(255, 510))
    assert run.in_journal() == names(*range(256)) and run.tensors.resolved == [512]
    for n in range(256, 260):
        run.api(RELU, tensor(n), output=tensor(n, 2 * n))
    assert len(run.in_journal()) == 256
    dump = run.files()
    assert run.tensors.resolved == [512, 8] and dump.names == names(*range(260))
    for n in range(260):
        record = dump.data[f"Torch.relu.{n}.forward"]
        assert record["input_args"] == [statistics(n)] and record["output"] == [statistics(n, 2 * n)]


def test_nothing_overtakes_a_record_that_waits(tmp_path: Path) -> None:
    run = Run(tmp_path, delayed=True, level="L1")
    run.api(RELU, 0)
    assert run.in_journal() == names(0), "nothing waits yet"
    run.api(RELU, tensor(1))
    run.api(RELU, 2)
    run.collector.parameter_gradient(OUTER, "w", tensor(3), True)
    assert run.in_journal() == names(0)
    run.collector.sinks.flush()
    with JournalReader(os.path.join(run.folder.path, "dump.journal")) as reader:
        assert [name for name, _ in reader.records()] == [*names(0, 1, 2), "Module.o.Outer.parameters_grad.0"]
        assert reader.torn_at is None
    assert run.tensors.resolved == [2]


def test_nothing_overtakes_when_a_backend_fetches_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path, delayed=True, level="L1")
    run.api(RELU, tensor(1))
    run.tensors.resolve()
    run.api(RELU, 2)
    assert run.in_journal() in ([], names(0, 1))
    assert run.files().data["Torch.relu.0.forward"]["input_args"] == [statistics(1)]


def test_a_call_that_is_open_at_the_transfer_keeps_its_statistics(tmp_path: Path) -> None:
    run = Run(tmp_path, delayed=True)
    outer = run.collector.enter_module(OUTER, [tensor(7)], {})
    for n in range(256):
        run.api(RELU, tensor(n))
    assert len(run.in_journal()) == 256
    run.collector.leave_module(outer, tensor(8), {})
    data = run.files().data["Module.o.Outer.forward.0"]
    assert data["input_args"] == [statistics(7)] and data["output"] == [statistics(8)]


def test_delayed_and_immediate_statistics_give_the_same_files(tmp_path: Path) -> None:
    dumps = []
    for delayed in (False, True):
        run = Run(tmp_path / str(delayed), delayed=delayed)
        collector = run.collector
        for n in range(300):
            outer = collector.enter_module(OUTER, [tensor(n)], {})
            call = run.api(RELU, tensor(n), n, output=tensor(-n))
            collector.leave_module(outer, tensor(n), {"w": tensor(1)})
            collector.backward_api(call, [tensor(n)], [None])
            collector.parameter_gradient(OUTER, "w", tensor(n), True)
        dumps.append(run.files())
    assert dumps[0].names == dumps[1].names and len(dumps[0].names) == 4 * 300
    assert dumps[0].data == dumps[1].data and dumps[0].tree == dumps[1].tree


def test_a_transfer_that_fails_costs_the_statistics_and_no_record(tmp_path: Path) -> None:
    run = Run(tmp_path, delayed=True, level="L1")
    run.api(RELU, tensor(1), 5)
    run.tensors.broken = True
    dump = run.files()
    first, second = dump.data["Torch.relu.0.forward"]["input_args"]
    assert first["shape"] == [1] and first["Max"] is None and second == {"type": "int", "value": 5}
    assert "the device is gone" in dump.errors
    run.tensors.broken = False
    run.api(RELU, tensor(2))
    assert run.files().data["Torch.relu.1.forward"]["input_args"] == [statistics(2)]


# --- tensor files


def test_tensors_are_saved_as_they_were_at_the_call(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    value, array = tensor(1, 2), np.arange(3)
    call = run.collector.enter_api(RELU, [value, {"k": [array]}], {"other": value})
    value[:] = 9
    run.collector.leave_api(call, value)
    dump = run.files()
    stem = "Torch.relu.0.forward"
    folder = Path(dump.head["dump_data_dir"])
    places = ("input.0.bin", "input.1.k.0.npy", "kwargs.other.bin", "output.0.bin")
    assert dump.files == [f"{stem}.{place}" for place in places]
    assert (folder / f"{stem}.input.0.bin").read_bytes() == tensor(1, 2).tobytes()
    assert (folder / f"{stem}.output.0.bin").read_bytes() == tensor(9, 9).tobytes()
    assert np.load(folder / f"{stem}.input.1.k.0.npy").tolist() == [0, 1, 2]
    assert [entry["data_name"] for entry in dumped.tensors(dump.data)] == dump.files
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} <= {0o640, 0o600}


def test_a_value_without_a_file_is_named_in_the_log_of_errors(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    run.api(RELU, np.array([object()], object))
    dump = run.files()
    assert [list(entry)[-1] for entry in dumped.tensors(dump.data)] == ["Norm"]
    assert dump.files == [] or all("relu" in name for name in dump.files)
    assert "pickle" in dump.errors


def test_names_of_any_length_and_with_any_characters_have_files(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    run.api(ApiName("Torch." + "x" * 300, "x"), tensor(1), {"a/b\0": tensor(2), "../../up": tensor(3)})
    dump = run.files()
    names = [entry["data_name"] for entry in dumped.tensors(dump.data)]
    assert len(names) == 3 and set(names) <= set(dump.files)
    assert list(dump.data) == ["Torch." + "x" * 300 + ".0.forward"]


@pytest.mark.parametrize("later", [False, True])
def test_two_tensors_of_a_call_never_share_a_file(tmp_path: Path, later: bool) -> None:
    run = Run(tmp_path, task="tensor", level="L1", async_dump=later)
    joined = {"a": {"b": tensor(1)}, "a.b": tensor(2), "a.b~2": tensor(3)}
    run.api(RELU, joined, {1: tensor(4), "1": tensor(5)}, output=joined, **joined)
    run.api(RELU, joined)
    dump = run.files()
    folder = Path(dump.head["dump_data_dir"])
    entries = list(dumped.tensors(dump.data))
    assert len(entries) == 3 + 2 + 3 + 3 + 3 and len({entry["data_name"] for entry in entries}) == len(entries)
    for entry in entries:
        assert (folder / entry["data_name"]).read_bytes() == tensor(entry["Max"]).tobytes()
    first = dump.data["Torch.relu.0.forward"]["input_args"][0]
    assert first["a"]["b"]["data_name"] == "Torch.relu.0.forward.input.0.a.b.bin", "as it is without the others"
    assert first["a.b"]["data_name"] == "Torch.relu.0.forward.input.0.a.b~2.bin"


def test_where_case_does_not_count_names_that_differ_in_it_have_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    # What such a file system shows of itself.
    (folder / "DUMP_TENSOR_DATA").symlink_to("dump_tensor_data")
    run = Run(tmp_path, task="tensor", level="L1")
    run.api(ApiName("Ops.Twice", "Twice"), tensor(1))
    run.api(ApiName("Ops.twice", "twice"), tensor(2))
    names = [entry["data_name"] for entry in dumped.tensors(run.files().data)]
    assert len({name.casefold() for name in names}) == 2


def test_async_files_are_written_at_the_flush(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1", names=("relu",), async_dump=True)
    run.api(RELU, tensor(1))
    folder = Path(run.folder.tensor_folder)
    assert list(folder.iterdir()) == []
    dump = run.files()
    (entry,) = dumped.tensors(dump.data)
    assert dump.files == [entry["data_name"]] and (folder / entry["data_name"]).read_bytes() == tensor(1).tobytes()


def test_async_copies_are_written_before_they_exceed_their_bound(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1", names=("relu",), async_dump=True, async_dump_max_mib=1)
    folder = Path(run.folder.tensor_folder)
    third = 450_000 // 4  # bytes; of three copies there is room for two, with what else is in a file
    on_disk = []
    for number in range(6):
        run.api(RELU, np.full(third, number, np.float32))
        on_disk.append(len(list(folder.iterdir())))
    assert on_disk == [0, 0, 2, 2, 4, 4]
    run.api(RELU, np.zeros(1 << 19, np.float32))
    assert len(list(folder.iterdir())) == 7, "what does not fit is written at once"
    dump = run.files()
    assert len(dump.files) == 7
    for number in range(6):
        (entry,) = dump.data[f"{RELU.base}.{number}.forward"]["input_args"]
        assert (folder / entry["data_name"]).read_bytes() == np.full(third, number, np.float32).tobytes()


KIB = 256
"""Elements of float32."""


@pytest.mark.parametrize("later", [False, True])
def test_max_gib_ends_the_saving_of_tensors_and_no_record_names_a_file_that_is_not_there(
    tmp_path: Path, later: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # 10 KiB: three files of 3 KiB and no fourth; what is equal takes nothing.
    run = Run(tmp_path, task="tensor", level="L1", names=("T",), async_dump=later, max_gib=10 / (1 << 20))
    for step in range(2):
        for number in range(4):
            run.api(RELU, np.full(3 * KIB, number // 2 + 2 * step, np.float32))
            run.api(ADD, np.full(KIB // 2, number, np.float32))
        dump = run.files(step)
        found = {entry["data_name"]: entry for entry in dumped.tensors(dump.data) if "data_name" in entry}
        assert dump.files == sorted(found)
        assert len(dump.data) == 8 and all(entry["Norm"] is not None for entry in dumped.tensors(dump.data))
        run.collector.end_step()
        if step == 0:
            assert len(dump.files) == 8
            run.begin(1)
    # 2 * 3 KiB + 4 * 0.5 KiB in the first step; of the second the first file did not fit, nor did any later one.
    assert dump.files == []
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert '"max_gib" is reached: the tensor files of this process take 8 KiB, the last in ' in warning
    assert str(tmp_path / "step1" / "rank0") in warning and "above 9.536743164e-06, or to -1" in warning


def test_a_larger_max_gib_lets_tensors_be_saved_again(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1", max_gib=0.5 / (1 << 20))
    run.api(RELU, np.zeros(KIB, np.float32))
    assert run.files().files == []
    run.collector.end_step()
    run.config = dataclasses.replace(run.config, max_gib=2 / (1 << 20))
    run.collector.configure(run.config)
    run.begin(1)
    run.api(RELU, np.zeros(KIB, np.float32))
    assert run.files(1).files == ["Torch.relu.0.forward.input.0.bin"]


def test_a_record_that_max_gib_cuts_has_the_files_that_fitted(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="mix", max_gib=10 / (1 << 20))
    args = [np.full(3 * KIB, number, np.float32) for number in range(5)]
    run.api(RELU, *args, output=args[0])
    record = run.files().data["Torch.relu.0.forward"]
    assert ["data_name" in entry for entry in record["input_args"]] == [True, True, True, False, False]
    assert "data_name" not in record["output"][0] and record["output"][0]["Max"] == 0


def test_what_a_step_takes_is_said_after_the_first_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    for step in range(2):
        call = run.api(RELU, np.full(3 * KIB, step, np.float32))
        run.collector.backward_api(call, [tensor(1, 2)], [tensor(3)])
        run.collector.sinks.flush()
        run.collector.end_step()
        run.begin(step + 1)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "tensor files" in line]
    assert "[INFO] The tensor files of step0 take about 6 KiB, of which 3 KiB are the forward pass. " in line
    assert 'takes about as much; at 100 GiB ("max_gib") the saving of tensors ends, and not the training; ' in line
    assert line.endswith("GiB are free on the disk.") or line.endswith("TiB are free on the disk.")


def test_what_a_step_without_a_backward_takes_is_said_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, level="L1", tensor_list=("relu",), max_gib=-1)
    run.api(RELU, np.zeros(KIB, np.float32), np.zeros(KIB, np.float32))
    run.files()
    assert "tensor files" not in capsys.readouterr().err
    run.collector.end_step()
    out = capsys.readouterr().err
    assert "The tensor files of step0 take 1 KiB. Each further step takes about as much; " in out
    assert '; "max_gib" is -1, so there is no limit; ' in out


def test_tensor_list_saves_the_records_it_names(tmp_path: Path) -> None:
    run = Run(tmp_path, level="L1", tensor_list=("relu.1",))
    for n in range(3):
        run.api(RELU, tensor(n))
    assert run.files().files == ["Torch.relu.1.forward.input.0.bin"]


def test_only_calls_that_differ_from_the_reference_are_saved(tmp_path: Path) -> None:
    def calls(run: Run, changed: tuple[int, ...]) -> None:
        for n in range(6):
            # Call 4 gets another input as well, so its output may differ.
            output = n + 0.5 if n in changed else n
            run.api(RELU, tensor(n + 0.5 if n == 4 and changed else n), output=tensor(output))

    reference = Run(tmp_path / "reference", level="L1", summary_mode="md5")
    calls(reference, ())
    dump = reference.files()
    assert dump.data["Torch.relu.3.forward"]["output"][0]["md5"] == f"{zlib.crc32(tensor(3).tobytes()):08x}"
    more = {"task": "tensor", "level": "L1", "summary_mode": "md5", "bench_path": str(tmp_path / "reference")}
    for limit, ended, found in [(-1, 0, [1, 3, 5]), (2, 1, [1, 3])]:
        run = Run(tmp_path / str(limit), diff_nums=limit, **more)
        calls(run, (1, 3, 4, 5))
        dump = run.files()
        assert run.ended == ended and len(dump.names) == (6 if limit == -1 else 4)
        assert dump.files == [f"Torch.relu.{n}.forward.{half}.0.bin" for n in found for half in ("input", "output")]


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
    run.collector.forked(True)
    run.collector.leave_api(call, None)
    run.api(ADD)
    run.collector.parameter_gradient(OUTER, "w", tensor(1), True)
    run.collector.enter_optimizer("optimizer")
    run.collector.sinks.flush()
    run.collector.end_step()
    assert (Path(run.folder.path) / "dump.journal").read_bytes() == before


FULL = """
import json, os, resource, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:5]
from test_collector import INNER, OUTER, RELU, ADD, Run, tensor
run = Run(Path(sys.argv[1]), task="tensor", delayed=sys.argv[5] == "delayed")
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
    paths = (str(tests / folder) for folder in ("collect", "support", "backends/support"))
    command = [sys.executable, "-c", FULL, str(tmp_path), *paths, how]
    environment = {**os.environ, "PYTHONPATH": str(tests.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and done.stdout.endswith("survived\n"), done.stdout[-1000:] + done.stderr
    assert len(done.stderr.splitlines()) < 40, "the user is told once and not thousands of times"


def test_files_that_cannot_be_written_leave_the_journal(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.api(RELU)
    path = Path(run.folder.path)
    (path / "dump.json").unlink()
    (path / "dump.json").mkdir()
    with pytest.raises(OSError, match=r"dump\.json"):
        run.sink.flush()
    run.collector.end_step()
    with JournalReader(str(path / "dump.journal")) as reader:
        assert [name for name, _ in reader.records()] == names(0)
    assert json.loads((path / "stack.json").read_text()) == {}
