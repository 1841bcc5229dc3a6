"""The answer in lines, and as the keys of ``--json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from probe.rollout.kinds.finding import CAUSES
from probe.rollout.numbers import GROUPED
from probe.rollout.report import RolloutReport, WorstToken

SHOWN = 20
"""Sequences in JSON and on the page; all are in the table."""
_ILL = 5
"""Ill responses in the answer for people."""
Decode = Callable[[Sequence[int]], str]
"""The text of token ids."""


def lines(report: RolloutReport, decode: Decode | None = None) -> Iterator[str]:
    """The answer for people: the kind first, then the numbers, the worst tokens and what to do next."""
    yield from summary(report)
    if not report.found or not len(report.tokens):
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
        "trainer, with a dump of each, and compare them: msprobe compare -tp ROLLOUT_DUMP -gp TRAINING_DUMP"
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
