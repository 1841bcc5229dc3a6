"""A line over steps as a PNG picture, drawn with numpy alone."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 624, 20, 316
_GREY, _BLACK, _BLUE, _RED = (224, 224, 224), (48, 48, 48), (31, 119, 180), (200, 40, 40)
_DIGITS = ["75557", "26227", "71747", "71717", "55711", "74717", "74757", "71111", "75757", "75717"]
"""Rows of three pixels each, as octal digits."""
_GLYPHS = {**{str(at): rows for at, rows in enumerate(_DIGITS)}, ".": "00002"}
_SCALE = 3
"""Pixels of the picture for one of a digit."""
_TICKS = 5


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
