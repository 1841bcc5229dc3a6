"""A summary for people: coloured on a terminal that rich can serve, plain lines everywhere else."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from msgspec.structs import replace

from probe.common import log
from probe.common.align.calls import ERROR, PASS, WARNING, Row
from probe.common.dump import naming
from probe.common.dump.stack_text import is_same_line, short_frame, users_line
from probe.common.ranges import ranges
from probe.compare import summary as outside
from probe.compare.judgement import FIRST_DIVERGENCE, OTHER_RANDOM_NUMBERS
from probe.compare.result import ComparisonResult, Decision, Divergence, MergedRanks, Mode, Origin, Unexplained
from probe.compare.summary import BATCH_SHAPE, EXAMPLES, SUSPECTS, Summary, first_of, in_words, undecided_in_words
from probe.compare.tables import VALUES

UNTOLD = "cannot be told"
"""The beginning of the answer where nobody can tell that nothing diverges."""
PREVIOUS = "follows"
"""The style of what a divergence has reached."""

_ONE_BY_ONE = 8
"""Ranks of one step that are named one by one where all of them say the same; of a thousand nobody would find the
others. A guess."""
_COLOURS = {PASS: "green", WARNING: "yellow", ERROR: "bold red", PREVIOUS: "dim"}


def headline(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """The answer line by line: where two runs diverge, that they do not, or why nobody can tell.

    The second line is on what differs outside of the model, if anything differs.
    """
    answer, *others = _answer(summaries)
    first = first_of(summaries) or next((each for each in summaries if each.differs), None)
    around = [] if first is None else [(text, WARNING) for text in outside.lines(first.outside)]
    return [answer, *around, *others]


def _answer(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    first = first_of(summaries)
    if first is not None and first.divergence is not None:
        missing = [(f"  missing: {text}", WARNING) for summary in summaries for text in summary.missing]
        return [*_diverged(first, first.divergence, len(summaries) > 1), *_followers(summaries, PREVIOUS), *missing]
    untold = uncompared(summaries) or _undecided(summaries)
    if untold:
        return untold
    if any(naming.differ(summary.levels) or any(end.more for end in summary.truncations) for summary in summaries):
        return [(f"no divergence in what both runs have{_remarks(summaries)}", PASS), *_without_effect(summaries)]
    what = next((summary.explanation for summary in summaries if summary.differs), summaries[0].explanation)
    return [(f"no divergence: {what}{_remarks(summaries)}", PASS), *_without_effect(summaries), *_steps(summaries)]


def _diverged(first: Summary, divergence: Divergence, is_one_of_several: bool) -> list[tuple[str, str]]:
    call = divergence.first
    where = f"{in_words(first.step, first.label)}: " if is_one_of_several else ""
    found = [(f"first divergence: {where}{_module_words(call)}{_record_names(call.record, call.golden_record)}", ERROR)]
    labelled = [("cause:", call.shown_cause), ("effect:", call.shown_reason)]
    if call.rerun is not None:
        labelled.append(("rerun:", call.rerun.text))
    if divergence.merged is not None:
        labelled.append(("ranks:", _ranks(divergence.merged)))
    labelled += _lines_of_code(divergence)
    # Several values of a call may show it.
    later = dict.fromkeys(suspect.record or suspect.golden_record for suspect in divergence.suspects)
    later.pop(divergence.record, None)
    labelled.append(("later:", ", ".join(list(later)[:SUSPECTS])))
    labelled.append(("next:", _next_step(first, call)))
    found += [(f"  {label:7} {text}", "") for label, text in labelled if text]
    for suspect in divergence.suspects:
        if suspect.rerun is not None:
            found.append((f"    {suspect.record or suspect.golden_record}: {suspect.rerun.text}", ""))
    return found


def _next_step(first: Summary, call: Unexplained) -> str:
    """Next step if the dumps show no cause of a value that differs; empty if they show one."""
    if call.cause or call.rerun is not None or call.found is None:
        return ""
    if ".input." in call.item and {"L1", "mix"}.issuperset(first.levels):
        all_functions = "unless they record every function, collect both runs with --api '*'"
        return f"code without a record made this input; {all_functions}"
    if ".output." not in call.item:
        return ""
    if naming.is_module(call.record or call.golden_record):
        return (
            "" if first.levels != ("L0", "L0") else "collect both runs with --level mix to see the calls in this module"
        )
    tells = "msprobe compare --rerun tells whether the call or its inputs are the cause"
    return tells if first.mode is Mode.TENSOR else f"collect both runs with --task tensor; {tells}"


def _module_words(call: Unexplained) -> str:
    """``layers.1.norm (LayerNorm), `` before the call of a function inside of it."""
    return "" if call.module in (call.record, call.golden_record) else _path(call.module)


def _lines_of_code(divergence: Divergence) -> list[tuple[str, str]]:
    """The user's line that made the call: once if it is the same in both runs."""
    target, golden = (users_line(stack) if stack else "" for stack in (divergence.stack, divergence.golden_stack))
    if target and golden and is_same_line(target, golden):
        return [("line:", short_frame(target))]
    return [("target:", short_frame(target)), ("golden:", short_frame(golden))]


def _followers(summaries: Sequence[Summary], style: str) -> list[tuple[str, str]]:
    """The steps and ranks that each divergence has reached, and the first differences of their own."""
    reached: dict[Origin, list[Summary]] = {}
    for summary in summaries:
        if summary.follows is not None:
            reached.setdefault(summary.follows, []).append(summary)
    found = []
    for origin, those in reached.items():
        names = "; ".join(_named(those))
        verb = "is" if len(those) == 1 else "are"
        where = in_words(origin.step, origin.label)
        found.append(
            (f"  {names} {verb} not judged: {where} diverges before {'it' if len(those) == 1 else 'them'}", style)
        )
        for each in those:
            if each.with_effect:
                own = each.with_effect[0]
                where = in_words(each.step, each.label)
                text = f"    another difference: {where}, {own.record or own.golden_record}: {own.shown_reason}"
                found.append((text, style))
                break
    return found


def uncompared(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """The reason why the runs may differ in a part that was not compared, as lines; no line if everything was."""
    untold = next((summary for summary in summaries if summary.uncompared), None)
    if untold is None:
        return []
    why = _cannot_be_told(untold, untold.uncompared, len(summaries) > 1)
    found = [(why, WARNING if untold.has_matches else ERROR)]
    if untold.left_out:
        found.append(("  next:   use a pool of one process in both runs", ""))
    elif untold.missing and not untold.is_too_little_in_common:
        found.append(("  next:   collect the same steps and ranks of both runs, or compare the folders of those", ""))
    elif untold.is_too_little_in_common and any(each.name == BATCH_SHAPE for each in untold.outside):
        how = "of a generation with a cache, compare the prefill with one forward pass over the prompt alone"
        why = "a batch that is packed, padded, or computed in parts has other statistics"
        found.append((f"  next:   give both runs batches of one shape ({how}); {why}", ""))
    elif untold.is_too_little_in_common:
        text = "check that both runs have the same model and weights; a mapping file (-lm, -cm) pairs other names"
        found.append((f"  next:   {text}", ""))
    return found


def _undecided(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """The reason why nobody can tell of what was compared, and what would decide it."""
    untold = next((summary for summary in summaries if summary.untold), None)
    if untold is None:
        return []
    found = [(_cannot_be_told(untold, untold.untold, len(summaries) > 1), PREVIOUS if untold.follows else WARNING)]
    if not untold.undecided or untold.follows:
        return found
    others = [each for summary in summaries for each in summary.undecided if each is not untold.undecided[0]]
    found += [(f"  also:   {undecided_in_words(each)}", "") for each in others[:EXAMPLES]]
    if len(others) > EXAMPLES:
        found.append((f"  and {len(others) - EXAMPLES} more (--json lists them)", ""))
    found += _followers(summaries, PREVIOUS)
    found.append((f"  next:   {_what_would_decide(untold)}", ""))
    return found


def _what_would_decide(summary: Summary) -> str:
    if summary.undecided[0].reason.endswith(OTHER_RANDOM_NUMBERS):
        return "seed both runs alike with seed_all(), or leave dropout out with rm_dropout"
    ways = ["run both sides in the same precision", "run the call again on the inputs of the dump (msprobe replay)"]
    if summary.mode is not Mode.TENSOR:
        ways.insert(0, 'collect data ("task": "tensor")')
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"


def _cannot_be_told(summary: Summary, why: str, is_one_of_several: bool) -> str:
    # Of what follows, and of what is missing, the text itself says which step and rank it is.
    says_where = summary.follows is not None or why == "; ".join(summary.missing)
    where = f"{in_words(summary.step, summary.label)}: " if is_one_of_several and not says_where else ""
    return f"{UNTOLD}: {where}{why}"


def _ranks(merged: MergedRanks) -> str:
    """On which ranks a call is that several may make together."""
    ranks = ranges(merged.ranks)
    if len(merged.ranks) == 1:
        return f"rank {ranks}"
    if not merged.differing or merged.differing == merged.ranks:
        return f"ranks {ranks}, which make this call together"
    which = f"rank{'' if len(merged.differing) == 1 else 's'} {ranges(merged.differing)}"
    return f"{which}, whose part differs; ranks {ranks} make this call together"


def _remarks(summaries: Sequence[Summary]) -> str:
    """The end of the answer without a divergence: how much was compared, if that is not everything."""
    text = ""
    if not all(summary.coverage.is_whole for summary in summaries):
        compared = sum(summary.coverage.compared_records for summary in summaries)
        text += f"; {compared} of {sum(summary.coverage.records for summary in summaries)} records compared"
    return text


def _steps(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """The steps that were compared: those after them, which may differ, were not."""
    found = [re.fullmatch(r"step(\d+)", each.step) for each in summaries]
    steps = sorted({int(each[1]) for each in found if each is not None})
    if None in found or not steps:
        return []
    said = f"{'step' if len(steps) == 1 else 'steps'} {ranges(steps)} compared"
    return [(f"  {said}; a difference that begins later shows in later ones (msprobe run --step)", "")]


def _without_effect(summaries: Sequence[Summary]) -> list[tuple[str, str]]:
    """The differences that change no value: how many, and the first ones, those of one kind in one line."""
    records: dict[str, dict[str, None]] = {}
    shown_as: dict[str, str] = {}
    number, shown = 0, 0.0
    for summary in summaries:
        for each in summary.without_effect:
            number += 1
            shown = max(shown, each.shows_from or 0.0)
            records.setdefault(each.reason, {})[each.record or each.golden_record] = None
            shown_as[each.reason] = each.shown_reason
    if not number:
        return []
    visible = f"; an effect of {shown:.1e} or more would be visible" if shown else ""
    more = " (--json lists them)" if len(records) > SUSPECTS else ""
    found = [(f"  {number} difference{'' if number == 1 else 's'} without effect on any value{visible}{more}", "")]
    return found + [
        (f"  without effect: {_first(list(of_reason)[:1], len(of_reason))}: {shown_as[reason]}", "")
        for reason, of_reason in list(records.items())[:SUSPECTS]
    ]


def lines(summary: Summary) -> list[tuple[str, str]]:
    """Counts and findings line by line, each with the verdict it is about or an empty text."""
    where = in_words(summary.step, summary.label)
    counts = ", ".join(f"{number} {result}" for result, number in summary.counts.items())
    found = [(f"{where + ': ' if where else ''}{summary.rows} rows by {summary.mode.value}: {counts}", summary.worst)]
    if summary.follows is not None:
        where = in_words(summary.follows.step, summary.follows.label)
        found.append((f"  not judged: {where} diverges before it", PREVIOUS))
    found += [(f"  {text}", WARNING) for text in hints(summary)]
    found += [(f"  {text}", "") for text in _decisions(summary.decisions)]
    if summary.suspects:
        first, *others = summary.suspects
        name, message = _record_names(first.record, first.golden_record), first.message.partition(": ")[2]
        # The answer has it already.
        text = "" if message.startswith(FIRST_DIVERGENCE) else f": {message}"
        found.append((f"  first {first.verdict}: {name}{text}", first.verdict))
        if others:
            names = ", ".join(suspect.record for suspect in others)
            more = summary.suspect_records - len(summary.suspects)
            found.append((f"  then: {names}{f' and {more} more' if more else ''}", ""))
    if summary.unjudged.items:
        unjudged = summary.unjudged
        names = _first(unjudged.first, unjudged.items)
        found.append((f"  not judged: the values of {_tensors(unjudged.items)}: {names}", WARNING))
    if summary.target_only or summary.golden_only:
        text = f"  unmatched: {summary.target_only} items of the target, {summary.golden_only} items of the golden run"
        found.append((text, WARNING))
        for side, alone in (("target", summary.target_unmatched), ("golden", summary.golden_unmatched)):
            if alone.records:
                found.append((f"    only {side}: {_first(alone.first, alone.records)}", ""))
    found += [(f"  table: {table}", "") for table in summary.tables]
    return found


def _decisions(decisions: Sequence[Decision]) -> list[str]:
    """The choices that differ, from which call on, and whether the values among which it chose explain it."""
    turned = [each for each in decisions if each.differing]
    if not turned:
        return []
    of_all = f"{sum(each.differing for each in turned)} of {sum(each.compared for each in decisions)} choices differ"
    first = turned[0]
    path = "" if first.module in (first.record, first.golden_record) else _path(first.module)
    where = f"first {first.differing} of {first.compared} in {path}{_record_names(first.record, first.golden_record)}"
    found = [f"decisions: {of_all}, in {len(turned)} of {len(decisions)} calls; {where}"]
    unexplained = next((each for each in turned if each.is_explained is False), None)
    unknown = next((each for each in turned if each.is_explained is None), None)
    if unexplained is not None:
        name = f"{unexplained.differing} choices in {_record_names(unexplained.record, unexplained.golden_record)}"
        found.append(f"  not explained: {name}: {_margins(unexplained)}")
    elif unknown is not None:
        name = _record_names(unknown.record, unknown.golden_record)
        why = "margins are recorded of functions alone (--level mix)" if naming.is_module(name) else "it has no margins"
        found.append(f"  cannot be told whether the values explain the choices of {name}: {why}")
    else:
        worst = max(turned, key=lambda each: (each.needed or 0.0) / (each.apart or math.inf))
        found.append(f"  their inputs explain them: {_margins(worst)}")
    return found


def _path(module: str) -> str:
    """``layers.1.mlp.gate (TopKRouter), `` of the record of a module; empty of none."""
    parsed = naming.parse(module) if module else None
    if parsed is None:
        return ""
    path, _, kind = parsed.base.partition(".")[2].rpartition(".")
    return f"{path} ({kind}), " if path else f"{kind}, "


def _margins(decision: Decision) -> str:
    if decision.needed is None or decision.apart is None:
        return "its inputs are the same in both runs"
    return f"they need inputs with a relative error of {decision.needed:.1e}; found {decision.apart:.1e}"


def hints(summary: Summary | ComparisonResult) -> list[str]:
    """The reason why one side lacks what the other has, where the dumps themselves tell."""
    ends = [naming.in_words(summary.levels), *map(str, summary.truncations)]
    return [text for text in (*ends, _without_tree(summary.without_tree)) if text]


def _without_tree(sides: Sequence[str]) -> str:
    """The part that is lost where files are missing, in a sentence; empty if none is."""
    if not sides:
        return ""
    who = f"the {sides[0]} has" if len(sides) == 1 else "both runs have"
    return f"{who} no construct.json: calls are compared without the tree of modules, which names the module of a call"


def _first(names: Sequence[str], number: int) -> str:
    more = number - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _tensors(number: int) -> str:
    return f"{number} tensor{'' if number == 1 else 's'}"


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
    """The divergence of the runs, then each pair of dumps; each line with a style of rich, or an empty text.

    Ranks of one step that say the same share their lines if they are more than a few.
    """
    found = headline(summaries)
    for alike in _alike(summaries):
        found += lines(alike[0]) if len(alike) == 1 else _shared_lines(alike)
    return [(text, _COLOURS.get(verdict, "")) for text, verdict in found]


def _alike(summaries: Sequence[Summary]) -> Iterator[list[Summary]]:
    """Many ranks of one step whose lines differ in the rank alone, together; the others one by one, in order."""
    for _, of_step in groupby(summaries, key=attrgetter("step")):
        every = list(of_step)
        groups: dict[tuple[tuple[str, str], ...], list[Summary]] = {}
        for summary in every if len(every) > _ONE_BY_ONE else ():
            if _rank_of(summary) is not None:
                groups.setdefault(tuple(lines(replace(summary, label="", tables=[]))), []).append(summary)
        shared = {id(each): group for group in groups.values() if len(group) > _ONE_BY_ONE for each in group}
        for summary in every:
            group = shared.get(id(summary), [summary])
            if group[0] is summary:
                yield group


def _shared_lines(alike: Sequence[Summary]) -> list[tuple[str, str]]:
    first = replace(alike[0], label=f"each of {_ranks_of(alike)}", tables=[])
    folders = dict.fromkeys(os.path.dirname(table) for each in alike for table in each.tables)
    return [*lines(first), *((f"  tables: {folder or '.'}, of each rank", "") for folder in folders)]


def _named(summaries: Sequence[Summary]) -> Iterator[str]:
    """The steps and ranks of summaries in words, many ranks of one step as one."""
    for step, of_step in groupby(summaries, key=attrgetter("step")):
        every = list(of_step)
        if len(every) > _ONE_BY_ONE and all(_rank_of(each) is not None for each in every):
            yield in_words(step, _ranks_of(every))
        else:
            yield from (in_words(step, each.label) for each in every)


def _ranks_of(summaries: Sequence[Summary]) -> str:
    return f"ranks {ranges(sorted(rank for each in summaries if (rank := _rank_of(each)) is not None))}"


def _rank_of(summary: Summary) -> int | None:
    digits = summary.label.removeprefix("rank")
    return int(digits) if digits.isdecimal() and digits != summary.label else None
