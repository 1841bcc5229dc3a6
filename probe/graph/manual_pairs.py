"""Pairs of nodes that a person made, in the page or by hand, in a file of JSON or YAML.

A list of entries such as ``{target: Module.a.A.forward.0, golden: Module.b.B.forward.0, descendants: true}``; with
``rank`` and ``step`` an entry is for the dumps of that rank and step only, with ``run`` for one of several runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from probe.common.align.call_order import pairs_in_order
from probe.common.dump.naming import parse
from probe.common.dump.nearest_names import nearest
from probe.common.errors import MsprobeException
from probe.common.show import show
from probe.common.yaml_file import load_yaml
from probe.graph.graph import GROUP, Graph

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
            raise MsprobeException(f"{location}: {key} is {show(value)}; it must be a number from 0 on.")
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
