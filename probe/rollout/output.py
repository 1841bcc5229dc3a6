"""The answer of a check: its lines, JSON, CSV, and the page with its charts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probe.common import files
from probe.common.errors import FileCheckException, MissingDependency
from probe.common.harmless_text import paragraph, printable, table
from probe.common.report.csv_lines import csv_line
from probe.common.report.json_values import to_json
from probe.common.report.page.filling import table_page
from probe.rollout.kinds.finding import CAUSES
from probe.rollout.report import GROUPED, RolloutReport, WorstToken
from probe.rollout.response_anomaly import anomaly_column

SHOWN = 20
"""Sequences in JSON and on the page; all are in the table."""
_ILL = 5
"""Ill responses in the answer for people."""
Decode = Callable[[Sequence[int]], str]
"""The text of token ids."""


def lines(report: RolloutReport, decode: Decode | None = None) -> Iterator[str]:
    """The answer for people: the kind first, then the numbers, the worst tokens and what to do next."""
    yield from summary(report)
    # Weights may differ where log-probabilities do not.
    if not report.found or not len(report.tokens) or not report.worst:
        return
    yield "tokens with the largest differences:"
    yield from (f"  {_token(each, decode)}" for each in report.worst)
    yield from advice(report)


def summary(report: RolloutReport) -> Iterator[str]:
    """The kinds, what else there is to know of them, and the most important numbers."""
    yield report.line
    for finding in report.findings[1:]:
        yield f"also {finding.kind}: {finding.sentence}"
    if report.kind in CAUSES:
        yield f"usual causes: {CAUSES[report.kind]}"
    if report.judgement.is_assumed:
        yield (
            "no dtype is given, so any of float32, float16 and bfloat16 is allowed; --dtype NAME says which one both "
            "sides compute in, and smaller mismatches are found"
        )
    yield from report.remarks
    if not len(report.tokens):
        return
    yield from _numbers(report)
    yield from _anomalies(report)


def advice(report: RolloutReport) -> Iterator[str]:
    """The sequence to look at, and the dumps to take of it."""
    sequence = report.sequence
    name, of_sequence = report.tokens.names[sequence], report.by_sequence
    mean, most = (float(of_sequence[f"sampling_logp_difference/{each}"][sequence]) for each in ("mean", "max"))
    yield (
        f"look at sequence {name}{_of(report, sequence)}: {int(of_sequence['tokens'][sequence])} tokens, mean absolute "
        f"difference {mean:.3g} nats, largest {most:.3g}"
    )
    yield (
        f"next: run prompt and response of sequence {name} once through the rollout engine and once through the "
        "trainer, with a dump of each, and compare them: msprobe compare ROLLOUT_DUMP TRAINING_DUMP"
    )


def _numbers(report: RolloutReport) -> Iterator[str]:
    found = report.numbers
    of_tokens, of_sequences = int(found["tokens"]), int(found["sequences"])
    left = f" ({report.tokens.masked_out} masked out)" if report.tokens.masked_out else ""
    yield (
        f"{of_tokens} token{'s' * (of_tokens != 1)}{left} in {of_sequences} sequence{'s' * (of_sequences != 1)}: "
        "absolute difference of log-probabilities in nats: mean "
        f"{found['sampling_logp_difference/mean']:.3g}, median {found['logp_difference/p50']:.3g}, p99 "
        f"{found['logp_difference/p99']:.3g}, largest {found['sampling_logp_difference/max']:.3g}"
    )
    yield (
        f"kl {found['kl']:.3g}, k3_kl {found['k3_kl']:.3g}, log_ppl_diff {found['log_ppl_diff']:.3g}, chi2_token "
        f"{found['chi2_token']:.3g}, correlation of probabilities {found['rollout_actor_probs_pearson_corr']:.6g}, "
        f"{100 * found['ratio_outside_0.8_1.25']:.3g} % of ratios outside [0.8, 1.25]"
    )
    if "update/kl" in found:
        yield (
            f"the update since then: mean absolute difference {found['update/logp_difference/mean']:.3g} nats, kl "
            f"{found['update/kl']:.3g}"
        )


def _anomalies(report: RolloutReport) -> Iterator[str]:
    cells = report.anomaly_of
    if cells:
        shown = "; ".join(f"sequence {name}: {cell}" for name, cell in list(cells.items())[:_ILL])
        more = f"; {len(cells) - _ILL} more" if len(cells) > _ILL else ""
        yield f"{len(cells)} of {len(report.tokens.lengths)} responses are ill: {shown}{more}"


def _of(report: RolloutReport, sequence: int) -> str:
    """The step and the rank of a sequence, where they are known."""
    tokens = report.tokens
    known = [f"{name} {values[sequence]}" for name, values in (("step", tokens.steps), ("rank", tokens.ranks))
             if values is not None]  # fmt: skip
    return f" ({', '.join(known)})" if known else ""


def _token(token: WorstToken, decode: Decode | None) -> str:
    steps = ("step", token.step), ("rank", token.rank)
    known = "".join(f"{name} {value}, " for name, value in steps if value is not None)
    of_id = "" if token.token is None else f" (id {token.token})"
    text = (
        f"{known}sequence {token.sequence}, token {token.position}{of_id}: rollout {token.rollout:.4g}, training "
        f"{token.training:.4g}"
    )
    context = _context(token, decode)
    return f"{text}, in {context}" if context else text


def _context(token: WorstToken, decode: Decode | None) -> str:
    """The tokens around one, which has brackets; empty if no ids were given."""
    if decode is not None and token.context:
        before, after = token.context[: token.at], token.context[token.at + 1 :]
        return f"{decode(before)!r} [{decode(token.context[token.at : token.at + 1])!r}] {decode(after)!r}"
    ids = (f"[{each}]" if index == token.at else str(each) for index, each in enumerate(token.context))
    return " ".join(ids)


def worst_tokens(report: RolloutReport, decode: Decode | None = None) -> list[dict[str, Any]]:
    """The tokens with the largest differences as rows of a table."""
    return [
        {
            "step": each.step, "rank": each.rank, "sequence": each.sequence, "token": each.position, "id": each.token,
            "rollout": each.rollout, "training": each.training, "difference": each.rollout - each.training,
            "in": _context(each, decode),
        }
        for each in report.worst
    ]  # fmt: skip


def as_json(report: RolloutReport, decode: Decode | None = None) -> dict[str, Any]:
    """The keys of the command."""
    return {
        "kind": report.kind,
        "kinds": report.kinds,
        "line": report.line,
        "findings": [
            {"kind": each.kind, "sentence": each.sentence, "numbers": _plain(dict(each.numbers))}
            for each in report.findings
        ],
        "remarks": list(report.remarks),
        "rounding": {
            "dtype": report.judgement.dtype, "explained": report.judgement.explained, "size": report.judgement.size,
            "assumed": report.judgement.is_assumed,
        },
        "numbers": dict(report.numbers),
        "sequences": sequences(report) if len(report.tokens) else [],
        "tokens": [_token_keys(each, decode) for each in report.worst] if len(report.tokens) else [],
        "anomalies": [
            {"sequence": _plain(report.tokens.names[each.sequence]), "kind": each.kind, "window": list(each.window),
             "windows": each.windows}
            for each in report.anomalies
        ],
    }  # fmt: skip


def sequences(report: RolloutReport) -> list[dict[str, Any]]:
    """The sequences with the largest mean differences, the one to look at first."""
    columns, tokens = report.by_sequence, report.tokens
    order = np.argsort(-columns["sampling_logp_difference/mean"], kind="stable")[:SHOWN].tolist()
    first = report.sequence
    return [
        {
            "sequence": _plain(tokens.names[number]),
            "step": None if tokens.steps is None else _plain(tokens.steps[number]),
            "rank": None if tokens.ranks is None else _plain(tokens.ranks[number]),
            **{name: _plain(columns[name][number]) for name in GROUPED},
            "anomaly": report.anomaly_of.get(tokens.names[number], ""),
        }
        for number in [first, *(each for each in order if each != first)][:SHOWN]
    ]


def _token_keys(token: WorstToken, decode: Decode | None) -> dict[str, Any]:
    found = {
        "sequence": _plain(token.sequence), "position": token.position, "step": token.step, "rank": token.rank,
        "token": token.token, "rollout": token.rollout, "training": token.training, "context": list(token.context),
        "at": token.at,
    }  # fmt: skip
    if decode is not None and token.context:
        found["text"] = decode(token.context)
    return found


def _plain(value: Any) -> Any:
    """A value in types of Python."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.item() if isinstance(value, np.generic) else value


# --- charts


Array = NDArray[Any]
_ROWS, _COLUMNS = 48, 96
_CELL = 11
"""Pixels of a cell of a heat map, at least: a digit is as wide."""
_WIDTH = 880
"""Width of a heat map, in pixels; a cell is never narrower than high."""
_NAMES, _LONGEST_NAME = 64, 10
"""Pixels for names on the left, and the characters that fit there."""
_STEP_NAMES = 16
"""Labels below a heat map, at most; a guess."""
_LEAST, _MOST = -6.0, 1.0
"""Decimal logarithms of differences between which colours run."""
_SHADES = 12
"""Colours of a heat map; a guess."""


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


# --- page


_STYLE = """svg{max-width:100%;height:auto;display:block}.bar,.dot{fill:var(--info)}
.line{fill:none;stroke:var(--info);stroke-width:2}.axis{stroke:var(--line)}text{font-size:11px;fill:var(--soft)}
.middle{text-anchor:middle}.end{text-anchor:end}.wide{overflow-x:auto}td,th{white-space:nowrap}
p{max-width:110ch}.next p{color:var(--text)}
"""


def page(report: RolloutReport, decode: Decode | None = None) -> str:
    """The page of a report."""
    title, *others = summary(report)
    parts = [*map(paragraph, others)]
    if len(report.tokens):
        if report.found:
            parts += ['<div class="next">', *map(paragraph, advice(report)), "</div>"]
        parts += _charts(report)
        if report.found:
            parts += ["<h2>Tokens with the largest differences</h2>", _table(worst_tokens(report, decode))]
        columns = ("sequence", "step", "rank", *GROUPED, "anomaly")
        rows = [{name: each[name] for name in columns} for each in sequences(report)]
        parts += ["<h2>Sequences with the largest differences</h2>", _table(rows)]
        numbers = [{"name": name, "value": value} for name, value in report.numbers.items()]
        parts += ["<h2>Numbers</h2>", _table(numbers)]
    window = f"{report.kind}: rollout against training"
    return table_page(window, title, parts, report.found, _STYLE + shades())


def _charts(report: RolloutReport) -> list[str]:
    found = [
        "<h2>Differences by sequence and position</h2>",
        paragraph("A row for each sequence, those with the largest differences first, and a column for each position."),
        legend(),
        heat_map(report),
        "<h2>Histogram of absolute differences, in nats</h2>",
        histogram(report),
    ]
    steps = by_step(report)
    return [*found, "<h2>Mean absolute difference by step</h2>", steps] if steps else found


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table of the columns in which any row has something."""
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] not in (None, "") for row in rows)]
    cells = ([_shown(row[name]) for name in columns] for row in rows)
    return f'<div class="wide">{table(columns, cells)}</div>'


def _shown(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


# --- files


def write(report: RolloutReport, folder: str, decode: Decode | None = None) -> list[str]:
    """Write all files to a folder; existing ones of these names are replaced.

    Raises:
        OSError: a file cannot be written.
        MsprobeException: the folder cannot be made.
    """
    files.make_folder(folder)
    answer = json.dumps(to_json(as_json(report, decode)), indent=1, allow_nan=False)
    written = [_text(folder, "rollout_check.json", answer)]
    if len(report.tokens):
        written += _tables(report, folder)
    written.append(_text(folder, "rollout_check.html", page(report, decode)))
    return written


def _tables(report: RolloutReport, folder: str) -> list[str]:
    tokens = report.tokens
    of_sequences: dict[str, Sequence[Any] | Array] = {"sequence": tokens.names}
    for name, values in (("step", tokens.steps), ("rank", tokens.ranks)):
        if values is not None:
            of_sequences[name] = values
    is_known = tokens.ids is not None or tokens.top is not None
    ill = {"anomaly": anomaly_column(report.anomalies, len(tokens.lengths))} if is_known else {}
    of_positions = report.by_position
    written = [
        _csv_table(folder, "sequences", {**of_sequences, **report.by_sequence, **ill}),
        _csv_table(folder, "positions", {"position": range(len(of_positions["tokens"])), **of_positions}),
    ]
    for name, grouped in (("step", report.by_step), ("rank", report.by_rank)):
        if grouped is not None:
            written.append(_csv_table(folder, f"{name}s", {name: grouped[0], **grouped[1]}))
    return written


def _csv_table(folder: str, name: str, columns: Mapping[str, Sequence[Any] | Array]) -> str:
    path = os.path.join(folder, f"rollout_{name}.csv")
    with files.replacing(path) as stream:
        stream.write(csv_line(list(columns)))
        for row in zip(*(_cells(values) for values in columns.values())):
            stream.write(csv_line(row))
    return path


def _cells(values: Sequence[Any] | Array) -> Iterable[Any]:
    return values if isinstance(values, (list, range, tuple)) else values.tolist()  # type: ignore[union-attr]


def _text(folder: str, name: str, text: str) -> str:
    path = os.path.join(folder, name)
    with files.replacing(path) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))
    return path


# --- decoding


_FILE = "tokenizer.json"


def decoder(path: str) -> Decode:
    """A function that gives the text of ids.

    Args:
        path: ``tokenizer.json``, or the folder of a model that has it.

    Raises:
        MissingDependency: the package tokenizers is not installed.
        FileCheckException: there is no such file, or it is damaged.
    """
    try:
        import tokenizers
    except ImportError:
        raise MissingDependency("--tokenizer needs the package tokenizers: pip install tokenizers.") from None
    file = os.path.join(path, _FILE) if os.path.isdir(path) else path
    if not os.path.isfile(file):
        raise FileCheckException(f"--tokenizer: {file} does not exist; give {_FILE} or the folder that has it.")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:
        # The package raises Exception itself.
        raise FileCheckException(f"--tokenizer: {file}: {str(error).splitlines()[0]}.") from None

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    return decode
