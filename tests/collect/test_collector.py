"""What hooks report becomes records: driven through the listener's methods, as a backend does, with numpy tensors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from collector_runs import ADD, MATMUL, OUTER, RELU, Run, names, tensor

import probe
from probe.collect.sinks.sink import Discarded
from probe.common.dump.journal import JournalReader

pytestmark = pytest.mark.usefixtures("ended_runs")


# --- records


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


def test_clipping_and_the_optimizer_are_in_the_tree_only_if_something_ran_inside(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.collector.enter_optimizer("clip_grad")
    run.collector.leave_optimizer("clip_grad")
    run.collector.enter_optimizer("optimizer")
    run.api(ADD)
    run.collector.leave_optimizer("optimizer")
    run.collector.enter_optimizer("clip_grad")  # one that raised: nothing says that it has ended
    assert list(run.files().tree) == ["optimizer", *names(0, api=ADD)]


# --- failures


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


@pytest.mark.sampled(least=1, each=False)
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
