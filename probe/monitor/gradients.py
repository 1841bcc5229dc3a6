"""Two runs of the gradient probe compared by the signs of their gradients."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from probe.common.dump.naming import file_name
from probe.common.errors import MsprobeException
from probe.common.files import make_folder, replacing
from probe.common.report.csv_lines import csv_line
from probe.monitor.directions import Turn, turn_lines
from probe.monitor.gradient_files import GradientFiles, probed_ranks

# --- comparing


LEAST_AT_FIRST = 0.97
"""msProbe's rule of thumb, as documented: less in the first step is suspicious."""
LARGEST_FALL = 0.03
"""Likewise: so is a fall by more than this from one step to the next."""
_MOST_SHOWN = 5
"""Suspicions that the text lists; a guess."""


class Suspicion(NamedTuple):
    """A step at which the signs of a gradient agree less than they should."""

    rank: int
    step: int
    parameter: str
    similarity: float
    before: float | None
    """The similarity in the step before; ``None`` in the first one."""

    def text(self) -> str:
        """One sentence."""
        reason = f"at least {LEAST_AT_FIRST} is expected in the first step"
        if self.before is not None:
            reason = f"it was {self.before:.4f} in the step before, and a fall by {LARGEST_FALL} is allowed"
        where = f"rank {self.rank}, step {self.step}: {self.parameter}"
        return f"{where} has a similarity of {self.similarity:.4f}; {reason}."


@dataclass
class RankSimilarity:
    """The similarities of one rank.

    Args:
        rank: The number.
        steps: The steps that both runs have, ascending.
        parameters: The names, in the order of the tables.
        similarity: By step and parameter, the share of elements whose signs are equal.
        total: By step, the share over all parameters, each weighted by its elements.
    """

    rank: int
    steps: Sequence[int]
    parameters: list[str] = field(default_factory=list)
    similarity: dict[tuple[int, str], float] = field(default_factory=dict)
    total: dict[int, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def line(self, parameter: str | None) -> list[tuple[int, float]]:
        """The similarity of a parameter by step, or with ``None`` that of all."""
        if parameter is None:
            return sorted(self.total.items())
        found = self.similarity
        return [(step, found[step, parameter]) for step in self.steps if (step, parameter) in found]

    def suspicions(self) -> list[Suspicion]:
        """Suspicious steps of parameters, by step."""
        found = []
        for parameter in self.parameters:
            before: float | None = None
            for step, value in self.line(parameter):
                is_low = value < LEAST_AT_FIRST if before is None else before - value > LARGEST_FALL
                if is_low:
                    found.append(Suspicion(self.rank, step, parameter, value, before))
                before = value
        return sorted(found, key=lambda each: (each.step, self.parameters.index(each.parameter)))


def compare_runs(target: str, golden: str) -> list[RankSimilarity]:
    """Compare each rank that both runs have.

    Args:
        target, golden: The ``dump_path`` of each.

    Raises:
        MsprobeException: a path is no folder of the gradient probe, the runs have no rank or no step in common, or
            there are no signs, as with ``grad_level`` ``L0``.
    """
    one, other = _ranks_of(target), _ranks_of(golden)
    both = [rank for rank in one if rank in other]
    if not both:
        raise MsprobeException(f"{target} has {_text(one)} and {golden} has {_text(other)}; none is in both.")
    found = [_rank_similarity(rank, one[rank], other[rank]) for rank in both]
    left = sorted({*one, *other} - {*both})
    if left:
        found[0].notes.append(f"rank {', '.join(map(str, left))} is in one of the runs only, and is not compared.")
    return found


def _ranks_of(path: str) -> Mapping[int, GradientFiles]:
    if not isinstance(path, str) or not os.path.isdir(path):
        raise MsprobeException(f"{path!r} is no folder; allowed: the dump_path of a run with task grad_probe.")
    found = probed_ranks(path)
    if not found:
        allowed = "rank<R>/grad_summary_0.csv and more, which task grad_probe writes"
        raise MsprobeException(f"{path} has no tables of gradients; allowed: a folder with {allowed}.")
    return found


def _text(found: Mapping[int, GradientFiles]) -> str:
    return f"rank {', '.join(map(str, found))}"


def _rank_similarity(rank: int, one: GradientFiles, other: GradientFiles) -> RankSimilarity:
    mine_of, theirs_of = one.steps, other.steps
    steps = [step for step in mine_of if step in theirs_of]
    if not steps:
        raise MsprobeException(f"{one.folder} and {other.folder} have no step in common.")
    found = RankSimilarity(rank, steps)
    left = len({*mine_of, *theirs_of}) - len(steps)
    if left:
        found.notes.append(f"rank {rank}: {left} steps are in one of the runs only, and are not compared.")
    order: dict[str, None] = {}
    unlike: dict[str, None] = {}
    for step in steps:
        mine, theirs = one.shapes(step), other.shapes(step)
        equal_signs = elements = 0
        for parameter, shape in mine.items():
            if theirs.get(parameter) != shape:
                unlike[parameter] = None
                continue
            signs, others = one.signs(step, parameter, shape), other.signs(step, parameter, shape)
            if signs is None or others is None or not signs.size:
                continue
            order[parameter] = None
            equal = int(np.count_nonzero(signs == others))
            found.similarity[step, parameter] = equal / signs.size
            equal_signs, elements = equal_signs + equal, elements + signs.size
        unlike.update((name, None) for name in theirs if name not in mine)
        if elements:
            found.total[step] = equal_signs / elements
    found.parameters = list(order)
    if not order:
        text = f"{one.folder} and {other.folder} have no signs of a parameter in common"
        raise MsprobeException(f'{text}; collect both with "grad_level" "L1" or "L2".')
    if unlike:
        first = next(iter(unlike))
        text = f"{len(unlike)} parameters are in one of the runs only or have another shape, such as {first}"
        found.notes.append(f"rank {rank}: {text}; they are not compared.")
    return found


def lines_of(found: Sequence[RankSimilarity], turn: Turn | None = None) -> list[str]:
    """Text of a comparison: notes, the first turn, and the suspicious steps, the earliest first."""
    suspicions = sorted((each for rank in found for each in rank.suspicions()), key=lambda each: each.step)
    steps = sum(len(rank.steps) for rank in found)
    lines = [note for rank in found for note in rank.notes]
    lines += [] if turn is None else turn_lines(turn)
    if not suspicions:
        return [*lines, f"no suspicious gradient in {steps} steps of {len(found)} ranks."]
    first = suspicions[0].text()
    lines.append(f"first suspicious gradient: {first}")
    lines += [each.text() for each in suspicions[1:_MOST_SHOWN]]
    left = len(suspicions) - _MOST_SHOWN
    return [*lines, f"{left} more are suspicious."] if left > 0 else lines


# --- picture


_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 624, 20, 316
_GREY, _BLACK, _BLUE, _RED = (224, 224, 224), (48, 48, 48), (31, 119, 180), (200, 40, 40)
_DIGITS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Rows of three pixels each, as octal digits."""
_GLYPHS = {**{str(at): rows for at, rows in enumerate(_DIGITS)}, ".": "00002"}
_SCALE = 3
"""Pixels of the picture for one of a digit."""
_TICKS = 5
"""Labels on an axis; a guess."""


def line_picture(points: Sequence[tuple[int, float]], limit: float) -> bytes:
    """A PNG with the values of steps between 0 and 1, and a red line at `limit`.

    Args:
        points: Steps and values; the lowest value is the lower edge of the picture.
    """
    canvas = np.full((_HEIGHT, _WIDTH, 3), 255, np.uint8)
    low = min([limit, *(value for _, value in points)])
    low = max(float(np.floor((low - 0.02) * 20) / 20), 0.0)
    first, last = (points[0][0], points[-1][0]) if points else (0, 0)

    def x_of(step: float) -> float:
        return _LEFT + (step - first) / max(last - first, 1) * (_RIGHT - _LEFT)

    def y_of(value: float) -> float:
        return _TOP + (1 - value) / (1 - low) * (_BOTTOM - _TOP)

    for value in np.linspace(low, 1, _TICKS):
        _line(canvas, (_LEFT, y_of(value)), (_RIGHT, y_of(value)), _GREY, 1)
        _write(canvas, f"{value:.3f}", _LEFT - 8, y_of(value) - 7)
    for step in sorted({round(each) for each in np.linspace(first, last, _TICKS)}):
        _line(canvas, (x_of(step), _BOTTOM), (x_of(step), _BOTTOM + 6), _BLACK, 1)
        _write(canvas, str(step), x_of(step) + 2 * _SCALE * len(str(step)), _BOTTOM + 14)
    _line(canvas, (_LEFT, _BOTTOM), (_RIGHT, _BOTTOM), _BLACK, 1)
    _line(canvas, (_LEFT, y_of(limit)), (_RIGHT, y_of(limit)), _RED, 1)
    corners = [(x_of(step), y_of(value)) for step, value in points]
    for corner in corners:
        _line(canvas, corner, corner, _BLUE, 5)
    for before, after in zip(corners, corners[1:]):
        _line(canvas, before, after, _BLUE, 2)
    return _png(canvas)


def _line(canvas: Any, begin: tuple[float, float], end: tuple[float, float], colour: Any, width: int) -> None:
    count = int(max(abs(end[0] - begin[0]), abs(end[1] - begin[1]))) + 1
    columns = np.linspace(begin[0], end[0], count).round().astype(int)
    rows = np.linspace(begin[1], end[1], count).round().astype(int)
    for across in range(width):
        for down in range(width):
            x, y = columns + across - width // 2, rows + down - width // 2
            canvas[np.clip(y, 0, _HEIGHT - 1), np.clip(x, 0, _WIDTH - 1)] = colour


def _write(canvas: Any, text: str, right: float, top: float) -> None:
    """Write a number that ends at the column `right`."""
    left, top = int(right) - 4 * _SCALE * len(text), int(top)
    for at, character in enumerate(text):
        bits = np.array([[int(row) >> shift & 1 for shift in (2, 1, 0)] for row in _GLYPHS[character]], bool)
        pixels = np.kron(bits, np.ones((_SCALE, _SCALE), bool))
        begin = max(left + 4 * _SCALE * at, 0)
        part = canvas[top : top + pixels.shape[0], begin : begin + pixels.shape[1]]
        part[pixels[: part.shape[0], : part.shape[1]]] = _BLACK


def _png(canvas: Any) -> bytes:
    # A byte before each row says that it is stored as it is.
    rows = np.concatenate([np.zeros((_HEIGHT, 1), np.uint8), canvas.reshape(_HEIGHT, -1)], axis=1)
    begin = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", begin), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


# --- results


TABLE, PICTURES, TOTAL = "similarities.csv", "similarities_picture", "summary"


def write_results(folder: str, ranks: Sequence[RankSimilarity]) -> None:
    """Write ``similarities.csv`` and the pictures; in folders ``rank<R>`` if there are several ranks.

    Raises:
        OSError: a file cannot be written.
        MsprobeException: the folder cannot be made.
    """
    for each in ranks:
        of_rank = os.path.join(folder, f"rank{each.rank}") if len(ranks) > 1 else folder
        make_folder(of_rank)
        _write_table(os.path.join(of_rank, TABLE), each)
        _write_pictures(os.path.join(of_rank, PICTURES), each)


def _write_table(path: str, found: RankSimilarity) -> None:
    with replacing(path) as stream:
        stream.write(csv_line(["step", *found.parameters, TOTAL]))
        for step in found.steps:
            values = [found.similarity.get((step, each)) for each in found.parameters]
            stream.write(csv_line([step, *values, found.total.get(step)]))


def _write_pictures(folder: str, found: RankSimilarity) -> None:
    make_folder(folder)
    for parameter in (*found.parameters, None):
        stem = f"{TOTAL}_similarities" if parameter is None else parameter
        with replacing(os.path.join(folder, file_name(stem, ".png"))) as stream:
            stream.write(line_picture(found.line(parameter), LEAST_AT_FIRST))
