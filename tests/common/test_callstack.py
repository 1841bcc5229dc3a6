"""Stacks: one number per distinct stack, no frame of the tool, no source read before the files are written."""

from __future__ import annotations

import itertools
import sys
import threading
import traceback
import tracemalloc
from pathlib import Path
from typing import Any, Callable

import pytest

import probe
from probe.common import callstack
from probe.common.callstack import CallStacks

OWN_FOLDER = Path(probe.__file__).parent


needs_compiled = pytest.mark.skipif(callstack._frames is None, reason="the compiled walk is not built here")


@pytest.fixture(params=[pytest.param("compiled", marks=needs_compiled), "in Python"])
def stacks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CallStacks:
    """With either walk; they must not be told apart."""
    if request.param == "in Python":
        monkeypatch.setattr(callstack, "walk", callstack.walk_in_python)
    return CallStacks()


def here(stacks: CallStacks) -> int:
    return stacks.current()


def number_of(stacks: CallStacks) -> int:
    return here(stacks)


def test_one_place_has_one_number_and_another_place_another(stacks: CallStacks) -> None:
    in_a_loop = [number_of(stacks) for _ in range(3)]
    elsewhere = number_of(stacks)
    assert len(set(in_a_loop)) == 1 and elsewhere not in in_a_loop
    # Two calls in one line are two stacks; only their text is the same.
    left, right = number_of(stacks), number_of(stacks)
    assert left != right and stacks.frames(left) == stacks.frames(right)


@pytest.mark.parametrize("known", [True, False], ids=["above the caller", "whole walks"])
def test_stacks_share_their_frames_however_deep_a_program_is(stacks: CallStacks, known: bool) -> None:
    depth, found = (1_000 if known else 300), []

    def down(n: int, outer: Any = None, stack: int = -1) -> None:
        number = stacks.current(outer, stack) if known else stacks.current()
        found.append(number)
        if n:
            down(n - 1, sys._getframe(), number)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5 * depth)
    tracemalloc.start()
    try:
        down(depth)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        sys.setrecursionlimit(limit)
    assert kept < (3_000 if known else 4_000) * depth, "bytes"
    whole, cut = stacks.frames(found[150]), stacks.frames(found[-1])
    assert [frame[2] for frame in whole[:150]] == ["down"] * 150 and callstack.GAP not in whole
    assert cut[:100] == whole[:1] + cut[1:100] and cut[128] == callstack.GAP and cut[-100:] == whole[-100:]
    assert len(stacks.locations(found[-1])) > depth


def test_frames_are_those_of_the_interpreter_innermost_first(stacks: CallStacks) -> None:
    number, expected = stacks.current(), traceback.extract_stack()
    assert stacks.frames(number) == [(frame.filename, frame.lineno, frame.name) for frame in reversed(expected)]


def test_frames_of_the_tool_are_left_out_wherever_they_are(stacks: CallStacks, tmp_path: Path) -> None:
    # Code that claims to be a file of the package stands for a wrapper of the tool.
    source = "def wrapper(function, *args):\n    return function(*args)\n"
    space: dict[str, Any] = {}
    exec(compile(source, str(OWN_FOLDER / "backends" / "x.py"), "exec"), space)
    marked: dict[str, Any] = {}
    exec(compile(f"def wrapper(function, *args):\n    {callstack.MARK!r}\n    x = {callstack.MARK!r}\n"
                 "    return function(*args)\n", "<other>", "exec"), marked)  # fmt: skip

    def user(function: Callable[..., int], *args: Any) -> int:
        return function(*args)

    plain = user(user, number_of, stacks)
    wrapped = space["wrapper"](user, marked["wrapper"], user, number_of, stacks)
    names = [[name for _, _, name in stacks.frames(n)] for n in (plain, wrapped)]
    own_test = "test_frames_of_the_tool_are_left_out_wherever_they_are"
    assert names[0][:5] == names[1][:5] == ["here", "number_of", "user", "user", own_test]
    assert not any(path.startswith(f"{OWN_FOLDER}/") for path, _, _ in stacks.frames(wrapped))


def test_the_caller_is_the_innermost_frame_of_the_user(stacks: CallStacks) -> None:
    space: dict[str, Any] = {}
    exec(compile("def f(g, *a):\n    return g(*a)\n", str(OWN_FOLDER / "x.py"), "exec"), space)
    frame = space["f"](space["f"], stacks.caller)
    assert frame is sys._getframe()


def test_a_stack_above_a_known_one_is_the_stack_of_a_whole_walk(stacks: CallStacks) -> None:
    space: dict[str, Any] = {}
    exec(compile("def take(stacks):\n    return stacks.current()\n", str(OWN_FOLDER / "x.py"), "exec"), space)

    def outer(deep: int) -> None:
        if deep:
            return outer(deep - 1)
        frame = sys._getframe()
        below = space["take"](stacks)
        for _ in range(2):
            # The frame that is known has gone on since, in a line of its own and in a loop.
            inner(frame, below)

    def inner(frame: Any, below: int) -> None:
        both = stacks.current(), stacks.current(frame, below)
        # One line, two instructions: the texts are the same, the numbers are not.
        assert stacks.frames(both[0]) == stacks.frames(both[1])
        for _ in range(2):
            numbers = [stacks.current(*known) for known in ((), (frame, below), (frame, -1), (None, below))]
            assert [stacks.frames(number) for number in numbers] == [stacks.frames(numbers[0])] * 4
        again = dict.fromkeys((None, frame), 0)
        for known in again:
            again[known] = stacks.current(known, below)
        assert again[None] == again[frame], "one instruction, one stack, however it is walked"

    for deep in (0, 3):
        outer(deep)

    def elsewhere() -> int:
        return stacks.current(left_already, below)

    left_already = (lambda: sys._getframe())()
    below = number_of(stacks)
    assert stacks.frames(elsewhere())[0][2] == "elsewhere", "a frame that is not below is of no use"


@pytest.mark.usefixtures("stacks")
def test_threads_that_meet_at_a_new_stack_get_one_number_and_its_frames() -> None:
    """A second thread comes to the same place while the first one is numbering it, after every line of that in turn."""

    class Meeting:
        def __init__(self, line: int) -> None:
            self.stacks = CallStacks()
            self.lines_left = line
            self.found: list[tuple[int, list[callstack.Frame]]] = []

        def come(self, meet: bool) -> None:
            sys.settrace(self.enter if meet else None)
            number = self.stacks.current()
            sys.settrace(None)
            self.found.append((number, list(self.stacks.frames(number))))

        def enter(self, frame: Any, event: str, argument: Any) -> Any:
            return self.after_line if frame.f_code.co_filename == callstack.__file__ else None

        def after_line(self, frame: Any, event: str, argument: Any) -> Any:
            if event == "line":
                self.lines_left -= 1
                if not self.lines_left:
                    in_a_thread(self.come, False)
            return self.after_line

    def in_a_thread(function: Callable[[bool], None], meet: bool) -> None:
        thread = threading.Thread(target=function, args=[meet])
        thread.start()
        thread.join()

    for line in itertools.count(1):
        meeting = Meeting(line)
        in_a_thread(meeting.come, True)
        if meeting.lines_left > 0:
            break
        second, first = meeting.found
        assert first == second and first[1][0][2] == "come", f"line {line}"
    python = callstack.walk is callstack.walk_in_python
    assert line > (20 if python else 8), "the lines of a walk over some frames, and of a new stack's numbering"


def test_stacks_of_code_that_is_gone_are_never_given_to_other_code(stacks: CallStacks) -> None:
    numbers = []
    for n in range(50):
        space: dict[str, Any] = {}
        exec(compile("def f(g, *a):\n    return g(*a)\n", f"<made {n}>", "exec"), space)
        numbers.append(space["f"](number_of, stacks))
        # Nothing else holds the function, and the next one takes its place in memory.
        space.clear()
    assert len(set(numbers)) == 50
    for n, number in enumerate(numbers):
        assert (f"<made {n}>", 2, "f") in stacks.frames(number)
