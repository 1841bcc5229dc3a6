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
from probe.common.parallel.tasks import ProcessDied, Where, finished, processors, results

TWO = Where(jobs=2)


def test_outcomes_come_in_the_order_of_the_tasks_whoever_is_done_first() -> None:
    tasks = [0.6, 0.0, 0.3, 0.0]
    done: list[int] = []
    outcomes = run(TWO, parallel_tasks.wait, tasks, lambda what, count, total: done.append(count))
    assert [outcome.value for outcome in outcomes] == tasks
    assert done == [0, 1, 2, 3, 4]


def test_several_tasks_go_to_as_many_processes_as_asked_for() -> None:
    found = {outcome.value for outcome in run(TWO, parallel_tasks.process, range(6))}
    assert len(found) <= 2 and os.getpid() not in found


@pytest.mark.parametrize(("where", "tasks"), [(Where(jobs=1), 3), (TWO, 1), (Where(), 1)])
def test_one_task_and_one_process_stay_here(where: Where, tasks: int) -> None:
    assert [outcome.value for outcome in run(where, parallel_tasks.process, range(tasks))] == [os.getpid()] * tasks


def test_no_task_is_no_outcome() -> None:
    assert list(run(TWO, parallel_tasks.process, [])) == []


def test_by_default_there_is_a_process_for_every_processor() -> None:
    found = {outcome.value for outcome in run(Where(), parallel_tasks.process, range(4 * processors()))}
    assert 1 <= len(found) <= processors()


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


def test_errors_that_a_user_can_put_right_are_outcomes() -> None:
    user, disk, memory, fine = run(TWO, parallel_tasks.fail, ["user", "disk", "memory", "fine"])
    assert isinstance(user.error, DumpFormatError) and str(user.error) == "dump.json is damaged."
    assert isinstance(disk.error, OSError) and disk.error.errno == 28
    assert isinstance(memory.error, MsprobeException) and "not enough memory" in str(memory.error)
    assert fine.value == "fine"


def test_a_defect_is_raised_with_the_place_where_it_is() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)parallel_tasks\.py.*ZeroDivisionError: a defect of ours"):
        list(run(TWO, parallel_tasks.fail, ["fine", "defect"]))


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


def test_an_error_that_may_be_is_that_of_its_task_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = ["fine", "user", "fine"]
    found = list(finished(tasks, run(TWO, parallel_tasks.fail, tasks), (MsprobeException,)))
    assert [task for task, _ in found] == tasks
    assert [outcome.value for _, outcome in found] == ["fine", None, "fine"]
    assert str(found[1][1].error) == "dump.json is damaged."
    # Of a single task it is the answer.
    with pytest.raises(DumpFormatError):
        list(finished(["user"], run(TWO, parallel_tasks.fail, ["user"]), (MsprobeException,)))
    talked = ["first", "second"]
    list(finished(talked, run(TWO, parallel_tasks.talk, talked), ()))
    assert capsys.readouterr().err.count("ends") == 2


def test_another_error_is_raised_and_ends_the_processes() -> None:
    tasks = ["disk", "fine"]
    with pytest.raises(OSError, match="No space left"):
        list(finished(tasks, run(TWO, parallel_tasks.fail, tasks), (MsprobeException,)))
    assert active_children() == []


def test_where_none_may_fail_the_first_error_is_raised() -> None:
    assert list(results(["a", "b"], run(TWO, parallel_tasks.fail, ["a", "b"]))) == ["a", "b"]
    given = results(["a", "user", "b"], run(TWO, parallel_tasks.fail, ["a", "user", "b"]))
    assert next(given) == "a"
    with pytest.raises(DumpFormatError):
        next(given)
    assert active_children() == []
