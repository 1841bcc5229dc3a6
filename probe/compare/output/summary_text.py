"""A summary for people: coloured on a terminal that rich can serve, plain lines everywhere else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe.common import log
from probe.common.align.row import ERROR, PASS, WARNING, Row
from probe.common.dump import levels
from probe.compare.output.summary import SUSPECTS, Summary, first_of
from probe.compare.output.tables import VALUES
from probe.compare.result import ComparisonResult, MergedRanks
from probe.compare.rules import DIVERGED, SAME, SUSPECT
from probe.shards.split import numbers

TOO_LITTLE = "not enough in common"
"""How the answer begins where too little was compared to say that nothing diverges."""

# Files of the frameworks themselves; an environment may lie in a folder of that name.
_FRAMEWORK = re.compile(r"[/\\\\](torch|mindspore|mindnlp|mindtorch)[/\\\\](?!.*[/\\\\](site|dist)-packages[/\\\\])")
_COLOURS = {PASS: "green", WARNING: "yellow", ERROR: "bold red"}
# Our own results of rows.
_COLOURS.update({SAME: _COLOURS[PASS], SUSPECT: _COLOURS[WARNING], DIVERGED: _COLOURS[ERROR]})


def headline(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Where two runs diverge, line by line."""
    first = first_of(summaries)
    if first is None or first.divergence is None:
        untold = uncompared(summaries)
        if untold:
            return untold
        if any(levels.differ(summary.levels) or any(end.more for end in summary.truncations) for summary in summaries):
            return [(f"no divergence in what both runs have{_remarks(summaries)}", PASS), *_without_effect(summaries)]
        differs = any(summary.differs for summary in summaries)
        if differs and any(summary.saved_values for summary in summaries):
            return [("saved values differ, and which of them comes from which is not known: see the table", WARNING)]
        what = "what differs is explained by inputs and rounding" if differs else "nothing differs"
        return [(f"no divergence: {what}{_remarks(summaries)}", PASS), *_without_effect(summaries)]
    divergence, call = first.divergence, first.divergence.first
    where = f"{_rank_and_step(first)}: " if len(summaries) > 1 else ""
    names = _record_names(call.record, call.golden_record)
    found = [(f"first divergence: {where}{names}", ERROR)]
    found += [(f"  {text}", "") for text in (call.cause, call.reason) if text]
    if call.module and call.module != call.record:
        found.append((f"  in {call.module}", ""))
    if divergence.merged is not None:
        found.append((f"  {_ranks(divergence.merged)}", ""))
    for side, stack in (("target", divergence.stack), ("golden", divergence.golden_stack)):
        if stack:
            found.append((f"  {side}: {' '.join(users_line(stack).split())}", ""))
    if divergence.suspects:
        names = ", ".join(suspect.record or suspect.golden_record for suspect in divergence.suspects[:SUSPECTS])
        found.append((f"  next: {names}", ""))
    return found


def uncompared(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Why the runs may differ in what was not compared, or could not be; no line if everything was."""
    unmatched = [summary for summary in summaries if not summary.has_matches]
    if unmatched:
        where = f"{_rank_and_step(unmatched[0])}: " if len(summaries) > 1 else ""
        return [(f"no divergence to be found: {where}nothing of the two dumps has a match", ERROR)]
    small = next((summary for summary in summaries if summary.is_too_little_in_common), None)
    if small is not None:
        where = f"{_rank_and_step(small)}: " if len(summaries) > 1 else ""
        number = f"{small.coverage.compared_records} of {small.coverage.records} records have a counterpart"
        return [(f"{TOO_LITTLE} to judge: {where}{number}", WARNING)]
    left_out = next((summary.left_out for summary in summaries if summary.left_out), "")
    if left_out:
        text = f"{TOO_LITTLE} to judge: from {left_out} on, the processes of a pool took other tasks in each run"
        return [(text, WARNING), ("  next: use a pool of one process in both runs", "")]
    unjudged = sum(summary.unjudged.items for summary in summaries)
    if unjudged:
        text = f"no divergence in what could be judged; the values of {_tensors(unjudged)} could not be"
        return [(text, WARNING)]
    return []


def _ranks(merged: MergedRanks) -> str:
    """On which ranks a call is that several may make together."""
    ranks = numbers(merged.ranks)
    if len(merged.ranks) == 1:
        return f"on rank {ranks}"
    if not merged.differing or merged.differing == merged.ranks:
        return f"on ranks {ranks}, which make this call together"
    which = f"rank{'' if len(merged.differing) == 1 else 's'} {numbers(merged.differing)}"
    return f"on {which}, whose part differs; ranks {ranks} make this call together"


def _remarks(summaries: Sequence[Summary]) -> str:
    """What is to be known of a comparison without a divergence: differences without effect, and what was left out."""
    text = ""
    if without_effect := sum(len(summary.without_effect) for summary in summaries):
        text += f"; {without_effect} difference{'' if without_effect == 1 else 's'} without effect"
    if not all(summary.coverage.is_whole for summary in summaries):
        compared = sum(summary.coverage.compared_records for summary in summaries)
        text += f"; {compared} of {sum(summary.coverage.records for summary in summaries)} records compared"
    return text


def _without_effect(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """The first differences that change no value, those of one kind in one line."""
    records: dict[str, dict[str, None]] = {}
    for summary in summaries:
        for each in summary.without_effect:
            records.setdefault(each.reason, {})[each.record or each.golden_record] = None
    return [
        (f"  without effect: in {_first(list(of_reason)[:1], len(of_reason))}, {reason}", "")
        for reason, of_reason in list(records.items())[:SUSPECTS]
    ]


def users_line(stack: Sequence[str]) -> str:
    """The innermost line of a call stack that is not a framework's own."""
    return next((line for line in stack if not _FRAMEWORK.search(line)), stack[0])


def lines(summary: Summary) -> list[tuple[str, str]]:
    """Counts and findings line by line, each with the verdict it is about or an empty text."""
    where = _rank_and_step(summary)
    counts = ", ".join(f"{number} {result}" for result, number in summary.counts.items())
    found = [(f"{where + ': ' if where else ''}{summary.rows} rows by {summary.mode}: {counts}", summary.worst)]
    found += [(f"  {text}", WARNING) for text in hints(summary)]
    if summary.suspects:
        first, *others = summary.suspects
        name, message = _record_names(first.record, first.golden_record), first.message.partition(": ")[2]
        found.append((f"  first {first.verdict}: {name}: {message}", first.verdict))
        if others:
            names = ", ".join(suspect.record for suspect in others)
            more = summary.suspect_records - len(summary.suspects)
            found.append((f"  then: {names}{f' and {more} more' if more else ''}", ""))
    if summary.unjudged.items:
        unjudged = summary.unjudged
        names = _first(unjudged.first, unjudged.items)
        found.append((f"  not judged: the values of {_tensors(unjudged.items)}: {names}", WARNING))
    if summary.target_only or summary.golden_only:
        text = f"  without match: {summary.target_only} items of the target, {summary.golden_only} of the golden dump"
        found.append((text, WARNING))
        for side, alone in (("target", summary.target_unmatched), ("golden", summary.golden_unmatched)):
            if alone.records:
                found.append((f"    only {side}: {_first(alone.first, alone.records)}", ""))
    if summary.layers is not None:
        layers = summary.layers
        found.append((f"  layers: {layers.matched} matched, {layers.renamed} under other names, as proposed", ""))
        if layers.names:
            found.append((f"    {_first(layers.names, layers.rules)}", ""))
        if layers.file:
            found.append((f"    edit {layers.file} and give it with -lm to have it otherwise", ""))
    found += [(f"  table: {table}", "") for table in summary.tables]
    return found


def hints(summary: Summary | ComparisonResult) -> list[str]:
    """The reason why one side lacks what the other has, where the dumps themselves tell."""
    return [text for text in (levels.in_words(summary.levels), *map(str, summary.truncations)) if text]


def _first(names: Sequence[str], number: int) -> str:
    more = number - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _tensors(number: int) -> str:
    return f"{number} tensor{'' if number == 1 else 's'}"


def _rank_and_step(summary: Summary) -> str:
    return " ".join(part for part in (summary.step, summary.label) if part)


def _record_names(record: str, golden: str) -> str:
    if not record:
        return f"{golden} (golden only)"
    return record if golden in ("", record) else f"{record} (golden: {golden})"


def print_metrics(rows: Iterable[Row], algorithms: Sequence[str] = ()) -> None:
    """A log line for each pair of tensors whose values were compared; `algorithms` are columns of the user's own."""
    for row in rows:
        if row.target is not None and row.golden is not None:
            metrics = ", ".join(f"{name} {value}" for name, value in zip((*VALUES, *algorithms), row.metrics))
            log.info(f"{row.target.name} and {row.golden.name}: {metrics}")


def styled_lines(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """Where the runs diverge, then each pair of dumps; each line with a style of rich, or an empty text."""
    found = headline(summaries)
    for summary in summaries:
        found += lines(summary)
    return [(text, _COLOURS.get(verdict, "")) for text, verdict in found]
