"""One dump beside another: which nodes are pairs, and what ``compare`` says of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

import msgspec

from probe.common.align.calls import Row
from probe.common.dump.naming import both_record, in_words
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.sources import Stacks
from probe.common.errors import DumpFormatError
from probe.common.numerics.error_bounds import ALTOGETHER
from probe.common.parallel.tasks import few_collections
from probe.common.progress import ProgressCallback
from probe.compare.evidence import EXPLAINED as CALL_EXPLAINED
from probe.compare.evidence import (
    GOLDEN,
    NONFINITE_ON_ONE_SIDE,
    TARGET,
    Evidence,
    JudgedCall,
    Judgement,
    Options,
    Summary,
    Unexplained,
    evidence_of,
)
from probe.compare.evidence import SAME as CALL_SAME
from probe.compare.evidence import STRUCTURE as CALL_STRUCTURE
from probe.compare.evidence import UNEXPLAINED as CALL_UNEXPLAINED
from probe.graph.graph import GROUP, Graph, graph_beside, graph_of
from probe.graph.page.prefixes import Code
from probe.graph.pairing import (
    ALIGNED,
    DIVERGED,
    EXPLAINED,
    FOLLOWS,
    FUZZY,
    MAPPING,
    ONE_SIDE,
    SAME,
    STATUSES,
    STRUCTURE,
    STRUCTURE_MODE,
    SUSPECT,
    ManualPair,
    Origin,
    Pairs,
    expanded,
    origin_of,
    paired,
)


@dataclass
class GraphDiff:
    """A dump as a graph, and where there is one the dump that it is compared with.

    What has one entry for each node of the target is indexed with the nodes of `target`.
    """

    target: Graph
    golden: Optional[Graph]  # noqa: UP045 (evaluated, on Python 3.9 too)
    pairs: array[int]
    """The golden run's node of each node of the target; -1 without one."""
    reasons: bytearray
    """The reason why they are a pair: indices in `REASONS`."""
    statuses: bytearray
    """Indices in `STATUSES`."""
    golden_statuses: bytearray
    """Indices in `STATUSES` for each node of the golden run."""
    in_errors: array[float]
    """The largest relative difference of inputs and parameters; NaN where there is nothing to compare."""
    out_errors: array[float]
    """The largest relative difference of outputs."""
    why: dict[int, str]
    """The rule behind the status of a node of the target, with its numbers."""
    cause: dict[int, str]
    """The cause of the divergence at a node of the target."""
    golden_why: dict[int, str]
    """The reason why a node of the golden run has no partner, or what makes its absence a divergence."""
    golden_cause: dict[int, str]
    """The cause of the divergence at a node of the golden run that has no partner."""
    first: Optional[tuple[int, int]]  # noqa: UP045
    """The first divergence: nodes of target and golden run, -1 of a side that did not make the call."""
    suspects: list[tuple[int, int]]
    """The next calls that nothing explains, in order."""
    origin: Optional[Origin]  # noqa: UP045
    """The origin of the first divergence."""
    items: dict[int, list[Row]]
    """The matched items of each node of the target that has values."""
    golden_items: dict[int, list[Row]]
    """The items of each node that the golden run alone has."""
    summary: Optional[Summary]  # noqa: UP045
    """The summary of ``msprobe compare`` for the two; ``None`` for one dump, and for dumps without values."""
    mode: str
    """``statistics``, ``tensor``, ``checksum`` or ``structure``."""
    stacks: Optional[Stacks]  # noqa: UP045
    golden_stacks: Optional[Stacks]  # noqa: UP045
    notes: list[str] = field(default_factory=list)
    """The remarks on both together, a sentence each."""
    is_measured: bool = False
    """True if the differences are measured distances, of sketches or of all elements, and no bounds by statistics."""
    judgement: Optional[Judgement] = None  # noqa: UP045
    """The judgement of ``msprobe compare`` on each row; ``None`` where no values were compared."""
    is_without_paths: bool = False
    """True if paths were cut, so that none leads to a file."""
    code: Optional[Code] = None  # noqa: UP045
    """The code around the calls; ``None`` before it is looked for, which is when paths are cut, or rows made."""


def is_tensor_of_one(row: Row) -> bool:
    """True if one side alone has a tensor there, and the other one nothing or a plain value."""
    target, golden = row.target, row.golden
    return (target is not None and target.is_tensor) != (golden is not None and golden.is_tensor)


def diff_of(
    target: Dump,
    golden: Dump | None = None,
    options: Options | None = None,
    before: tuple[str, str] | None = None,
    *,
    pairs: Sequence[ManualPair] = (),
    release: bool = False,
    watch: ProgressCallback | None = None,
) -> GraphDiff:
    """A dump as a graph beside the one of a golden run, judged as ``compare`` does.

    Args:
        target: the dump.
        golden: the one that it is compared with; without it the graph of one dump.
        options: what the user chose, as for ``compare``; all divergences are looked for.
        before: the paths of the dumps of the step before, which tell of the optimizer's step between.
        pairs: nodes that belong together whatever else is found; `load_pairs` reads them.
        release: free the memory of the dumps' records as soon as their items are made. Nobody can look at the records
            of these dumps afterwards.
        watch: a callback for how far the measuring is.

    Raises:
        MsprobeException: these two cannot be compared, and why.
        DumpFormatError: a dump has no order in which its calls are inside of each other.

    Example:
        >>> diff = diff_of(read("run_a/step0/rank0"), read("run_b/step0/rank0"))  # doctest: +SKIP
        >>> diff.target.names[diff.first[0]]  # doctest: +SKIP
        'Functional.linear.12.forward'
    """
    with few_collections():
        return _diff_of(target, golden, options or Options(), before, pairs, release, watch)


def _diff_of(
    target: Dump,
    golden: Dump | None,
    options: Options,
    before: tuple[str, str] | None,
    pairs: Sequence[ManualPair],
    release: bool,
    watch: ProgressCallback | None,
) -> GraphDiff:
    graph = graph_of(target)
    if golden is None:
        return _alone(target, graph)
    other = graph_beside(target, graph, golden)
    manual = expanded(pairs, graph, other)
    by_hand = tuple((graph.names[mine], other.names[theirs]) for mine, theirs in manual.items())
    options = msgspec.structs.replace(options, pairs=by_hand)
    if target.task == golden.task == STRUCTURE_MODE:
        return _without_values(target, golden, graph, other, options, manual)
    evidence = evidence_of(target, golden, options, before, release=release, watch=watch)
    return _Judged(graph, other, evidence, manual).diff()


def diff_from(graph: Graph, golden: Graph, evidence: Evidence) -> GraphDiff:
    """Two graphs whose dumps were compared already; `evidence` is what the comparison has seen on its way."""
    return _Judged(graph, golden, evidence, {}).diff()


def _alone(dump: Dump, graph: Graph) -> GraphDiff:
    nothing = array("d", [math.nan]) * len(graph)
    items = {graph.index[record.name]: [Row(record.name, item, None) for item in dump.items(record)] for record in dump}
    damage = _damage(dump)
    for row in (row for rows in items.values() for row in rows if damage):
        # Who made a tensor is not known then; all else is.
        if row.target is not None:
            row.target.table = None
    return GraphDiff(
        graph,
        None,
        array("i", [-1]) * len(graph),
        bytearray(len(graph)),
        bytearray(len(graph)),
        bytearray(),
        nothing,
        array("d", nothing),
        {},
        {},
        {},
        {},
        None,
        [],
        None,
        items,
        {},
        None,
        dump.task or STRUCTURE_MODE,
        dump.stacks,
        None,
        [damage] if damage else [],
    )


def _damage(dump: Dump) -> str:
    """The damage of the file of sketches, in a sentence; empty if there is none."""
    table = next((record.sketches for record in dump), None)
    try:
        # The first question reads the file.
        _ = 0 if table is None else len(table)
    except DumpFormatError as error:
        return str(error)
    return ""


def _without_values(
    target: Dump, golden: Dump, graph: Graph, other: Graph, options: Options, manual: dict[int, int]
) -> GraphDiff:
    """Two dumps that hold calls and no values: what both made is the same."""
    found = _alone(target, graph)
    pairs = paired(graph, other, (), (set(), set()), _reason(options), manual)
    found.golden, found.pairs, found.reasons = other, *pairs
    found.statuses = bytearray(SAME if each >= 0 else ONE_SIDE for each in pairs.golden)
    taken = set(pairs.golden)
    found.golden_statuses = bytearray(SAME if node in taken else ONE_SIDE for node in range(len(other)))
    found.golden_stacks = golden.stacks
    return found


def _reason(options: Options) -> int:
    """The reason why calls of two names are a pair."""
    return FUZZY if options.fuzzy else MAPPING if options.maps_names else ALIGNED


@dataclass
class _NodeTexts:
    """The texts on the nodes of one side."""

    name: str
    """`TARGET` or `GOLDEN`."""
    graph: Graph
    statuses: bytearray
    why: dict[int, str] = field(default_factory=dict)
    cause: dict[int, str] = field(default_factory=dict)


class _Judged:
    """Puts what ``compare`` found on the nodes of two graphs."""

    def __init__(self, graph: Graph, other: Graph, evidence: Evidence, manual: dict[int, int]) -> None:
        self._across_frameworks = graph.framework != other.framework
        self._graph, self._other = graph, other
        self._target = _NodeTexts(TARGET, graph, bytearray(len(graph)))
        self._golden = _NodeTexts(GOLDEN, other, bytearray(len(other)))
        self._options = evidence.options
        self._result, self._evidence = evidence.result, evidence
        self._manual = manual
        self._in_errors = array("d", [math.nan]) * len(graph)
        self._out_errors = array("d", [math.nan]) * len(graph)

    def diff(self) -> GraphDiff:
        pairs = self._pairs()
        target, golden = self._target, self._golden
        self._add_alone(target, [other < 0 for other in pairs.golden])
        taken = set(pairs.golden)
        self._add_alone(golden, [node not in taken for node in range(len(self._other))])
        for judged in self._evidence.judged:
            self._add_judged(judged)
        if self._result.debug:
            self._add_saved_values(pairs)
        first, origin, suspects = None, None, []
        divergence = self._result.divergence
        if divergence is not None:
            suspects = [self._add_unexplained(suspect, SUSPECT) for suspect in divergence.suspects]
            first = self._add_unexplained(divergence.first, DIVERGED)
            origin = self._origin_of(divergence.first)
        for node, other in enumerate(pairs.golden):
            if other >= 0:
                golden.statuses[other] = target.statuses[node]
        items, golden_items = self._items(pairs)
        return GraphDiff(
            self._graph,
            self._other,
            pairs.golden,
            pairs.reasons,
            target.statuses,
            golden.statuses,
            self._in_errors,
            self._out_errors,
            target.why,
            target.cause,
            golden.why,
            golden.cause,
            first,
            suspects,
            origin,
            items,
            golden_items,
            self._evidence.summary,
            self._result.mode.value,
            self._result.stacks,
            self._result.golden_stacks,
            self._notes(),
            not self._result.debug and not self._result.without_sketches,
            self._evidence.judgement,
        )

    def _notes(self) -> list[str]:
        found = [
            f"By design, {mine} is compared with {theirs} of the golden run: values are judged with the coarser dtype."
            for mine, theirs in self._evidence.design
        ]
        levels = in_words(self._result.levels)
        sides = [*([levels] if levels else []), *map(str, self._result.truncations)]
        return found + [f"{each[0].upper()}{each[1:]}." for each in sides]

    def _pairs(self) -> Pairs:
        aligned = self._evidence.aligned
        calls = [(call.record, call.golden_record) for call in aligned if call.record and call.golden_record]
        if not aligned:
            of_both = (row for row in self._result.rows if row.target is not None and row.golden is not None)
            calls = list(dict.fromkeys((row.record, row.golden_record or row.record) for row in of_both))
        mine, theirs = ({call.record.name for call in side if call.items} for side in self._evidence.calls)
        return paired(self._graph, self._other, calls, (mine, theirs), _reason(self._options), self._manual)

    def _add_alone(self, side: _NodeTexts, is_alone: Sequence[bool]) -> None:
        """Say of the nodes of a side that have no partner why that is."""
        graph, levels = side.graph, self._result.levels
        is_target = side is self._target
        aligned = {call.record if is_target else call.golden_record for call in self._evidence.aligned}
        only = f"only the {side.name} makes this call"
        other, other_level = (GOLDEN, levels[1]) if is_target else (TARGET, levels[0])
        lacks = f"the {other} was recorded at level {other_level}, which leaves it out"
        is_told = (self._other if is_target else self._graph).has_tree
        ends = [str(each) for each in self._result.truncations if each.side != side.name]
        for node, alone in enumerate(is_alone):
            if not alone:
                continue
            call = graph.names[node]
            if graph.kinds[node] != GROUP and not both_record(call, levels):
                side.why[node] = lacks
            elif graph.kinds[node] != GROUP and not graph.has_record[node] and not is_told:
                side.why[node] = f"it has no values, and the {other} has no construct.json that would name it"
            elif graph.kinds[node] == GROUP and all(not side.statuses[child] for child in graph.children[node]):
                continue  # What is inside of it has been looked at.
            else:
                side.statuses[node] = ONE_SIDE
                side.why[node] = ends[0] if ends and graph.has_record[node] and call not in aligned else only
                around = graph.parents[node]
                if self._across_frameworks and around >= 0 and graph.has_record[around] and not is_alone[around]:
                    side.why[node] = f"{only}; the result of {graph.names[around]} is judged instead"

    def _add_judged(self, judged: JudgedCall) -> None:
        node = self._graph.index.get(judged.call.record or "", -1)
        if node < 0:
            return
        self._in_errors[node], self._out_errors[node] = self._evidence.sizes(judged)
        if judged.outcome == CALL_SAME:
            self._target.statuses[node] = SAME
            return
        self._target.statuses[node] = STRUCTURE if judged.outcome == CALL_STRUCTURE else EXPLAINED
        self._target.why[node] = judged.reason
        of_rows = map(self._evidence.judgement.of, judged.call.rows) if judged.outcome == CALL_EXPLAINED else ()
        untold = next((reason for level, reason in of_rows if level == STATUSES[STRUCTURE]), "")
        if untold:
            self._target.statuses[node], self._target.why[node] = STRUCTURE, untold
        suspect = judged.suspect
        if suspect is not None and suspect.record != judged.call.record:
            self._target.cause[node] = f"named for it: {suspect.record or suspect.golden_record}"
        if self._evidence.is_nonfinite(judged):
            # Its inputs explain it, and the call that made these is reported.
            self._target.statuses[node] = DIVERGED if judged.outcome == CALL_UNEXPLAINED else FOLLOWS

    def _add_saved_values(self, pairs: Pairs) -> None:
        """Statuses of values that were saved by hand, of which nobody knows which comes from which."""
        for node, rows in self._rows_by_node().items():
            if pairs.golden[node] < 0:
                continue
            differing = [row for row in rows if row.target is not None and row.golden is not None]
            largest = max(map(self._evidence.difference, differing), default=0.0)
            self._out_errors[node] = largest
            of_rows = [self._evidence.judgement.of(row) for row in differing]
            self._target.statuses[node] = max((STATUSES.index(level) for level, _ in of_rows), default=SAME)
            if largest:
                size = "altogether" if largest >= ALTOGETHER else f"by {largest:.1e} of its size"
                said = f"it has {NONFINITE_ON_ONE_SIDE}" if math.isinf(largest) else f"it differs {size}"
            else:
                said = next((reason for _, reason in of_rows if reason), "")
            if said:
                self._target.why[node] = said

    def _add_unexplained(self, found: Unexplained, status: int) -> tuple[int, int]:
        """Say of a call that nothing explains it, on the side that made it; returns its nodes."""
        nodes = self._graph.index.get(found.record, -1), self._other.index.get(found.golden_record, -1)
        side, node = (self._target, nodes[0]) if nodes[0] >= 0 else (self._golden, nodes[1])
        if node >= 0:
            side.statuses[node] = status
            side.why[node] = found.shown_reason
            if found.cause:
                side.cause[node] = found.shown_cause
        return nodes

    def _origin_of(self, found: Unexplained) -> Origin:
        module = (self._graph if found.record else self._other).index.get(found.module, -1)
        return origin_of(found, module, self._evidence)

    def _items(self, pairs: Pairs) -> tuple[dict[int, list[Row]], dict[int, list[Row]]]:
        target, golden = self._evidence.calls
        found: dict[int, list[Row]] = {}
        for call in self._evidence.aligned:
            if call.record and call.golden_record:
                found[self._graph.index[call.record]] = call.rows
        if not self._evidence.aligned:
            found = self._rows_by_node()
        for each in target:
            node = self._graph.index[each.record.name]
            if node not in found:
                found[node] = [Row(each.record.name, item, None) for item in each.items]
        taken = set(pairs.golden)
        alone = {}
        for each in golden:
            node = self._other.index[each.record.name]
            if node not in taken:
                alone[node] = [Row(each.record.name, None, item, each.record.name) for item in each.items]
        return found, alone

    def _rows_by_node(self) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for row in self._result.rows:
            if row.target is not None:
                found.setdefault(self._graph.index[row.record], []).append(row)
        return found
