"""The conclusion of a comparison, made once from what the walk found: where the runs diverge, why, and what is left."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, Optional

import msgspec

from probe.common.align.calls import Calls, Row
from probe.common.align.counterparts import LEFT_OUT, CallPair
from probe.common.collectives.calls import is_communication
from probe.common.dump.layout import step_and_rank
from probe.common.dump.naming import FORWARD, PARAMETERS_GRAD, parse, record_name
from probe.common.environment import environment_file as environment_files
from probe.common.environment.environment_file import product_roundoff, settings_at
from probe.common.numerics.error_bounds import ALTOGETHER, is_same
from probe.common.numerics.formats import unit_roundoff
from probe.compare.judgement import Sentence
from probe.compare.measuring import Matched
from probe.compare.options import Comparison
from probe.compare.result import (
    GOLDEN,
    TARGET,
    Carried,
    ComparisonResult,
    Difference,
    Divergence,
    Mode,
    Unexplained,
    coverage,
    pairing,
    truncations,
)
from probe.compare.verdict.all_gradients import BatchParts, batch_parts, gradients_agree, same_parameters
from probe.compare.verdict.cause import Causes
from probe.compare.verdict.decisions import decisions
from probe.compare.verdict.effects import Nearby
from probe.compare.verdict.facts import SHORT, Call, call_of, distance, goes_in, is_parameter, is_rounded, measure
from probe.compare.verdict.findings import (
    Finding,
    Kind,
    Walked,
    cause_of_kind,
    excused_sentence,
    finding_sentence,
    kinds_of,
    own_name,
    random_sentence,
    size,
)
from probe.compare.verdict.gradients import direction
from probe.compare.verdict.optimizer import Between, between, convention_cause, settings_cause
from probe.compare.verdict.settings import differences_of, unrecorded_settings
from probe.compare.verdict.two_runs import Graph, Origin, TwoRuns
from probe.compare.verdict.value_causes import Place
from probe.compare.verdict.walk import Walk


def two_runs(comparison: Comparison, both: Calls, pairs: Sequence[CallPair], mode: Mode, matched: Matched) -> TwoRuns:
    """Two runs with the facts on them."""
    target, golden = comparison.target, comparison.golden
    dumps = target, golden
    of_both = target.sketches, golden.sketches
    tables = None if None in of_both else of_both
    rows: list[Row] = [row for pair in pairs for row in pair.rows]
    graphs = _graphs(both, of_both)
    evidence = measure(rows, mode, tables)  # type: ignore[arg-type]
    calls = [call_of(index, pair.record, pair.golden_record, pair.rows) for index, pair in enumerate(pairs)]
    environments = [environment_files.environment_of_file(dump.path) for dump in dumps]
    settings = tuple(settings_at(each, step_and_rank(dump.path)[0]) for each, dump in zip(environments, dumps))
    return TwoRuns(
        calls,
        mode,
        evidence,
        tables,  # type: ignore[arg-type]
        graphs,
        (target.tree or {}, golden.tree or {}),
        comparison.across_frameworks,
        matched.same_names,
        settings,  # type: ignore[arg-type]
        (target.updates, golden.updates),
        product_roundoff(environments),
        (target.framework or "", golden.framework or ""),
        (target.path, golden.path),
    )


def _graphs(both: Calls, tables: tuple[Any, Any]) -> tuple[Graph, Graph]:
    (table, other), (mine, theirs) = tables, ([(call.record.name, call.items) for call in side] for side in both)
    target = Graph(mine, table)
    if len(mine) == len(theirs) and all(one[1] is another[1] for one, another in zip(mine, theirs)):
        return target, target
    names = [[(name, [item.name for item in items]) for name, items in side] for side in (mine, theirs)]
    is_twin = table is not None and other is not None and names[0] == names[1] and table.share(other)
    return target, Graph(theirs, other, target if is_twin else None)


# --- conclusion


SAME, EXPLAINED, STRUCTURE, UNEXPLAINED = range(4)
"""The result of a judgement: nothing differs; what differs is explained; an argument, a dtype or a shape differs; a
value differs by more than is explained."""
_FLOAT32 = 4.0 * unit_roundoff("float32")
"""The distance from which on a difference is seen where rounding to float32 alone is expected."""


class JudgedCall(NamedTuple):
    """One pair of calls, and what was found of it."""

    call: Call
    outcome: int
    """`SAME`, `EXPLAINED`, `STRUCTURE` or `UNEXPLAINED`."""
    inputs: float
    """The largest distance of inputs and parameters."""
    outputs: float
    """The largest distance of outputs."""
    reason: str
    """The difference, its size, and the explained part; empty if there is none."""
    suspect: Optional[Unexplained] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    parameter: str = ""
    """The parameter that differs, as its module calls it."""


class Seen(msgspec.Struct, frozen=True):
    """All that was seen on the way to the conclusion."""

    runs: Optional[TwoRuns] = None  # noqa: UP045
    """Both runs; ``None`` of saved values, of which nobody knows which comes from which."""
    judged: Sequence[JudgedCall] = msgspec.field(default_factory=list)
    """The findings on each pair of calls in their order, if they were asked for."""


def conclude(
    comparison: Comparison, both: Calls, matched: Matched, result: ComparisonResult, keeps_judged: bool = False
) -> Seen:
    """Say in `result`, which has all rows, where each of the runs ends, and where they diverge."""
    target, golden = comparison.target, comparison.golden
    result.levels = target.level, golden.level
    result.truncations = truncations(matched.pairs, (target, golden))
    if comparison.debug:
        measure(result.rows, result.mode, None)
        return Seen()
    result.without_tree = [side for side, dump in ((TARGET, target), (GOLDEN, golden)) if dump.tree is None]
    pairs = [pair for pair in matched.pairs if pair.rows and pair.how not in LEFT_OUT]
    runs = two_runs(comparison, both, pairs, result.mode, matched)
    result.coverage = coverage(pairs, (target.tree, golden.tree), len(same_parameters(runs)))
    names = [(pair.record, pair.golden_record) for pair in pairs]
    result.pairing = pairing(names, comparison.options, matched.aligned)
    of_updates = between(runs, comparison.before)
    walked = Walk(runs, of_updates, comparison.before is not None).walked()
    parts = batch_parts(runs, matched.pairs) if walked.in_parts is not None else None
    if parts is not None:
        result.gradients_agree = parts.agree
        # The run that takes the whole batch ends no earlier: it makes fewer calls.
        result.truncations = [each for each in result.truncations if each.died]
        walked.findings = walked.findings or ([parts.finding] if parts.finding else [])
    elif walked.in_parts is not None:
        walked.hidden.insert(0, walked.in_parts)
    if not walked.findings and not result.coverage.is_enough and walked.in_parts is None:
        result.gradients_agree = gradients_agree(runs)
    if any(end.died for end in result.truncations):
        # A run that died had no time for all of its gradients.
        walked.findings = [each for each in walked.findings if each.kind is not Kind.GRADIENT]
    if runs.tables is None and result.mode is not Mode.TENSOR:
        result.without_sketches = "one program"
        if comparison.across_frameworks or matched.aligned:
            result.without_sketches = "two frameworks" if comparison.across_frameworks else "two programs"
        # Statistics are lower bounds: they pair nothing of two programs, and measure no update of an optimizer.
        is_of_update = bool(walked.findings) and walked.findings[0].kind is Kind.PARAMETER and comparison.before
        if result.without_sketches != "one program" or is_of_update:
            walked.hidden, walked.findings = walked.findings[:1], []
    _Conclusion(runs, result, walked, of_updates, comparison, parts).draw()
    result.decisions = list(decisions(runs))
    result.carried = _carried(runs)
    return Seen(runs, list(_judged(runs, walked, result)) if keeps_judged else [])


class _Conclusion:
    def __init__(
        self,
        runs: TwoRuns,
        result: ComparisonResult,
        walked: Walked,
        of_updates: Between | None,
        comparison: Comparison,
        parts: BatchParts | None = None,
    ) -> None:
        self._runs, self._result, self._walked, self._parts = runs, result, walked, parts
        self._updates, self._comparison = of_updates, comparison
        self._nearby = Nearby(runs)
        self._causes = Causes(runs, runs.precision.design, comparison.before)

    def draw(self) -> None:
        """Say in the result where the runs diverge, and of each other difference whether it has an effect."""
        options, result, walked = self._comparison.options, self._result, self._walked
        chosen = options.maps_names or bool(options.pairs)
        if walked.findings and (chosen or not result.coverage.is_of_two_models):
            self._diverged()
        diverging = {(each.call.record, each.call.golden_record) for each in walked.findings}
        for difference, is_short in self._differences():
            if (difference.record or None, difference.golden_record or None) in diverging and result.divergence:
                result.with_effect.append(difference)
            elif is_short and result.divergence is None:
                result.undecided.append(difference)
            else:
                result.without_effect.append(difference)
        of_settings = settings_cause(self._runs.updates)
        if result.divergence is None and of_settings:
            # They act on the next step, if there is one.
            result.undecided.append(_optimizer_difference(of_settings))
        convention = convention_cause(self._runs.updates, self._runs.frameworks)
        if result.divergence is None and convention:
            # It acts on gradients that are as small as epsilon, which the next step shows.
            result.without_effect.append(_optimizer_difference(convention))
        if result.divergence is None:
            result.undecided += [_difference(each, random_sentence(each)) for each in walked.undecided]
            result.undecided += [_difference(each, finding_sentence(each)) for each in walked.hidden]
        if result.divergence is None and walked.findings and result.coverage.is_of_two_models and not chosen:
            result.undecided += [_difference(each, finding_sentence(each)) for each in walked.findings[:1]]

    def _diverged(self) -> None:
        findings, result = self._walked.findings, self._result
        cause = self._cause(findings[0])
        first = self._unexplained(findings[0], cause)
        suspects = [self._unexplained(each, cause_of_kind(each)) for each in findings[1:]]
        own = first.record, first.golden_record
        stacks = (result.stacks or {}, result.golden_stacks or {})
        stack, golden_stack = (_stack_of(of_side, *names) for of_side, names in zip(stacks, zip(own, cause.calls)))
        result.divergence = Divergence(first, stack, golden_stack, suspects)
        result.diverging = [self._shown(each) for each in findings]

    def _shown(self, found: Finding) -> Row:
        """The row of the table that shows a finding; a finding on gradients of all parts has none of its own."""
        if self._parts is None or found is not self._parts.finding:
            return found.row
        return next((row for row in self._result.rows if row.target is found.row.target), found.row)

    def _unexplained(self, found: Finding, cause: Sentence) -> Unexplained:
        call = found.call
        record = "" if any(row is found.row for row in call.rows) else found.row.record
        source = None if found.row.target is None else self._runs.graphs[0].source(found.row.target)
        is_given = found.kind is Kind.PARAMETER and not is_parameter(found.row)
        reason = finding_sentence(found, record, source if is_given else None)
        if call.direction == PARAMETERS_GRAD and found.kind in (Kind.OUTPUT, Kind.LIKE):
            reason = reason.followed_by(direction(self._runs, found.row))
        measured = found.distance < ALTOGETHER
        return Unexplained(
            call.record or "",
            call.golden_record or "",
            self._runs.module_name(call),
            reason.text,
            cause.text,
            place=call.index,
            communicates=is_communication(call.record or ""),
            item=_item_name(found.row),
            found=found.distance if measured else None,
            allowed=found.allowed if measured else None,
            of_inputs=found.given if found.given < ALTOGETHER else None,
            labelled_reason=reason.labelled,
            labelled_cause=cause.labelled,
        )

    def _cause(self, found: Finding) -> Sentence:
        if self._parts is not None and self._parts.finding is found:
            return self._parts.cause
        if found.kind is Kind.PARAMETER and self._updates is not None:
            of_optimizer = self._updates.in_words()
            if of_optimizer:
                return of_optimizer
        if found.call.direction == PARAMETERS_GRAD and self._updates is not None:
            accumulated = self._updates.accumulated(found.row)
            if accumulated:
                return accumulated
        place = Place(found.call, found.row, found.distance, found.allowed)
        return self._causes.of(place) or cause_of_kind(found)

    def _differences(self) -> Iterator[tuple[Difference, bool]]:
        """Differences of calls besides values; with it, true if its effect could be hidden by rounding."""
        runs = self._runs
        for setting in unrecorded_settings(runs):
            difference = Difference(
                setting.where, setting.where, "", setting.sentence.text,
                labelled_reason=setting.sentence.labelled, values=setting.sentence.values,
            )  # fmt: skip
            yield difference, not (runs.has_functions or all(runs.has_gradients))
        allowed = {each.call.index: each.allowed for each in self._walked.excused if each.call.is_forward}
        for call in runs.calls:
            # Of a batch in parts one run calls each layer more often.
            if runs.same_names and not self._result.gradients_agree and _is_layer_of_one_side(call):
                yield self._alone(call, allowed)
            if not call.is_of_both or (call.is_same and _is_set_alike(runs, call)):
                continue
            for going_in in (True, False):
                for row, sentence in kinds_of(runs, call, runs.precision.design, going_in):
                    yield _difference_in(call, row, sentence), False
            settings = differences_of(runs, call, runs.precision.design)
            if not settings:
                continue
            outputs = [row for row in call.outputs if row.relative_difference is not None and is_rounded(row)]
            unit = max((runs.precision.unit(row) for row in outputs), default=0.0)
            shown = max(allowed.get(call.index, 0.0), max(4.0 * unit, _FLOAT32))
            # Behind short dtypes a difference is seen from the size on that their rounding has there.
            is_short = unit >= SHORT or (runs.precision.shortest >= SHORT and shown >= 4.0 * SHORT)
            for setting in settings:
                # What a layer keeps for later steps is not compared in this one.
                is_of_state = setting.name == "momentum" and call.is_forward
                # A program gives its own modules what it likes, and another release gives them something else.
                is_given = call.is_module and None in setting.values
                hidden = (is_short and setting.decides and call.is_forward and not is_given) or is_of_state
                yield (
                    Difference(
                        call.record or "",
                        call.golden_record or "",
                        setting.item,
                        setting.sentence.text,
                        shown if setting.decides else None,
                        labelled_reason=setting.sentence.labelled,
                        values=setting.sentence.values,
                    ),
                    hidden,
                )

    def _alone(self, call: Call, allowed: dict[int, float]) -> tuple[Difference, bool]:
        """A layer of one run; its effect is seen in the module around it, or the other run has its result elsewhere.

        Args:
            call: the call of the layer.
            allowed: the distances that are explained of other calls, by their indexes.
        """
        side = "golden run" if call.record is None else "target"
        around = next((each for each in self._runs.around(call) if each.is_of_both), None)
        is_held = any(row.target is not None and self._nearby.distance(row.target) <= _FLOAT32 for row in call.outputs)
        shown = None if around is None else max(allowed.get(around.index, 0.0), _FLOAT32)
        names = call.record or "", call.golden_record or ""
        reason = f"only the {side} has this module with parameters"
        return Difference(*names, "", reason, shown), around is None and not is_held


def _stack_of(stacks: Mapping[str, list[str]], record: str, cause: str) -> list[str]:
    """The stack of a record; of one without, as gradients are, that of the call its cause names, or of its forward."""
    parsed = [parse(name) for name in (cause, record)]
    forward = [record_name(each._replace(direction=FORWARD)) for each in parsed if each is not None]
    return next((stacks[name] for name in (record, cause, *forward) if stacks.get(name)), [])


def _is_layer_of_one_side(call: Call) -> bool:
    """True of the forward of a module with parameters that one run alone calls."""
    return not call.is_of_both and call.is_module and call.is_forward and any(map(is_parameter, call.inputs))


def _is_set_alike(runs: TwoRuns, call: Call) -> bool:
    """True of a function, and of a module whose settings are the same in both runs."""
    if call.parsed is None or not call.is_module:
        return True
    mine, theirs = (settings.get(call.parsed.base) for settings in runs.settings)
    return mine == theirs


def _difference_in(call: Call, row: Row, sentence: Sentence) -> Difference:
    names = call.record or "", call.golden_record or "", _item_name(row)
    return Difference(*names, sentence.text, labelled_reason=sentence.labelled, values=sentence.values)


def _difference(found: Finding, sentence: Sentence) -> Difference:
    names = found.call.record or "", found.call.golden_record or "", _item_name(found.row)
    return Difference(*names, sentence.text, is_value=True, labelled_reason=sentence.labelled)


def _optimizer_difference(sentence: Sentence) -> Difference:
    return Difference(
        "optimizer", "", "", sentence.text, is_value=True, labelled_reason=sentence.labelled, values=sentence.values
    )


def _item_name(row: Row) -> str:
    item = row.target or row.golden
    return "" if item is None else item.name


# --- for readers that show every call


def _judged(runs: TwoRuns, walked: Walked, result: ComparisonResult) -> Iterator[JudgedCall]:
    suspects = {}
    if result.divergence is not None:
        for each in (result.divergence.first, *result.divergence.suspects):
            suspects[each.record, each.golden_record] = each
    structure = {
        (each.record, each.golden_record): each.shown_reason
        for each in (*result.undecided, *result.with_effect, *result.without_effect)
    }
    reasons = {each.call.index: excused_sentence(each) for each in reversed(walked.excused)}
    for call in runs.calls:
        if not call.is_of_both:
            continue
        names = call.record or "", call.golden_record or ""
        given, returned = (_largest(row for row in call.rows if goes_in(row) is into) for into in (True, False))
        suspect = suspects.get(names)
        if suspect is not None:
            row = next((row for row in call.rows if _item_name(row) == suspect.item), None)
            parameter = "" if row is None else _parameter(runs, row)
            yield JudgedCall(call, UNEXPLAINED, given, returned, suspect.reason, suspect, parameter)
        elif names in structure:
            effect = "values differ by no more than is explained" if given or returned else "no value differs"
            yield JudgedCall(call, STRUCTURE, given, returned, f"{structure[names]}; {effect}")
        elif given or returned:
            reason = reasons.get(call.index) or f"its inputs are {size(given)} apart"
            yield JudgedCall(call, EXPLAINED, given, returned, reason)
        else:
            yield JudgedCall(call, SAME, given, returned, "")


def _parameter(runs: TwoRuns, row: Row) -> str:
    """The parameter that an item is, as its module calls it; empty of any other."""
    if is_parameter(row):
        return own_name(row).partition(".")[2]
    source = None if row.target is None else runs.graphs[0].source(row.target)
    return source.name.rpartition(".")[2] if source is not None and source.origin is Origin.PARAMETER else ""


def _largest(rows: Iterable[Row]) -> float:
    return max(map(distance, rows), default=0.0)


# --- parameters, by which steps follow one another


def _carried(runs: TwoRuns) -> Carried | None:
    """The parameters at the beginning of the step; ``None`` where none are recorded."""
    forward = [call for call in runs.calls if call.is_of_both and call.is_forward]
    if runs.graphs[0] is runs.graphs[1] and any(map(is_parameter, chain.from_iterable(c.inputs for c in forward))):
        # The dumps say the same of everything: no other step is held against the values of this one.
        return Carried(0, 0, False)
    rows: dict[str, Row] = {}
    for call in forward:
        for row in call.inputs:
            target, golden = row.target, row.golden
            if target is None or golden is None or not target.is_tensor:
                continue
            source = runs.graphs[0].source(target)
            if is_parameter(row) or (source.origin is Origin.PARAMETER and not source.is_view):
                rows.setdefault(source.name or target.name, row)
    if not rows:
        return None
    sides = [[_statistics(getattr(row, side)) for row in rows.values()] for side in ("target", "golden")]
    differ = any(
        distance(row) or not (row.target and row.golden and is_same(row.target, row.golden)) for row in rows.values()
    )
    return Carried(_checksum(sides[0]), _checksum(sides[1]), differ)


def _statistics(item: Any) -> tuple[Any, ...]:
    return item.max, item.min, item.mean, item.norm, item.md5


def _checksum(statistics: Sequence[tuple[Any, ...]]) -> int:
    """A checksum that is equal in every process, which a hash of texts is not."""
    return zlib.crc32(repr(statistics).encode())
