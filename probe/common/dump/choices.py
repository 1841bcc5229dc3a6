"""The choices of calls: the indices that a router, top-k or argmax returned, and the margin of each choice.

In a journal an entry has them under `CHOICES`, and dump.json never. In sketch.npz they are two further members:

    choices.npy   int32, the indices of all calls one after the other, row by row
    margins.npy   float32, a number for each row of the calls that have margins, one after the other

and "choices" in index.json: by the number of the row of a tensor of indices, a list with the number of indices of a
choice, the number of choices that are kept, the number of those that were made, and true if they have margins.

A choice is one row: the k indices along the dimension that was searched, or one index of argmax. Its margin is the
difference of the last value that was taken and the first that was not.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

if TYPE_CHECKING:
    # Dumps are read without numpy where nothing is asked of it.
    from numpy.typing import NDArray

CHOICES = "choices"
"""The key of an entry in a journal."""
INDICES_MEMBER, MARGINS_MEMBER = "choices.npy", "margins.npy"
MOST = 16_384
"""Indices that are kept of a call, 64 KiB. A guess: 2,048 tokens of eight experts each."""
MOST_VALUES = 1 << 22
"""Values among which margins are looked for, at most: about 10 ms on a core, where the call itself takes as long."""
_LONGEST = (1 << 31) - 1
"""The largest number that a journal has."""
_HEAD = struct.Struct("<4i")
Numbers = tuple[int, int, int, bool]
"""The indices of a choice, the choices that are kept, those that were made, and if they have margins."""


class Choices(NamedTuple):
    """The choices of one call."""

    indices: NDArray[Any]
    """int32, shape ``[kept, k]``."""
    made: int
    """The choices that were made; the first ones are kept."""
    margins: Optional[NDArray[Any]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """float32, shape ``[kept]``; ``None`` where the values were not looked at."""

    def packed(self) -> bytes:
        """The bytes in a journal."""
        kept, k = self.indices.shape
        margins = b"" if self.margins is None else self.margins.astype("<f4").tobytes()
        return _HEAD.pack(k, kept, self.made, bool(margins)) + self.indices.astype("<i4").tobytes() + margins


def number_kept(k: int, made: int) -> int:
    """The choices that are kept of so many, each of `k` indices."""
    return min(made, MOST // max(k, 1))


class ChoicesWriter:
    """Collects the choices of a dump, and gives the members of its file."""

    def __init__(self) -> None:
        self._numbers: dict[int, Numbers] = {}
        self._indices: list[bytes] = []
        self._margins: list[bytes] = []

    def take(self, row: int, packed: object) -> None:
        """Keep the choices of a row; bytes that are none, as a damaged journal has them, are left out."""
        if type(packed) is not bytes or len(packed) < _HEAD.size:
            return
        k, kept, made, has_margins = _HEAD.unpack_from(packed)
        end = _HEAD.size + 4 * k * kept
        if k < 1 or kept < 0 or made < kept or len(packed) != end + (4 * kept if has_margins else 0):
            return
        self._numbers[row] = k, kept, made, bool(has_margins)
        self._indices.append(packed[_HEAD.size : end])
        self._margins.append(packed[end:])

    @property
    def numbers(self) -> dict[int, Numbers]:
        """The numbers of each row."""
        return self._numbers

    def members(self) -> dict[str, bytes]:
        """The members by their names; none without choices."""
        if not self._numbers:
            return {}
        parts = ((INDICES_MEMBER, "<i4", self._indices), (MARGINS_MEMBER, "<f4", self._margins))
        return {name: _header(dtype, sum(map(len, rows)) // 4) + b"".join(rows) for name, dtype, rows in parts}


def _header(dtype: str, count: int) -> bytes:
    """The beginning of an .npy file of version 1.0 with one dimension."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({count},), }}"
    padded = text + " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded.encode()


def _array(member: bytes, dtype: str, count: int) -> NDArray[Any]:
    """The numbers of a member, whose header is that of so many."""
    import numpy as np

    header = _header(dtype, count)
    if not member.startswith(header) or len(member) != len(header) + 4 * count:
        raise ValueError(f"{len(member)} bytes of choices are not {count} numbers of type {dtype}")
    return np.frombuffer(member, dtype, offset=len(header))


class ChoicesTable:
    """The choices of a dump.

    Args:
        numbers: By the number of a row, as in index.json.
        members: The bytes of both members.

    Raises:
        ValueError: they do not belong together.
    """

    def __init__(self, numbers: dict[int, Numbers], members: tuple[bytes, bytes]) -> None:
        for row, (k, kept, made, _) in numbers.items():
            if not 1 <= k <= _LONGEST or not 0 <= kept <= made:
                raise ValueError(f"choices of row {row}: {kept} of {made}, {k} indices each")
        indices = _array(members[0], "<i4", sum(k * kept for k, kept, _, _ in numbers.values()))
        margins = _array(members[1], "<f4", sum(kept for _, kept, _, has_margins in numbers.values() if has_margins))
        self._of: dict[int, Choices] = {}
        first = first_margin = 0
        for row, (k, kept, made, has_margins) in numbers.items():
            mine = indices[first : first + k * kept].reshape(kept, k)
            its = margins[first_margin : first_margin + kept] if has_margins else None
            self._of[row] = Choices(mine, made, its)
            first, first_margin = first + k * kept, first_margin + kept * has_margins

    def at(self, row: int) -> Choices | None:
        """The choices of a row; ``None`` where it has none."""
        return self._of.get(row)
