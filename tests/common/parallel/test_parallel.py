"""Work in several processes: order, what comes back, what becomes of the rest when one dies."""

from __future__ import annotations

import os
import time
from contextlib import closing
from multiprocessing import active_children

import parallel_tasks
import pytest

from probe.common import log
from probe.common.errors import DumpFormatError, MsprobeException
from probe.common.parallel.run_tasks import run
from probe.common.parallel.tasks import ProcessDied, Where

TWO = Where(jobs=2)


def test_outcomes_come_in_the_order_of_the_tasks_whoever_is_done_first() -> None:
    tasks = [0.6, 0.0, 0.3, 0.0]
    done: list[int] = []
    outcomes = run(TWO, parallel_tasks.wait, tasks, lambda what, count, total: done.append(count))
    assert [outcome.value for outcome in outcomes] == tasks
    assert done == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("where", "tasks"), [(Where(jobs=1), 3), (TWO, 1), (Where(), 1)])
def test_one_task_and_one_process_stay_here(where: Where, tasks: int) -> None:
    assert [outcome.value for outcome in run(where, parallel_tasks.process, range(tasks))] == [os.getpid()] * tasks


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("SIGKILL", "its process was killed (SIGKILL), as the system does when memory runs out"),
        ("SIGSEGV", "its process died of SIGSEGV"),
        ("3", "its process ended with status 3"),
    ],
)
def test_a_process_that_dies_is_the_error_of_its_task_and_the_others_go_on(how: str, said: str) -> None:
    tasks = ["a", how, "b", how, how, "c"]
    outcomes = list(run(TWO, parallel_tasks.die, tasks))
    assert [outcome.value for outcome in outcomes] == ["a", None, "b", None, None, "c"]
    for outcome in (outcomes[1], outcomes[3], outcomes[4]):
        assert isinstance(outcome.error, ProcessDied) and outcome.error.pid > 0
        assert said in str(outcome.error)


def test_log_lines_come_back_in_order_and_are_shown_by_the_one_who_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_given", set())
    first, second = run(TWO, parallel_tasks.talk, ["first", "second"])
    assert capsys.readouterr().err == ""
    assert [line.text for line in first.logged] == ["first begins", "known to both", "first ends"]
    for outcome in (first, second):
        log.show(outcome.logged)
    shown = [line.partition("] ")[2] for line in capsys.readouterr().err.splitlines()]
    assert shown == ["first begins", "known to both", "first ends", "second begins", "second ends"]


def test_leaving_early_ends_the_processes() -> None:
    begin = time.monotonic()
    with closing(run(TWO, parallel_tasks.wait, [0.0, 60.0, 60.0])) as outcomes:
        assert next(outcomes).value == 0.0
        assert len(active_children()) == 2
    assert time.monotonic() - begin < 30
    assert active_children() == []


def test_errors_that_a_user_can_put_right_are_outcomes() -> None:
    user, disk, memory, fine = run(TWO, parallel_tasks.fail, ["user", "disk", "memory", "fine"])
    assert isinstance(user.error, DumpFormatError) and str(user.error) == "dump.json is damaged."
    assert isinstance(disk.error, OSError) and disk.error.errno == 28
    assert isinstance(memory.error, MsprobeException) and "not enough memory" in str(memory.error)
    assert fine.value == "fine"


def test_a_defect_is_raised_with_the_place_where_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)parallel_tasks\.py.*ZeroDivisionError: a defect of ours"):
        list(run(TWO, parallel_tasks.fail, ["fine", "defect"]))
