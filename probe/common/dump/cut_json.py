"""The readable part of a JSON file that is cut short: the members of an object that are whole.

Nothing is guessed: what remains is the file itself up to the end of its last whole member, with the brackets closed
that are open there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.common.dump.naming import parse

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)|[{}\[\],]', re.DOTALL)
_KEY = re.compile(rb'"([^"\\]{1,300})"\s*:')
_OPENING, _CLOSING = b"{[", b"}]"


def whole_parts(content: bytes, depth: int) -> Iterator[bytes]:
    """JSON texts of what is whole of a text that ends too early, the longest first; nothing where it does not.

    Args:
        content: the text.
        depth: how deep the members are that are kept or left out whole: 1 for those of the outermost object, 2 for
            those of an object in it.
    """
    open_brackets = bytearray()
    ends: dict[int, tuple[int, bytes]] = {}
    """The end of the last whole member of each depth, and the brackets to close there."""
    begin = last_begin = 0
    """The begin of a member at `depth`, and that of the last whole one."""
    for token in _TOKEN.finditer(content):
        first = token[0][0]
        if first == ord('"'):
            if not token[1]:
                break  # The text ends inside of it.
        elif first in _OPENING:
            open_brackets.append(first)
            if len(open_brackets) == depth:
                begin = token.end()
        elif first in _CLOSING:
            if not open_brackets:
                return
            open_brackets.pop()
            level = len(open_brackets)
            if level <= depth:
                ends[level] = token.end(), _closed(open_brackets)
                last_begin = begin
        elif len(open_brackets) <= depth:
            level = len(open_brackets)
            ends[level] = token.start(), _closed(open_brackets)
            if level == depth:
                last_begin, begin = begin, token.end()
    if not open_brackets:
        return
    for end, closing in sorted(ends.values(), reverse=True):
        # Where a bracket is lost in the middle, what follows is inside of one member.
        is_one_each = max(map(_calls, (content[last_begin:end], content[end:]))) <= 1
        if closing and (depth == 1 or is_one_each):
            yield content[:end] + closing


def _closed(open_brackets: bytearray) -> bytes:
    return bytes(ord("}") if bracket == ord("{") else ord("]") for bracket in reversed(open_brackets))


def _calls(content: bytes) -> int:
    """The number of names of calls that a text has as keys."""
    return sum(parse(found[1].decode(errors="replace")) is not None for found in _KEY.finditer(content))
