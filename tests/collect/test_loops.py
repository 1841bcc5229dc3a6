"""The loops around a call are read from the bytecode of the functions on its stack."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from probe.collect.turns.loops import Loops
from probe.common.callstack import CallStacks

PROGRAM = """
def helper():
    for each in "a":
        note("in a function")

for one in "ab":
    note("outer")
    try:
        note("tried")
        if one == "a":
            raise ValueError
    except ValueError:
        pass
    while True:
        note("inner")
        break
    for other in "ab":
        if other == "a":
            continue
        with opened:
            note("with")
    helper()
note("behind")
"""
EXPECTED = {
    "outer": [6],
    "tried": [6],
    # A loop that never comes around is none.
    "inner": [6],
    "with": [6, 17],
    "in a function": [6, 3],
    "behind": [],
}


@pytest.fixture
def lines() -> dict[str, list[int]]:
    """The lines of the loops around each call of ``note``, outermost first."""
    stacks, loops = CallStacks(), Loops()
    found: dict[str, list[int]] = {}

    def note(name: str) -> None:
        locations = stacks.locations(stacks.current())
        inside = [place for place in locations if place[0].co_filename == "program.py"]
        found[name] = [int(loop.text.rpartition(":")[2]) for loop in loops.around(inside)]

    class Opened:
        def __enter__(self) -> None: ...
        def __exit__(self, *args: object) -> None: ...

    exec(compile(PROGRAM, "program.py", "exec"), {"note": note, "opened": Opened()})
    return found


def test_loops_are_those_of_the_source(lines: dict[str, list[int]]) -> None:
    assert lines == EXPECTED


def test_the_same_loop_in_two_calls_of_a_function_is_two_loops() -> None:
    stacks, loops = CallStacks(), Loops()
    found = []

    def train() -> None:
        for _ in range(2):
            found.append(loops.around(stacks.locations(stacks.current()))[-1])

    calls: list[Callable[[], None]] = [train, train]
    calls[0]()
    calls[1]()
    assert found[0] == found[1] != found[2] == found[3]


if sys.implementation.name != "cpython":
    pytest.skip("the bytecode is that of CPython", allow_module_level=True)
