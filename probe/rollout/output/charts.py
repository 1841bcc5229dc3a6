"""Charts of a page as SVG: differences by position and sequence, their histogram, and one line by steps."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.rollout.report import RolloutReport

Array = NDArray[Any]
_ROWS, _COLUMNS = 48, 96
_CELL = 8
_LEAST, _MOST = -6.0, 1.0
"""Decimal logarithms of differences between which colours run."""
_SHADES = 12


def heat_map(report: RolloutReport) -> str:
    """The largest absolute difference by position (from left to right) and sequence, the worst sequences first."""
    tokens = report.tokens
    size = np.abs(tokens.rollout - tokens.training)
    order = np.argsort(-report.by_sequence["sampling_logp_difference/mean"], kind="stable")[:_ROWS].tolist()
    longest = int(tokens.lengths[order].max())
    wide = -(-longest // _COLUMNS)
    parts = []
    for row, sequence in enumerate(order):
        start, length = int(tokens.starts[sequence]), int(tokens.lengths[sequence])
        of_sequence = size[start : start + length]
        most = np.maximum.reduceat(of_sequence, np.arange(0, length, wide))
        for column, value in enumerate(most.tolist()):
            first = column * wide
            last = min(first + wide, length) - 1
            where = f"token {first}" if first == last else f"tokens {first} to {last}"
            title = escape(f"sequence {tokens.names[sequence]}, {where}: {value:.3g} nats")
            parts.append(
                f'<rect x="{column * _CELL}" y="{row * _CELL}" width="{_CELL}" height="{_CELL}" '
                f'class="h{_shade(value)}"><title>{title}</title></rect>'
            )
    width, height = -(-longest // wide) * _CELL, len(order) * _CELL
    return _svg(width, height, "".join(parts), "differences by sequence and position")


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
    """The limits of the shades in words."""
    return f"colours run from 1e{_LEAST:.0f} nats and less (green) to {10**_MOST:g} nats and more (red); grey is equal"


def histogram(report: RolloutReport) -> str:
    """The number of tokens by the decimal logarithm of the absolute difference."""
    size = np.abs(report.tokens.rollout - report.tokens.training)
    edges = np.arange(-10.0, 2.01, 0.25)
    with np.errstate(divide="ignore"):
        counts, _ = np.histogram(np.clip(np.log10(size), edges[0], edges[-1] - 1e-9), edges)
    tallest, parts = max(int(counts.max()), 1), []
    for number, count in enumerate(counts.tolist()):
        height = 100 * count / tallest
        low = f"1e{edges[number]:.2f}" if number else "0"
        title = escape(f"{count} tokens differ by {low} to 1e{edges[number + 1]:.2f} nats")
        parts.append(
            f'<rect x="{number * 12}" y="{100 - height:.1f}" width="11" height="{height:.1f}" class="bar">'
            f"<title>{title}</title></rect>"
        )
    for power in range(-10, 3, 2):
        parts.append(f'<text x="{(power + 10) * 48}" y="114">1e{power}</text>')
    return _svg(len(counts) * 12, 118, "".join(parts), "histogram of absolute differences in nats")


def by_step(report: RolloutReport) -> str:
    """The mean absolute difference of each step, as a line; empty where there are no steps."""
    grouped = report.by_step
    if grouped is None or len(grouped[0]) < 2:
        return ""
    steps, columns = grouped
    means = columns["sampling_logp_difference/mean"]
    most, across = max(float(means.max()), 1e-30), 640 / (len(steps) - 1)
    points = [(number * across, 100 - 95 * value / most) for number, value in enumerate(means.tolist())]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" class="dot"><title>step {step}: {value:.3g} nats</title></circle>'
        for (x, y), step, value in zip(points, steps.tolist(), means.tolist())
    )
    return _svg(648, 106, f'<polyline points="{line}" class="line"/>{dots}', "mean absolute difference by step")


def _svg(width: int, height: int, content: str, name: str) -> str:
    return (
        f'<svg viewBox="-2 -2 {width + 4} {height + 4}" width="{width + 4}" role="img" aria-label="{escape(name)}">'
        f"{content}</svg>"
    )
