"""Pairs of nodes of the target and the golden run.

Calls with values are paired as ``compare`` pairs them. What has no values, a call below the chosen level, a group, is
paired inside of nodes that are a pair: by the same name first, and what is left by the order of its kinds.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from probe.common.align.contents import pairs_in_order
from probe.common.data_files import load_yaml
from probe.common.dump.naming import nearest, parse
from probe.common.errors import MsprobeException
from probe.common.harmless_text import show
from probe.compare.evidence import Evidence, Unexplained
from probe.graph.graph import GROUP, Graph

NO_DATA, SAME, EXPLAINED, FOLLOWS, STRUCTURE, ONE_SIDE, SUSPECT, DIVERGED = range(8)
"""The statuses of a node in order of severity.

`EXPLAINED` differs by no more than its inputs and rounding explain; `FOLLOWS` has a NaN or an infinity that came in
from an earlier call, or belongs to a step that a divergence of an earlier one has reached; `STRUCTURE` differs in a
shape, a type or an argument that changes no value, or in values that change nothing which is computed from them;
`SUSPECT` is one of the later calls that nothing explains, and `DIVERGED` the first of them, or a call that makes values
which are not finite on one side only.
"""

STATUSES = ("no data", "same", "explained", "follows", "structure", "one side only", "suspect", "diverged")
"""Their names."""

STRUCTURE_MODE = "structure"
"""The mode of dumps that hold calls and no values: the ``task`` that they were collected with."""

ALONE, EXACT, ALIGNED, FUZZY, MAPPING, MANUAL = range(6)
"""The reasons why two nodes are a pair: they have the same name below nodes that are a pair for the same reason; they
have the same place and kind; with ``-fm``; by a mapping file; by hand. `ALONE` has no partner."""

REASONS = ("", "exact", "aligned", "fuzzy", "mapping", "manual")
"""Their names."""


# --- origin


PARAMETER, INPUT_OF_CALL, COMPUTE, KIND = "parameter", "input", "compute", "structure"
"""The origins of a divergence: a parameter, an input that no recorded call gave, the computation of the call, or a
call, a shape or an argument that one side alone has."""


@dataclass(frozen=True)
class Origin:
    """The origin of the first divergence."""

    kind: str
    """`PARAMETER`, `INPUT_OF_CALL`, `COMPUTE` or `KIND`."""
    module: int
    """The innermost module around the call, or the call if it is one, on the side that made it; -1 without a tree."""
    item: str = ""
    """The item that shows it; empty of a call that one side alone made."""
    parameter: str = ""
    """The parameter that it is, as its module calls it: ``weight``."""
    is_nonfinite: bool = False
    """True if one side has a NaN or an infinity there, and the other has none."""


def origin_of(found: Unexplained, module: int, evidence: Evidence) -> Origin:
    """The origin of a finding.

    Args:
        module: the node of the module that it is in.
        evidence: what was seen on the way to it.
    """
    shown = evidence.shown_item(found)
    if shown is None:
        return Origin(KIND, module, found.item)
    if shown.parameter:
        return Origin(PARAMETER, module, found.item, shown.parameter, shown.is_nonfinite)
    target, golden = shown.row.target, shown.row.golden
    if target is not None and golden is not None and target.shape != golden.shape:
        return Origin(KIND, module, found.item)
    return Origin(INPUT_OF_CALL if shown.is_input else COMPUTE, module, found.item, "", shown.is_nonfinite)


# --- manual pairs


_KEYS = ("target", "golden", "descendants", "rank", "step", "run")


@dataclass(frozen=True)
class ManualPair:
    """Two nodes that belong together because a person says so."""

    target: str
    golden: str
    descendants: bool = False
    """True if what is inside of them is paired in its order too."""
    rank: Optional[int] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The rank it is for; ``None`` is all."""
    step: Optional[int] = None  # noqa: UP045
    run: Optional[str] = None  # noqa: UP045
    """The run that it is for, as the page names it, if there are several; ``None`` for all."""
    location: str = "--pairs"
    """The location, for messages."""


def load_pairs(path: str) -> list[ManualPair]:
    """Read a file of pairs.

    Raises:
        FileCheckException: it cannot be read.
        MsprobeException: it holds something else; the message names the entry and what is allowed.
    """
    content = load_yaml(path)
    if not isinstance(content, list):
        raise MsprobeException(
            f"{path}: expected a list of pairs such as {{target: NAME, golden: NAME, descendants: true}}; "
            f"it holds {show(content)}."
        )
    return [_pair(f"{path}: entry {number}", entry) for number, entry in enumerate(content)]


def _pair(location: str, entry: Any) -> ManualPair:
    if not isinstance(entry, dict):
        raise MsprobeException(f"{location} is {show(entry)}; expected keys {', '.join(_KEYS)}.")
    for key in entry:
        if key not in _KEYS:
            raise MsprobeException(f"{location} has the key {show(key)}; allowed: {', '.join(_KEYS)}.")
    for key in ("target", "golden"):
        if not isinstance(entry.get(key), str):
            raise MsprobeException(f"{location}: {key} is {show(entry.get(key))}; it must be the name of a node.")
    if not isinstance(entry.get("descendants", False), bool):
        raise MsprobeException(f"{location}: descendants is {show(entry['descendants'])}; allowed: true, false.")
    for key in ("rank", "step"):
        value = entry.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise MsprobeException(f"{location}: {key} is {show(value)}; allowed: whole numbers, 0 and above.")
    if entry.get("run") is not None and not isinstance(entry["run"], str):
        raise MsprobeException(f"{location}: run is {show(entry['run'])}; it must be a path as the page names it.")
    found = {key: entry[key] for key in _KEYS if key in entry}
    return ManualPair(**found, location=location)


def without_dumps(pairs: Iterable[ManualPair], shown: Collection[tuple[str, int | None, int | None]]) -> Iterator[str]:
    """A sentence for each pair that is for none of the dumps shown, which are given by run, step and rank."""
    for pair in pairs:
        wanted = pair.run, pair.step, pair.rank
        if not any(all(one in (None, other) for one, other in zip(wanted, dump)) for dump in shown):
            named = (f"{key} {show(one)}" for key, one in zip(("run", "step", "rank"), wanted) if one is not None)
            yield f"{pair.location} is for {', '.join(named)}, and no such dump is shown: it pairs nothing."


def expanded(pairs: Sequence[ManualPair], target: Graph, golden: Graph) -> dict[int, int]:
    """The pairs as nodes, with what is inside of them where that is wanted.

    Raises:
        MsprobeException: a name is that of no node, with the nearest names; or a node has two partners.
    """
    found: dict[int, int] = {}
    taken: set[int] = set()
    wanted = [pair for pair in pairs if _is_for(pair, target)]
    for pair in wanted:
        mine, theirs = _node(pair, pair.target, target), _node(pair, pair.golden, golden)
        for node, graph, known in ((mine, target, found), (theirs, golden, taken)):
            if node in known:
                raise MsprobeException(f"{pair.location}: {graph.names[node]} is in another pair already.")
        found[mine] = theirs
        taken.add(theirs)
    # A pair around another one does not override it.
    for pair in wanted:
        if pair.descendants:
            _add_inside(target.index[pair.target], golden.index[pair.golden], (target, golden), found, taken)
    return found


def _is_for(pair: ManualPair, target: Graph) -> bool:
    return pair.rank in (None, target.rank) and pair.step in (None, target.step)


def _node(pair: ManualPair, name: str, graph: Graph) -> int:
    node = graph.index.get(name)
    if node is None:
        near = nearest(name, graph.names)
        hint = f"; nearest names: {', '.join(near)}" if near else ""
        raise MsprobeException(f"{pair.location}: {graph.path} has no node {show(name)}{hint}.")
    return node


def _add_inside(mine: int, theirs: int, graphs: tuple[Graph, Graph], found: dict[int, int], taken: set[int]) -> None:
    target, golden = graphs
    ahead = [(mine, theirs)]
    while ahead:
        mine, theirs = ahead.pop()
        nodes = [node for node in target.children[mine] if node not in found]
        others = [node for node in golden.children[theirs] if node not in taken]
        for one, other in in_order(target, nodes, golden, others):
            found[one] = other
            taken.add(other)
            ahead.append((one, other))


def in_order(target: Graph, nodes: Sequence[int], golden: Graph, others: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Pairs of nodes of one kind that keep their order."""
    kinds = [_kind(target, node) for node in nodes]
    other_kinds = [_kind(golden, node) for node in others]
    return [(nodes[i], others[j]) for i, j in pairs_in_order(kinds, other_kinds)]


def _kind(graph: Graph, node: int) -> tuple[str, ...]:
    """The common property of two nodes that may be a pair: function, or place in the module around; and direction."""
    if graph.kinds[node] == GROUP:
        return ("group",)
    parsed = parse(graph.names[node])
    if parsed is None:
        return (graph.names[node],)
    if not parsed.is_module:
        return "api", parsed.base.rpartition(".")[2], parsed.direction
    path = parsed.base.split(".")[1:-1]
    return "module", path[-1] if path else "", parsed.direction


# --- pairing


class Pairs(NamedTuple):
    """The pairs of two graphs, an entry for each node of the target."""

    golden: array[int]
    """The node of the golden run; -1 where there is none."""
    reasons: bytearray


def paired(
    target: Graph,
    golden: Graph,
    calls: Iterable[tuple[str, str]],
    judged: tuple[set[str], set[str]],
    reason: int = ALIGNED,
    manual: Mapping[int, int] | None = None,
) -> Pairs:
    """The pairs of two graphs.

    Args:
        target, golden: the graphs.
        calls: the names of the calls that ``compare`` holds against each other.
        judged: the names of the calls of both sides of which it has decided: those without a partner stay without.
        reason: why calls of other names are a pair.
        manual: pairs made by hand, of nodes whether or not they have values.
    """
    calls = list(calls)
    if target.names is golden.names and not manual and _have_own_names(target, calls, judged):
        return Pairs(array("i", range(len(target))), bytearray([EXACT]) * len(target))
    pairs = _Pairs(target, golden, judged)
    for mine, theirs in (manual or {}).items():
        pairs.add(mine, theirs)
    mine_of, theirs_of = target.index.get, golden.index.get
    for name, golden_name in calls:
        pairs.add(mine_of(name, -1), theirs_of(golden_name, -1))
    pairs.add(len(target) - 1, len(golden) - 1)
    pairs.add_modules_around()
    pairs.add_inside()
    return Pairs(pairs.golden_of, _reasons(target, golden, pairs.golden_of, reason, set(manual or ())))


def _have_own_names(graph: Graph, calls: Iterable[tuple[str, str]], judged: tuple[set[str], set[str]]) -> bool:
    """True if each call that was decided of is paired with the call of its own name.

    Two runs of the same calls then have pairs of one name alone: of what is left, each node is open on both sides, in
    the same place.
    """
    own = {name for name, golden_name in calls if name == golden_name and name in graph.index}
    return all(name == golden_name for name, golden_name in calls) and own.issuperset(judged[0] | judged[1])


class _Pairs:
    def __init__(self, target: Graph, golden: Graph, judged: tuple[set[str], set[str]]) -> None:
        self._target, self._golden = target, golden
        self.golden_of = array("i", [-1]) * len(target)
        self._target_of = array("i", [-1]) * len(golden)
        self._decided = tuple(
            bytearray(name in names for name in graph.names) for graph, names in zip((target, golden), judged)
        )

    def add(self, mine: int, theirs: int) -> None:
        """Make two nodes a pair, if both are there and neither has a partner."""
        if mine >= 0 and theirs >= 0 and self.golden_of[mine] < 0 and self._target_of[theirs] < 0:
            self.golden_of[mine] = theirs
            self._target_of[theirs] = mine

    def _is_open(self, side: int, node: int) -> bool:
        partners = self._target_of if side else self.golden_of
        return partners[node] < 0 and not self._decided[side][node]

    def add_modules_around(self) -> None:
        """Pair nodes without values that are around calls which are pairs, with the one around most of the partners."""
        votes: dict[int, Counter[int]] = {}
        is_open = self._open(0)
        golden_of, around = self.golden_of, self._golden.parents
        # Inside comes before around, so that each node knows of all that is inside when its turn comes.
        for mine, parent in enumerate(self._target.parents):
            if mine in votes:
                found = votes.pop(mine)
                theirs = max(found, key=lambda node: (found[node], -node))
                if self._is_open(1, theirs) and self._target.kinds[mine] == self._golden.kinds[theirs]:
                    self.add(mine, theirs)
            theirs = golden_of[mine]
            if theirs >= 0 and parent >= 0 and is_open[parent] and around[theirs] >= 0:
                votes.setdefault(parent, Counter())[around[theirs]] += 1

    def _open(self, side: int) -> bytearray:
        partners = self._target_of if side else self.golden_of
        return bytearray([other < 0 and not decided for other, decided in zip(partners, self._decided[side])])

    def add_inside(self) -> None:
        """Pair what is left inside of each pair."""
        is_open, is_other_open = self._open(0), self._open(1)
        # Most nodes have nothing inside that is left.
        around = {self._target.parents[node] for node, left in enumerate(is_open) if left}
        for mine in sorted(around, reverse=True):
            theirs = self.golden_of[mine] if mine >= 0 else -1
            if theirs < 0:
                continue
            left = [node for node in self._target.children[mine] if is_open[node]]
            other_left = [node for node in self._golden.children[theirs] if is_other_open[node]] if left else []
            if left and other_left:
                self._add_by_name(left, other_left)
                left = [node for node in left if self.golden_of[node] < 0]
                other_left = [node for node in other_left if self._target_of[node] < 0]
                for node, other in in_order(self._target, left, self._golden, other_left):
                    self.add(node, other)

    def _add_by_name(self, nodes: Sequence[int], others: Sequence[int]) -> None:
        there = {self._golden.names[node]: node for node in others}
        for node in nodes:
            self.add(node, there.get(self._target.names[node], -1))


def _reasons(target: Graph, golden: Graph, golden_of: array[int], reason: int, manual: set[int]) -> bytearray:
    found = bytearray(len(target))
    for node in range(len(target) - 1, -1, -1):
        other, parent = golden_of[node], target.parents[node]
        if other < 0:
            found[node] = ALONE
        elif node in manual:
            found[node] = MANUAL
        elif target.names[node] != golden.names[other]:
            found[node] = reason
        elif parent < 0 or (found[parent] == EXACT and golden_of[parent] == golden.parents[other]):
            found[node] = EXACT
        else:
            found[node] = reason
    return found
