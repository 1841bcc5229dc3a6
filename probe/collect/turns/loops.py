"""The loops of a program that a call runs in, read from the bytecode of the functions on its stack.

An update and the forward before it are in the same iteration of the loops that hold both calls. So a loop that holds
two updates, each with its forward, is one that trains.
"""

from __future__ import annotations

import bisect
import dis
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType

from probe.common.callstack import CodeLocation

_ENDS = frozenset(("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"))
"""Instructions that no other one follows, beside jumps."""
_WAITS = "JUMP_BACKWARD_NO_INTERRUPT"
"""The jump of ``await`` and ``yield from``, which is no loop of the program's."""
_JUMPS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", _WAITS, "JUMP_ABSOLUTE"))
"""Those that always jump."""


@dataclass(frozen=True)
class Loop:
    """One loop of one function, as it was called from `callers`.

    Args:
        callers: The calls that the function runs in, outermost first: the identity of the code and the offset in it.
        code: The identity of the code.
        header: The offset of the instruction with which an iteration begins.
        text: Its file and line, such as ``train.py:12``.
    """

    callers: tuple[tuple[int, int], ...]
    code: int
    header: int
    text: str


@dataclass(frozen=True)
class _LoopOfCode:
    header: int
    offsets: frozenset[int]
    line: int


class Loops:
    """Finds the loops around calls, once for each function and each stack."""

    def __init__(self) -> None:
        # By identity, with the code, so that no other one gets the same identity.
        self._of_code: dict[int, tuple[CodeType, list[int], list[_LoopOfCode]]] = {}

    def around(self, locations: Iterable[CodeLocation]) -> tuple[Loop, ...]:
        """The loops around a call, outermost first.

        Args:
            locations: The frames of the call, outermost first.
        """
        found: list[Loop] = []
        callers: list[tuple[int, int]] = []
        for code, call_offset in locations:
            _, offsets, loops = self._loops_of(code)
            # Behind an instruction there may be its caches, of which the offset can be one.
            offset = offsets[max(0, bisect.bisect_right(offsets, call_offset) - 1)]
            name = os.path.basename(code.co_filename)
            for loop in loops:
                if offset in loop.offsets:
                    found.append(Loop(tuple(callers), id(code), loop.header, f"{name}:{loop.line}"))
            callers.append((id(code), call_offset))
        return tuple(found)

    def _loops_of(self, code: CodeType) -> tuple[CodeType, list[int], list[_LoopOfCode]]:
        found = self._of_code.get(id(code))
        if found is None:
            found = self._of_code[id(code)] = code, *_read(code)
        return found


def _read(code: CodeType) -> tuple[list[int], list[_LoopOfCode]]:
    """The offsets of all instructions, and the loops, of which an outer one comes before those inside of it."""
    before: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    offsets: list[int] = []
    goes_on = False
    for instruction in dis.get_instructions(code):
        offset = instruction.offset
        before.setdefault(offset, [])
        if goes_on:
            before[offset].append(offsets[-1])
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            target = instruction.argval
            before.setdefault(target, []).append(offset)
            if target <= offset and instruction.opname != _WAITS:
                ends.setdefault(target, []).append(offset)
        goes_on = instruction.opname not in _ENDS and instruction.opname not in _JUMPS
        offsets.append(offset)
    lines = sorted((offset, line) for offset, line in dis.findlinestarts(code) if line)
    loops = []
    for header, jumps in ends.items():
        inside = _leading_to(jumps, header, before)
        line = min((_line_at(offset, lines) for offset in inside), default=0)
        loops.append(_LoopOfCode(header, inside, line))
    return offsets, sorted(loops, key=lambda loop: -len(loop.offsets))


def _leading_to(jumps: list[int], header: int, before: dict[int, list[int]]) -> frozenset[int]:
    """The instructions of a loop: those from which a jump back to its header is reached without passing that."""
    inside, left = {header}, list(jumps)
    while left:
        offset = left.pop()
        if offset not in inside:
            inside.add(offset)
            left.extend(before.get(offset, ()))
    return frozenset(inside)


def _line_at(offset: int, lines: list[tuple[int, int]]) -> int:
    index = bisect.bisect_right(lines, (offset, 1 << 40)) - 1
    return lines[max(0, index)][1] if lines else 0
