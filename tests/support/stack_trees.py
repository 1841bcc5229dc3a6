"""Call stacks made from lists of frames, as a journal takes them."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.callstack import Frame, StackTree


def stacks_of(frames: Sequence[Frame], first: int = 0) -> StackTree[Frame]:
    """One stack, of `frames` with the innermost one first; its number is `first` plus the frames below that one."""
    tree: StackTree[Frame] = StackTree()
    for at, frame in enumerate(reversed(frames)):
        tree.add(first + at, first + at - 1 if at else -1, frame)
    return tree
