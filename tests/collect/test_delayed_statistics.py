"""Statistics that come later than their call, as those of a device do: no record overtakes another or is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from collector_runs import OUTER, RELU, Run, names, statistics, tensor

from probe.common.dump.journal import JournalReader

pytestmark = pytest.mark.usefixtures("ended_runs")


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
    run.sink.flush()
    with JournalReader(os.path.join(run.folder.path, "dump.journal")) as reader:
        assert [name for name, _ in reader.records()] == [*names(0, 1, 2), "Module.o.Outer.parameters_grad.0"]
        assert reader.torn_at is None
    assert run.tensors.resolved == [2]


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
        for n in range(100):
            outer = collector.enter_module(OUTER, [tensor(n)], {})
            call = run.api(RELU, tensor(n), n, output=tensor(-n))
            collector.leave_module(outer, tensor(n), {"w": tensor(1)})
            collector.backward_api(call, [tensor(n)], [None])
            collector.parameter_gradient(OUTER, "w", tensor(n), True)
        dumps.append(run.files())
    assert dumps[0].names == dumps[1].names and len(dumps[0].names) == 4 * 100
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
