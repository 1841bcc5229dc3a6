"""All items of one call, judged one after the other: first what goes into it, then what comes out."""

from __future__ import annotations

from probe.common.align.row import Row
from probe.common.dump.naming import BACKWARD, FORWARD, PARAMETERS_GRAD, function_name, is_module, parse
from probe.common.dump.reading.records import Item
from probe.common.numerics.error_bounds import ALTOGETHER, GRADIENT, Terms
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.compare.divergence import differences
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.call_digest import is_input
from probe.compare.divergence.differences import Differences
from probe.compare.divergence.effects import Effects
from probe.compare.divergence.search.findings import unexplained_item
from probe.compare.divergence.search.inputs import Inputs
from probe.compare.divergence.search.items import in_direction, rounds
from probe.compare.divergence.search.kinds import Kinds
from probe.compare.divergence.search.observed import Observed
from probe.compare.divergence.search.outputs import Computation, Outputs
from probe.compare.divergence.search.runs import Runs
from probe.compare.divergence.search.walk import Walk
from probe.compare.result import Unexplained
from probe.compare.sentences import Sentence


class CallItems:
    """Judges the items of a call.

    Args:
        runs: the runs that are walked.
        walk: what is known so far; `Outputs` says what is added to it.
        effects: follows what calls return.
        differences: says in words what differs in an item.
    """

    def __init__(self, runs: Runs, walk: Walk, effects: Effects, differences: Differences) -> None:
        self._runs = runs
        self._error = walk.error
        self._effects = effects
        kinds = Kinds(runs, walk, differences)
        self._inputs = Inputs(runs, walk, kinds)
        self._outputs = Outputs(runs, walk, kinds)

    def observe(self, call: AlignedCall) -> Observed:
        """The observations on a call."""
        batch = self._other_batch(call)
        if batch is not None:
            return Observed(batch, of_own_values=True)
        terms, observed = Terms(), Observed()
        for row in call.rows:
            if is_input(row):
                self._inputs.explain(call, row, terms, observed)
        computed = self._computation(call, terms)
        if has(computed.function, Trait.UNWRITTEN) or self._is_gradient_of_a_part(call):
            return observed
        for row in call.rows:
            if not is_input(row):
                self._outputs.explain(computed, row, observed)
        return observed

    def _other_batch(self, call: AlignedCall) -> Unexplained | None:
        """The finding on a call that gets and returns a part of the golden batch, before anything else differs."""
        if self._error.largest or self._error.broken or self._error.reshaped:
            return None
        around = self._runs.tree.get(call.record or "")
        if around and not is_module(around):
            # An optimizer, or what clips gradients, is given parameters, which have no batch.
            return None
        given, returned = _batches(call, is_given=True), _batches(call, is_given=False)
        taken = [(row, text) for row, text in given if text and self._runs.parameter(call, row) is None]
        # Masks and positions may be made once for all rows.
        texts = {text for row, text in returned if rounds(row)}
        if not taken or texts != {taken[0][1]} or self._effects.is_inside_of_one_batch(call):
            return None
        row, text = taken[0]
        reason = Sentence(f"{differences.short_name(row)} and what is computed from it have another number of rows")
        return unexplained_item(self._runs, call, row, reason, ALTOGETHER, 0.0, text)

    def _computation(self, call: AlignedCall, terms: Terms) -> Computation:
        """The inputs from which outputs are computed; a backward and a gradient have more than the call's own."""
        parsed = parse(call.record or "")
        if parsed is None or parsed.direction == FORWARD:
            return Computation(call, function_name(call.record or ""), terms)
        if parsed.direction == PARAMETERS_GRAD:
            for row in self._runs.inputs_of(in_direction(parsed, BACKWARD)):
                if row.golden is not None:
                    terms.add(row.golden, self._error.difference(row))
        for row in self._runs.inputs_of(in_direction(parsed, FORWARD)):
            if row.golden is not None:
                terms.add_kept(row.golden, self._error.difference(row))
        return Computation(call, GRADIENT, terms)

    def _is_gradient_of_a_part(self, call: AlignedCall) -> bool:
        """True if one framework gives the gradient of the whole and the other that of its second operation."""
        if not self._runs.across_frameworks or not has(function_name(call.record or ""), Trait.TWO_OPERATIONS):
            return False
        parsed = parse(call.record or "")
        return parsed is not None and parsed.direction == BACKWARD


def _batches(call: AlignedCall, is_given: bool) -> list[tuple[Row, str]]:
    """The tensors that a call takes or returns, and of each in words that it is a part of the golden batch."""
    return [
        (row, "" if _is_repeated(row.target, row.golden) else differences.of_batch(row.target, row.golden))
        for row in call.rows
        if row.target is not None and row.golden is not None and row.target.is_tensor and row.golden.is_tensor
        if is_input(row) is is_given
    ]


def _is_repeated(target: Item, golden: Item) -> bool:
    """True if one side has the rows of the other several times, as positions that are made for each row of a batch."""
    return target.max != target.min and differences.is_repeated(target, golden)
