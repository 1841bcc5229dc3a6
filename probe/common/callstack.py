"""Call stacks, taken as code objects and instruction offsets and turned into text once per distinct stack.

No source is read while the user's program runs; `probe.common.dump.stack_text` reads it when a dump is written.
"""

from __future__ import annotations

import itertools
import os
import sys
from array import array
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType

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
        rest: the key of the frames below that.
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


_FRAME_BYTES = 16
# A stack of forty frames takes 8 us in Python.
walk = walk_in_python if _frames is None else _frames.walk


class CallStacks:
    """Gives every distinct stack a number.

    The key of a stack is the identity of its code objects and the offsets in them: hashing code objects themselves
    would hash their constants and bytecode each time.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._next = itertools.count()
        self._own: dict[int, bool] = {}
        # Keeps every code object that was seen alive, so that an identity is never given to another one.
        self._codes: dict[int, CodeType] = {}
        self.frames: dict[int, list[Frame]] = {}
        """The frames of every stack, by its number, innermost first."""

    def current(self, outer: FrameType | None = None, outer_stack: int = -1) -> int:
        """The number of the stack without frames of the tool, as the user's program sees it.

        `outer`, if it is still below, is where the stack `outer_stack` was taken: the innermost of its frames. It has
        gone on since, but what is below it is waiting for it and the same, and is not walked again.
        """
        frame = sys._getframe(1)
        if outer_stack < 0:
            found = walk(frame, self._own, self._see, None, b"")
        else:
            found = walk(frame, self._own, self._see, outer, self._keys[outer_stack][_FRAME_BYTES:])
        number = self._numbers.get(found)
        if number is None:
            number = self._number(found, frame)
        return number

    def locations(self, number: int) -> list[CodeLocation]:
        """The frames of a stack, by its number, outermost first."""
        key = array("Q", self._keys[number])
        pairs = zip(key[::2], key[1::2])
        return [(self._codes[identity], offset - 1) for identity, offset in pairs][::-1]

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

    def _number(self, key: bytes, frame: object) -> int:
        frames: list[Frame] = []
        walk = frame
        while walk is not None:
            code: CodeType = walk.f_code  # type: ignore[attr-defined]
            if not self._own[id(code)]:
                frames.append((code.co_filename, walk.f_lineno or 0, code.co_name))  # type: ignore[attr-defined]
            walk = walk.f_back  # type: ignore[attr-defined]
        # Last of all the number becomes known, that of the first of the threads that meet here; those of the others are
        # never used. A lock would not do: the call that a signal's function interrupts could hold it.
        number = next(self._next)
        self._keys[number] = key
        self.frames[number] = frames
        return self._numbers.setdefault(key, number)
