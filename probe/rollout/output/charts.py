"""Charts of a page as SVG: differences by position and sequence, their histogram, and one line by steps."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common.terminal_text import printable
from probe.rollout.report import RolloutReport

Array = NDArray[Any]
_ROWS, _COLUMNS = 48, 96
_CELL = 11
_WIDTH = 880
"""Width of a heat map, in pixels; a cell is never narrower than high."""
_NAMES, _LONGEST_NAME = 64, 10
"""Pixels for names on the left, and the characters that fit there."""
_STEP_NAMES = 16
_LEAST, _MOST = -6.0, 1.0
"""Decimal logarithms of differences between which colours run."""
_SHADES = 12


def heat_map(report: RolloutReport) -> str:
    """The largest absolute difference by position (from left to right) and sequence, the worst sequences first."""
    tokens = report.tokens
    size = np.abs(tokens.rollout - tokens.training)
    order = np.argsort(-report.by_sequence["sampling_logp_difference/mean"], kind="stable")[:_ROWS].tolist()
    longest = int(tokens.lengths[order].max())
    tokens_each = -(-longest // _COLUMNS)
    columns = -(-longest // tokens_each)
    wide = max(_WIDTH // columns, _CELL)
    parts = []
    for row, sequence in enumerate(order):
        start, length = int(tokens.starts[sequence]), int(tokens.lengths[sequence])
        name = str(tokens.names[sequence])
        parts.append(_label(-6, (row + 1) * _CELL - 3, name[-_LONGEST_NAME:], "end"))
        most = np.maximum.reduceat(size[start : start + length], np.arange(0, length, tokens_each))
        for column, value in enumerate(most.tolist()):
            first = column * tokens_each
            last = min(first + tokens_each, length) - 1
            where = f"token {first}" if first == last else f"tokens {first} to {last}"
            title = escape(f"sequence {name}, {where}: {value:.3g} nats")
            parts.append(
                f'<rect x="{column * wide}" y="{row * _CELL}" width="{wide}" height="{_CELL}" '
                f'class="h{_shade(value)}"><title>{title}</title></rect>'
            )
    bottom = len(order) * _CELL + 14
    for column in range(0, columns, max(columns // 8, 1)):
        parts.append(_label((column + 0.5) * wide, bottom, str(column * tokens_each), "middle"))
    return _svg(columns * wide, bottom + 4, "".join(parts), "differences by sequence and position", _NAMES)


def _label(x: float, y: float, text: str, anchor: str = "") -> str:
    of_class = f' class="{anchor}"' if anchor else ""
    return f'<text x="{x:g}" y="{y:g}"{of_class}>{escape(printable(text))}</text>'


def _shade(value: float) -> int:
    if not value > 0:
        return 0
    share = (math.log10(value) - _LEAST) / (_MOST - _LEAST)
    return 1 + min(max(int(share * (_SHADES - 1)), 0), _SHADES - 2)


def shades() -> str:
    """The style of the cells, from equal to far off."""
    rules = [".h0{fill:var(--panel)}"]
    for shade in range(1, _SHADES):
        share = shade / (_SHADES - 1)
        rules.append(f".h{shade}{{fill:color-mix(in srgb,var(--bad) {round(100 * share)}%,var(--good) 20%)}}")
    return "".join(rules)


def legend() -> str:
    """The shades, with the differences that they stand for."""
    names = ["equal", f"1e{_LEAST:.0f} nats and less", *[""] * (_SHADES - 3), f"{10**_MOST:g} nats and more"]
    parts, x = [], 0
    for shade, name in enumerate(names):
        parts.append(f'<rect x="{x}" y="0" width="20" height="11" class="h{shade}"/>')
        x += 20
        if name:
            parts.append(_label(x + 5, 10, name))
            x += 12 + 6 * len(name)
    return _svg(x, 14, "".join(parts), "colours of the differences")


def histogram(report: RolloutReport) -> str:
    """The number of tokens by the decimal logarithm of the absolute difference."""
    size = np.abs(report.tokens.rollout - report.tokens.training)
    edges = np.arange(-10.0, 2.01, 0.25)
    with np.errstate(divide="ignore"):
        counts, _ = np.histogram(np.clip(np.log10(size), edges[0], edges[-1] - 1e-9), edges)
    tallest, parts = max(int(counts.max()), 1), []
    for number, count in enumerate(counts.tolist()):
        height = 100 * count / tallest
        low = f"1e{edges[number]:.2f}" if number else "nothing"
        title = escape(f"{count} tokens differ by {low} to 1e{edges[number + 1]:.2f} nats")
        parts.append(
            f'<rect x="{number * 12}" y="{100 - height:.1f}" width="11" height="{height:.1f}" class="bar">'
            f"<title>{title}</title></rect>"
        )
    for power in range(-8, 2, 2):
        parts.append(_label((power + 10) * 48, 114, f"1e{power}", "middle"))
    parts.append(_label(0, 114, "equal"))
    parts.append(_axis(len(counts) * 12, f"{tallest}"))
    return _svg(len(counts) * 12, 118, "".join(parts), "histogram of absolute differences in nats", _NAMES)


def _axis(width: float, highest: str) -> str:
    """The lower line of a chart of a hundred pixels, with the value at its top."""
    line = f'<line x1="0" y1="100" x2="{width:g}" y2="100" class="axis"/>'
    return line + _label(-6, 10, highest, "end") + _label(-6, 100, "0", "end")


def by_step(report: RolloutReport) -> str:
    """The mean absolute difference of each step, as a line; empty where there are no steps."""
    grouped = report.by_step
    if grouped is None or len(grouped[0]) < 2:
        return ""
    steps, columns = grouped
    means = columns["sampling_logp_difference/mean"]
    most, across = max(float(means.max()), 1e-30), 640 / (len(steps) - 1)
    points = [(number * across + 10, 100 - 95 * value / most) for number, value in enumerate(means.tolist())]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="dot"><title>step {step}: {value:.3g} nats</title></circle>'
        for (x, y), step, value in zip(points, steps.tolist(), means.tolist())
    )
    every = -(-len(steps) // _STEP_NAMES)
    names = "".join(_label(x, 116, str(step), "middle") for (x, _), step in list(zip(points, steps.tolist()))[::every])
    content = f'{_axis(660, f"{most:.2g}")}<polyline points="{line}" class="line"/>{dots}{names}'
    return _svg(660, 120, content, "mean absolute difference by step", _NAMES)


def _svg(width: int, height: int, content: str, name: str, left: int = 0) -> str:
    """A figure with some room on the left for names."""
    return (
        f'<svg viewBox="{-left - 2} -2 {width + left + 4} {height + 4}" width="{width + left + 4}" role="img" '
        f'aria-label="{escape(name)}">{content}</svg>'
    )
