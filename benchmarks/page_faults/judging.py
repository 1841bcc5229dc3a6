"""Where the page of a pair stands when it is opened, held against where the fault was planted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from page_faults.cases import Case, Run

from probe.common.dump.naming import FORWARD, parse
from probe.common.dump.reading.dump import read
from probe.graph.diff import GraphDiff, diff_of
from probe.graph.graph import Graph


@dataclass(frozen=True)
class Outcome:
    """What one page stands at."""

    case: Case
    target: str
    """The name of the first node in the run under test; empty where the other one alone has it."""
    golden: str
    chain: tuple[str, ...]
    """Paths of the modules around it, innermost first."""
    next_right: bool
    """Whether one of the next three is right."""

    @property
    def right(self) -> bool:
        """Whether it is in the module with the fault, or the module that encloses it."""
        return is_right(self.case, self.target or self.golden, self.chain)


def is_right(case: Case, name: str, chain: Sequence[str]) -> bool:
    """Whether a node is in the forward pass of the module with the fault, or is the call directly around it.

    An API of the module around counts as little as a neighbour: what it is given is already wrong.
    """
    parsed = parse(name)
    if parsed is None or parsed.direction != FORWARD or not chain:
        return False
    inside = any(path == case.module or path.startswith(case.module + ".") for path in chain)
    enclosing = case.module.rpartition(".")[0]
    # A layer that is missing or in excess has no module of its own in the other run.
    return inside or (parsed.is_module and chain[0] == enclosing)


def outcomes(dumps: Path, cases: Sequence[Case]) -> Iterator[Outcome]:
    """What the page of each case stands at."""
    for case in cases:
        diff = diff_of(*(read(dumps / run.folder) for run in case.runs))
        places = [] if diff.first is None else [diff.first, *diff.suspects[:3]]
        found = [_place(diff, *place) for place in places]
        target, golden, chain = found[0] if found else ("", "", ())
        later = any(is_right(case, mine or theirs, around) for mine, theirs, around in found[1:])
        yield Outcome(case, target, golden, chain, later)


def clean_pairs(cases: Sequence[Case]) -> list[tuple[Run, Run]]:
    """Runs without fault in two frameworks, of which nothing may be said."""
    pairs = {(case.framework, case.golden, case.runs[1].network) for case in cases if case.framework != case.golden}
    return [(Run(target, network), Run(golden, network)) for target, golden, network in sorted(pairs)]


def false_alarms(dumps: Path, pairs: Sequence[tuple[Run, Run]]) -> list[str]:
    """What is shown first of pairs without fault."""
    found = []
    for runs in pairs:
        diff = diff_of(*(read(dumps / run.folder) for run in runs))
        if diff.first is not None:
            target, golden, _ = _place(diff, *diff.first)
            found.append(f"{runs[0].folder} against {runs[1].folder}: {target or golden}")
    return found


def _place(diff: GraphDiff, node: int, other: int) -> tuple[str, str, tuple[str, ...]]:
    target = diff.target.names[node] if node >= 0 else ""
    golden = diff.golden.names[other] if diff.golden is not None and other >= 0 else ""
    if node >= 0:
        return target, golden, _modules(diff.target, node)
    return target, golden, _modules(diff.golden, other) if diff.golden is not None else ()


def _modules(graph: Graph, node: int) -> tuple[str, ...]:
    found = []
    for each in (node, *graph.above(node)):
        parsed = parse(graph.names[each])
        if parsed is not None and parsed.is_module:
            # The prefix goes, and the class at the end.
            found.append(parsed.base.partition(".")[2].rpartition(".")[0])
    return tuple(found)
