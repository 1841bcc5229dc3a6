"""The recent history of every row of a family: a window of sizes on a log scale, and counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from probe.monitor.alerts.rows import FamilyRows, Finding, Flags, Floats, Integers, Kind, kind_of

WINDOW = 32
"""Steps of history. A guess: long enough for one spike in ten steps to be known, short enough to follow a schedule."""
_TINY = 1e-300
"""Keeps a logarithm finite; far below any number of float32."""


class Aligned(Protocol):
    """Rows of a step that a track can be aligned with."""

    @property
    def key(self) -> object: ...

    @property
    def step(self) -> int: ...

    def row_keys(self) -> list[tuple[str, int, int]]: ...


class Track:
    """State by row. All arrays have a position for each row that was ever seen; `at` are those of the present step."""

    def __init__(self) -> None:
        self._positions: dict[tuple[str, int, int], int] = {}
        self._key: object = None
        self.at: Integers | slice = slice(0, 0)
        """The positions of the rows of this step; a slice where these are all rows in their order."""
        self._arrays: dict[str, np.ndarray] = {}
        self._makers: dict[str, Callable[[int], np.ndarray]] = {}
        self._kept: dict[str, tuple[int, Any]] = {}
        self.length = 0
        """The number of rows of this step."""
        self.step = 0

    def align(self, rows: Aligned) -> None:
        """Find the positions of the rows of a step."""
        key, self.step = rows.key, rows.step
        # The same objects in each step are equal at once; otherwise texts are compared, which are mostly the same too.
        if key == self._key:
            return
        known = self._positions
        seen: dict[tuple[str, int, int], int] = {}
        at = []
        for name in rows.row_keys():
            again = seen[name] = seen.get(name, -1) + 1
            # A name that occurs twice in a step has a history for each occurrence.
            at.append(known.setdefault((f"{name[0]}\n{again}" if again else name[0], *name[1:]), len(known)))
        self._key, self.length = key, len(at)
        self._kept.clear()
        in_order = at == list(range(len(known)))
        self.at = slice(0, len(at)) if in_order else np.array(at, dtype=np.int64)
        for field, array in self._arrays.items():
            missing = len(known) - len(array)
            if missing:
                self._arrays[field] = np.concatenate((array, self._makers[field](missing)))

    def position(self, row: int) -> int:
        """The position of one row of this step."""
        return row if isinstance(self.at, slice) else int(self.at[row])

    def kept(self, field: str, steps: int, maker: Callable[[], Any]) -> Any:
        """A value that is made again when the rows change, or after so many steps; 0 is never."""
        known = self._kept.get(field)
        if known is None or (steps and self.step - known[0] >= steps):
            known = self._kept[field] = (self.step, maker())
        return known[1]

    def array(self, field: str, maker: Callable[[int], np.ndarray]) -> np.ndarray:
        """The array of a field for all rows, made when it is first asked for."""
        if field not in self._arrays:
            self._makers[field] = maker
            self._arrays[field] = maker(len(self._positions))
        return self._arrays[field]

    # --- the fields that most rules use

    @property
    def window(self) -> Floats:
        """Shape (rows, `WINDOW`): log10 of sizes, NaN where there is none yet."""
        return self.array("window", lambda rows: np.full((rows, WINDOW), np.nan))

    @property
    def count(self) -> Integers:
        """Values that each row has had."""
        return self.counter("count")

    def counter(self, field: str) -> Integers:
        """A counter for each row."""
        return self.array(field, lambda rows: np.zeros(rows, dtype=np.int64))

    def flags(self, field: str) -> Flags:
        """A mark for each row, such as that of a finding that is reported already."""
        return self.array(field, lambda rows: np.zeros(rows, dtype=np.bool_))

    def begins(self, field: str, holds: Flags) -> Integers:
        """The rows of this step for which something holds that did not hold in their last step."""
        marks = self.flags(field)
        new = holds & ~marks[self.at]
        marks[self.at] = holds
        return np.flatnonzero(new)

    def lasts(self, field: str, holds: Flags, steps: int | Integers) -> Integers:
        """The rows for which something has held for exactly so many steps in a row; `since` has the first of them."""
        counts, since = self.counter(field), self.since(field)
        now = np.where(holds, counts[self.at] + 1, 0)
        counts[self.at] = now
        since[self.at] = np.where(now == 1, self.step, since[self.at])
        return np.flatnonzero(now == steps)

    def since(self, field: str) -> Integers:
        """The step in which the condition of `lasts` began to hold, for each row."""
        return self.counter(f"{field} since")

    def remember(self, sizes: Floats) -> None:
        """Add the sizes of this step to the window of their rows."""
        count, window = self.count, self.window
        if isinstance(self.at, slice):
            rows: Any = np.arange(self.length)
        else:
            rows = self.at
        window[rows, count[rows] % WINDOW] = sizes
        count[rows] += 1

    def leaving(self) -> Floats:
        """The size that `remember` will overwrite, for each row of this step."""
        rows = np.arange(self.length) if isinstance(self.at, slice) else self.at
        found: Floats = self.window[rows, self.count[rows] % WINDOW]
        return found


def size_of(rows: FamilyRows) -> Floats | None:
    """The size of each row: its norm, or its largest absolute value; ``None`` where neither is recorded."""
    norm = rows.column("norm")
    if norm is not None:
        return norm
    largest = rows.column("absmax")
    if largest is not None:
        return largest
    low, high = rows.column("min"), rows.column("max")
    if low is None or high is None:
        return None
    return np.maximum(np.abs(low), np.abs(high))


FLOOR_SHARE = 1e-6
"""A row is compared as if it had at least this share of the root mean square that is typical for its family. Below it a
value is rounding error, as the gradient of a bias before a normalisation is. Above the unit roundoff of float32, 6e-8,
by the length of a sum of some hundred."""


WEIGHT_SHARE = 1e-3
"""The limit for weights, many of which begin at zero, as biases and the second factors of adapters, and then grow.
Measured: the bias of keys in a BERT that was thawed in mid-training grew from 1e-6 to 3e-5 of it by rounding error."""


def floor_of(rows: FamilyRows, sizes: Floats, share: float = FLOOR_SHARE) -> Floats:
    """The size below which each row is noise.

    Args:
        share: Of what is typical for the family.
    """
    numel = np.ones(len(sizes)) if rows.numel is None else np.maximum(rows.numel, 1)
    with np.errstate(invalid="ignore"):
        rms = sizes / np.sqrt(numel)
    rms = rms[np.isfinite(rms) & (rms > 0)]
    typical = float(np.median(rms)) if len(rms) else 0.0
    found: Floats = np.maximum(share * typical * np.sqrt(numel), _TINY)
    return found


def log_size(sizes: Floats, floor: Floats | float) -> Floats:
    """log10 of sizes, none below the floor; what is not finite is NaN."""
    with np.errstate(invalid="ignore"):
        found: Floats = np.log10(np.maximum(sizes, floor))
    found[~np.isfinite(found)] = np.nan
    return found


# --- block


_FLOOR_STEPS = 16
"""Steps after which the floors of rows are found again; the typical size of a family changes slowly."""


@dataclass(frozen=True)
class Block:
    """Families one below the other."""

    families: Sequence[FamilyRows]
    starts: Sequence[int]
    """The first row of each family, and the number of rows."""
    values: Floats
    judged: Flags
    sizes: Floats | None
    """The size of each row; ``None`` where no statistic has it."""

    @staticmethod
    def of(families: Sequence[FamilyRows]) -> Block:
        """The block of families with equal statistics."""
        starts = [0]
        for each in families:
            starts.append(starts[-1] + len(each.names))
        judged = np.concatenate([_judged(each) for each in families])
        values = np.concatenate([each.values for each in families])
        joined = FamilyRows("", (), families[0].ops, values)
        return Block(families, starts, values, judged, size_of(joined))

    @property
    def ops(self) -> tuple[str, ...]:
        return self.families[0].ops

    @property
    def step(self) -> int:
        return self.families[0].step

    @property
    def key(self) -> tuple[object, ...]:
        """Two steps with equal keys have the same rows."""
        return tuple([(each.family, each.key) for each in self.families])

    def column(self, op: str) -> Floats | None:
        """The values of one statistic, or ``None``."""
        return self.values[:, self.ops.index(op)] if op in self.ops else None

    def row_keys(self) -> list[tuple[str, int, int]]:
        """Identity of a row."""
        found = []
        for each in self.families:
            micro, stages = each.micro, each.stages
            for row, name in enumerate(each.names):
                found.append((f"{each.family}\n{name}", micro[row] if micro else 0, stages[row] if stages else 0))
        return found

    def of_kind(self, kind: Kind) -> Flags:
        """True for the rows of families of a kind."""
        return np.concatenate([np.full(len(each.names), kind_of(each.family) is kind) for each in self.families])

    def names(self) -> list[tuple[str, str]]:
        """Family and name of each row."""
        return [(each.family, name) for each in self.families for name in each.names]

    def finding(
        self, row: int, op: str, rule: str, value: float, expected: str, why: str, step: int | None = None
    ) -> Finding:
        """A finding about one row of the block, see `FamilyRows.finding`."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return self.families[index].finding(row - self.starts[index], op, rule, value, expected, why, step)

    def floors(self, track: Track) -> Floats:
        """The size below which each row is noise, which is kept for some steps."""

        def made() -> Floats:
            found = []
            for each in self.families:
                sizes = size_of(each)
                share = WEIGHT_SHARE if kind_of(each.family) is Kind.WEIGHT else FLOOR_SHARE
                found.append(np.zeros(len(each.names)) if sizes is None else floor_of(each, sizes, share))
            return np.concatenate(found)

        found: Floats = track.kept("floors", _FLOOR_STEPS, made)
        return found


def _judged(rows: FamilyRows) -> Flags:
    """True for rows of floating point numbers that are there and not empty."""
    found: Flags = np.ones(len(rows.names), dtype=np.bool_) if rows.judged is None else rows.judged
    return found if rows.numel is None else found & (rows.numel != 0)


def blocks_of(families: Sequence[FamilyRows]) -> list[Block]:
    """The blocks of a step: one, unless families have other statistics than the rest."""
    groups: dict[tuple[str, ...], list[FamilyRows]] = {}
    for each in families:
        if each.names:
            groups.setdefault(each.ops, []).append(each)
    return [Block.of(group) for group in groups.values()]
