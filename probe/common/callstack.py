"""Call stacks, taken as code objects and instruction offsets, and kept as a tree of frames.

Stacks share the frames that they have in common, so a model that is called 3,000 modules deep takes no more than one
that makes as many calls side by side. No source is read while the user's program runs;
`probe.common.dump.stack_text` reads it when a dump is written.
"""

from __future__ import annotations

import bisect
import dis
import itertools
import os
import struct
import sys
from array import array
from collections.abc import Callable, Container
from types import CodeType, FrameType, TracebackType
from typing import Any, Generic, TypeVar

try:
    from probe.common import _frames
except ImportError:
    _frames = None  # type: ignore[assignment]

Frame = tuple[str, int, str]
"""The file, line and function of a frame."""
CodeLocation = tuple[CodeType, int]
"""The code of a frame and the offset of its instruction."""

OWN_FILES = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
MARK = "a frame of msprobe"
"""Among the constants of code that the tool compiles itself; such frames are left out like the tool's own."""

_LEFT_OUT: dict[int, CodeType] = {}
"""By identity: code that a compiler made can have constants that cannot be hashed."""


def leave_out(code: CodeType) -> None:
    """Treat frames of `code` like the tool's own: a framework's function that does nothing but call hooks."""
    _LEFT_OUT[id(code)] = code


def hide_own_frames(error: BaseException) -> None:
    """Take the tool's own frames out of the traceback of an error of the user's.

    In the frame that handles it, and to be followed by ``raise`` alone, which does not enter that frame again. Python
    3.9 and 3.10 raise with the traceback that they had when the error was caught: the handling frame stays there.
    """
    kept: list[TracebackType] = []
    caught = entry = error.__traceback__
    while entry is not None:
        code = entry.tb_frame.f_code
        if not code.co_filename.startswith(OWN_FILES) and MARK not in code.co_consts:
            kept.append(entry)
        entry = entry.tb_next
    for outer, inner in itertools.zip_longest(kept, kept[1:]):
        outer.tb_next = inner
    error.__traceback__ = kept[0] if kept else None
    if sys.version_info < (3, 11) and caught is not None and caught is not error.__traceback__:
        caught.tb_next = error.__traceback__


def walk_in_python(
    frame: FrameType,
    own: dict[int, bool],
    see: Callable[[CodeType], bool],
    outer: FrameType | None,
    rest: bytes,
) -> bytes:
    """The key of a stack: of each frame the identity of its code and the offset of its instruction, eight bytes each.

    Args:
        frame: The innermost one.
        own: True if the frames of a code object, by its identity, are left out.
        see: Answers where `own` does not, enters the answer there, and keeps the code object alive.
        outer: The frame with which the walk ends;
        rest: the end of the key then, which stands for the frames below that.
    """
    key: list[int] = []
    add = key.append
    walk: FrameType | None = frame
    while walk is not None:
        code = walk.f_code
        identity = id(code)
        ours = own.get(identity)
        if ours is None:
            ours = see(code)
        if not ours:
            add(identity)
            add(walk.f_lasti + 1)  # it is -1 before the first instruction
            if walk is outer:
                return array("Q", key).tobytes() + rest
        walk = walk.f_back
    return array("Q", key).tobytes()


# A stack of forty frames takes 8 us in Python.
walk = walk_in_python if _frames is None else _frames.walk

GAP: Frame = ("", 0, "")
"""Stands in a stack that is too long for the frames between its two ends."""
_END = 128
"""Frames at each end of a stack that is too long. Twice as many are the longest stack that is written whole.

A module takes three to four frames, so a call may be in more than sixty modules, of which each calls the next one. The
number is a guess.
"""

_T = TypeVar("_T")


class StackTree(Generic[_T]):
    """Stacks by number: what there is to know of the innermost frame, and the number of the stack of its caller."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[_T, int, int, int]] = {}
        """The frame, the caller's stack, the number of frames, and the stack of the outermost `_END` of them."""

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, number: object) -> bool:
        return number in self.entries

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StackTree) and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment]  # it grows

    def add(self, number: int, parent: int, frame: _T) -> None:
        """Add a stack: `frame`, called from the stack `parent`, -1 if no frame called it."""
        _, _, length, base = self.entries.get(parent, (None, -1, 0, -1))
        self.entries[number] = frame, parent, length + 1, number if length < _END else base

    def caller(self, number: int) -> int:
        """The stack of the caller of a stack's innermost frame; -1 if no frame called it."""
        return self.entries[number][1]

    def ends(self, number: int) -> tuple[list[_T], list[_T]]:
        """The frames of a stack, innermost first: all and none, or those at both ends if it is too long."""
        length, base = self.entries[number][2:]
        if length <= 2 * _END:
            return self._path(number, length), []
        return self._path(number, _END), self._path(base, _END)

    def path(self, number: int) -> list[_T]:
        """All frames of a stack, innermost first."""
        return self._path(number, self.entries[number][2])

    def _path(self, number: int, most: int) -> list[_T]:
        found: list[_T] = []
        for _ in range(most):
            frame, number, _, _ = self.entries[number]
            found.append(frame)
        return found

    def unknown(self, number: int, known: Container[int]) -> list[tuple[int, int, _T]]:
        """The stacks that are needed for a stack and are not `known`: number, caller, frame; outermost first."""
        found = []
        while number >= 0 and number not in known:
            frame, parent, _, _ = self.entries[number]
            found.append((number, parent, frame))
            number = parent
        return found[::-1]


def without_middle(ends: tuple[list[Frame], list[Frame]]) -> list[Frame]:
    """The frames of a stack from its two ends, with `GAP` between them if it is too long."""
    inner, outer = ends
    return [*inner, GAP, *outer] if outer else inner


_PARENT = struct.Struct("=q")
_FRAME_BYTES = 16
"""Bytes of a frame in a key: the address of its code object and the offset of its instruction, 8 each."""
_CHUNK = 64 * _FRAME_BYTES
"""The longest key that is kept. A stack with more frames is found by parts of this size, from the outermost on."""


class CallStacks:
    """Gives every distinct stack a number.

    The key of a stack is the identity of its code objects and the offsets in them: hashing code objects themselves
    would hash their constants and bytecode each time.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        """The number of a stack by its key: its innermost frames and, with 8 bytes, the stack below them."""
        self._by_frame: dict[tuple[int, int, int], int] = {}
        """The number of a stack by its innermost frame, identity and offset, and the stack of the caller."""
        self._tree: StackTree[tuple[int, int]] = StackTree()
        self._next = itertools.count()
        self._own: dict[int, bool] = {}
        # Keeps every code object that was seen alive, so that an identity is never given to another one.
        self._codes: dict[int, CodeType] = {}
        self._lines: dict[int, tuple[list[int], list[int]]] = {}

    def __len__(self) -> int:
        return len(self._tree)

    def current(self, outer: FrameType | None = None, outer_stack: int = -1) -> int:
        """The number of the stack without frames of the tool, as the user's program sees it.

        `outer`, if it is still below, is where the stack `outer_stack` was taken: the innermost of its frames. It has
        gone on since, but what is below it is waiting for it and the same, and is not walked again.
        """
        frame = sys._getframe(1)
        if outer_stack < 0:
            found = walk(frame, self._own, self._see, None, b"")
        else:
            below = self._tree.caller(outer_stack)
            found = walk(frame, self._own, self._see, outer, _PARENT.pack(below))
        number = self._numbers.get(found)
        if number is None:
            number = self.number_of(found)
        return number

    def compiled(self) -> tuple[Any, ...]:
        """The arguments by which `probe.collect._calls.PlainCalls` does what `current` does."""
        return self, self._own, self._see, self._numbers, self._tree.entries, walk

    def locations(self, number: int) -> list[CodeLocation]:
        """The frames of a stack, by its number, outermost first."""
        return [(self._codes[identity], offset - 1) for identity, offset in reversed(self._tree.path(number))]

    def frames(self, number: int) -> list[Frame]:
        """The frames of a stack, by its number, innermost first; of a very long one those at its two ends."""
        inner, outer = self._tree.ends(number)
        return without_middle((list(map(self._frame, inner)), list(map(self._frame, outer))))

    def unknown(self, number: int, known: Container[int]) -> list[tuple[int, int, Frame]]:
        """The stacks that are needed for a stack and are not `known`: number, caller, frame; outermost first."""
        return [(each, parent, self._frame(key)) for each, parent, key in self._tree.unknown(number, known)]

    def caller(self) -> FrameType | None:
        """The innermost frame that is not the tool's."""
        frame: FrameType | None = sys._getframe(1)
        own = self._own
        while frame is not None:
            ours = own.get(id(frame.f_code))
            if ours is None:
                ours = self._see(frame.f_code)
            if not ours:
                return frame
            frame = frame.f_back
        return None

    def _see(self, code: CodeType) -> bool:
        self._codes[id(code)] = code
        ours = code.co_filename.startswith(OWN_FILES) or MARK in code.co_consts or id(code) in _LEFT_OUT
        self._own[id(code)] = ours
        return ours

    def number_of(self, key: bytes) -> int:
        """The number of the stack of a key, which may be new."""
        begin = len(key) // _FRAME_BYTES * _FRAME_BYTES
        number = _PARENT.unpack(key[begin:])[0] if begin < len(key) else -1
        for end in range(begin, 0, -_CHUNK):
            frames = key[max(0, end - _CHUNK) : end]
            part = frames + _PARENT.pack(number)
            known = self._numbers.get(part)
            if known is None:
                known = self._numbers[part] = self._add(frames, number)
            number = known
        if begin <= _CHUNK:
            self._numbers[key] = number
        return number

    def _add(self, frames: bytes, number: int) -> int:
        values = array("Q", frames)
        for at in range(len(values) - 2, -1, -2):
            identity, offset = values[at], values[at + 1]
            known = self._by_frame.get((number, identity, offset))
            if known is None:
                # Last of all the number becomes known, that of the first of the threads that meet here; those of the
                # others are never used. A lock would not do: the call that a signal's function interrupts could hold
                # it.
                known = next(self._next)
                self._tree.add(known, number, (identity, offset))
                known = self._by_frame.setdefault((number, identity, offset), known)
            number = known
        return number

    def _frame(self, key: tuple[int, int]) -> Frame:
        identity, offset = key
        code = self._codes[identity]
        lines = self._lines.get(identity)
        if lines is None:
            starts = list(dis.findlinestarts(code))
            lines = self._lines[identity] = [start for start, _ in starts], [line or 0 for _, line in starts]
        at = bisect.bisect_right(lines[0], offset - 1) - 1
        return code.co_filename, lines[1][at] if at >= 0 else code.co_firstlineno, code.co_name
