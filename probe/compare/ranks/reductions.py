"""The results of recorded communication, held against what went in: the sum, the mean, the tensor of another rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import hypot, isfinite
from typing import NamedTuple

from probe.common.collectives.calls import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BROADCAST,
    REDUCE,
    REDUCE_SCATTER,
    argument,
    flow_of,
)
from probe.common.collectives.collectives import CollectiveCall, Exchange, exchanges, is_among
from probe.common.dump.reading.records import INPUT, OUTPUT, Item
from probe.common.numerics.formats import unit_roundoff
from probe.compare.ranks.combination import Combination, Sketches, distance, explanations, fits, in_words
from probe.compare.ranks.rank_facts import RankFacts, part_of

_WORDS = {"": "sum", "SUM": "sum", "AVG": "mean"}
"""The result of a reduction by its operation; of others, such as a maximum, sketches tell nothing."""


_NORM = 1e-4
"""The relative error of norms that are sums of squares in float32: a guess, for sums of up to 2^30 elements."""
_OF_ESTIMATE = 0.67, 1.75
"""The quotients of a norm and its estimate by a sketch that are allowed. The square of the estimate has a chi-square
distribution with 64 degrees of freedom, which leaves this interval once in 8 million calls."""


@dataclass(frozen=True)
class WrongReduction:
    """A communication call that returned something else than it says."""

    record: str
    rank: int
    place: int
    """The index of its record among those of its rank."""
    expected: str
    found: str
    """The result in words; empty if it is no combination of the tensors of the ranks."""
    distance: float
    """The relative distance from what was expected."""
    ranks: tuple[int, ...]
    """The ranks of its group."""


@dataclass
class Reductions:
    """The communication of one step."""

    checked: int = 0
    """Results that were held against what went in."""
    by_norms: int = 0
    """Calls of which norms alone were held against each other."""
    unchecked: dict[str, int] = field(default_factory=dict)
    """The calls that could not be, by the reason."""
    wrong: list[WrongReduction] = field(default_factory=list)
    equal_inputs: list[tuple[CollectiveCall, str]] = field(default_factory=list)
    """Sums of what all ranks have in common already, with what went in: a gradient, by its name."""

    def skip(self, why: str) -> None:
        """Count a call that could not be checked."""
        self.unchecked[why] = self.unchecked.get(why, 0) + 1


def check_reductions(ranks: Sequence[RankFacts], world: Sequence[int]) -> Reductions:
    """Hold the results of the communication calls of a step against what went in.

    Args:
        ranks: the ranks that were recorded.
        world: all ranks of the run, which take part in a call that names no group.
    """
    found = Reductions()
    together: dict[int, list[Exchange]] = {}
    for exchange in exchanges([each.calls for each in ranks], world):
        if exchange.call.function.kind in _CHECKED and not exchange.call.record.endswith(".backward"):
            # The calls that belong together share one object.
            together.setdefault(id(exchange.members), []).append(exchange)
    for of_ranks in together.values():
        gave = _Gave(of_ranks[0].members)
        for exchange in of_ranks:
            _check(exchange, gave, found)
    found.wrong.sort(key=lambda each: (each.place, each.rank))
    return found


class _Parts(NamedTuple):
    """The tensors that a result is made of."""

    sums: Sketches
    unit: float
    """The unit roundoff of the coarsest dtype."""
    elements: int
    is_repeated: bool
    """True if all ranks gave the same tensor, of several elements and not all zero."""
    gradient: str
    """The name of the parameter of whose gradient they are; empty if they are none."""


class _Gave:
    """The tensors that the ranks gave to one exchange, worked out once for the results of all of them."""

    def __init__(self, members: Sequence[CollectiveCall]) -> None:
        self._members = members
        self._missing: dict[tuple[int, ...], bool] = {}
        self._expected: dict[tuple[int, tuple[int, ...]], list[dict[int, Item] | None]] = {}
        self._parts: dict[int, _Parts | None] = {}

    @cached_property
    def by_rank(self) -> dict[int, list[Item]]:
        return {member.rank: _given(member) for member in self._members}

    def lacks(self, exchange: Exchange) -> bool:
        """True if a rank that takes part in the exchange is not recorded."""
        if exchange.ranks not in self._missing:
            self._missing[exchange.ranks] = bool(exchange.missing)
        return self._missing[exchange.ranks] or exchange.call.rank not in self.by_rank

    def expected(self, exchange: Exchange, results: int) -> list[dict[int, Item] | None]:
        """The tensors that each of the results is made of, by the ranks that gave them; of one in others none."""
        made_of, own = _CHECKED[exchange.call.function.kind], exchange.call.rank
        key = results, exchange.sources
        found = None if made_of in _OF_OWN else self._expected.get(key)
        if found is None:
            found = list(made_of(own, sorted(self.by_rank), self.by_rank, results, exchange))
            if made_of not in _OF_OWN:
                self._expected[key] = found
        return found

    def parts(self, exchange: Exchange, items: dict[int, Item]) -> _Parts | None:
        """The sketches of what `expected` gave; ``None`` if one has none, or another number of elements."""
        if _CHECKED[exchange.call.function.kind] in _OF_OWN:
            return _parts_of(items)
        if id(items) not in self._parts:
            self._parts[id(items)] = _parts_of(items)
        return self._parts[id(items)]

    @cached_property
    def only(self) -> Sketches:
        """The sketches of ranks that gave one tensor."""
        found = {rank: part_of(items[0]) for rank, items in self.by_rank.items() if len(items) == 1}
        return Sketches({rank: part.sums for rank, part in found.items() if part is not None})

    @cached_property
    def norm(self) -> float | None:
        """The norm of the first tensors of all ranks together."""
        return _norm([items[0] for items in self.by_rank.values()])


def _parts_of(items: Mapping[int, Item]) -> _Parts | None:
    parts = {rank: part_of(item) for rank, item in items.items()}
    known = {rank: part for rank, part in parts.items() if part is not None}
    elements = {part.elements for part in known.values()}
    if len(known) < len(parts) or len(elements) != 1:
        return None
    sums, unit = Sketches({rank: part.sums for rank, part in known.items()}), max(part.unit for part in known.values())
    first, *others = sums.values()
    (size,) = elements
    is_repeated = size > 1 and bool(first.any()) and all((first == each).all() for each in others)
    return _Parts(sums, unit, size, is_repeated, _gradient_name(next(iter(items.values()))))


def _check(exchange: Exchange, gave: _Gave, found: Reductions) -> None:
    call, kind = exchange.call, exchange.call.function.kind
    if not exchange.flow.results:
        return  # The result is on another rank.
    if gave.lacks(exchange):
        found.skip("a rank of the group is not recorded")
        return
    operation = _operation(call) if kind in (ALL_REDUCE, REDUCE, REDUCE_SCATTER) else ""
    if operation not in _WORDS:
        found.skip(f"of {operation}, sketches tell nothing")
        return
    results, given = _tensors(call, exchange.flow.results, OUTPUT), gave.by_rank
    expected = gave.expected(exchange, len(results))
    if len(expected) != len(results) or None in expected:
        is_one = len(results) == 1 and all(len(items) == 1 for items in given.values())
        if kind not in (ALL_GATHER, REDUCE_SCATTER) or not is_one:
            found.skip("its parts are in one tensor, which a sketch of the whole does not show")
        elif kind == ALL_GATHER:
            _check_gathered(exchange, gave.norm, results[0], found)
        elif call.rank == min(given):
            _check_scattered(exchange, [items[0] for items in given.values()], _WORDS[operation], found)
        return
    for result, parts in zip(results, expected):
        assert parts is not None
        _check_result(exchange, result, gave.parts(exchange, parts), gave, _WORDS[operation], found)


def _check_result(
    exchange: Exchange, result: Item, parts: _Parts | None, gave: _Gave, word: str, found: Reductions
) -> None:
    call, out = exchange.call, part_of(result)
    if out is None or parts is None or parts.elements != out.elements:
        found.skip("a tensor has no sketch, or is not finite")
        return
    every, unit = tuple(parts.sums), max(out.unit, parts.unit)
    meant = Combination(every, 1.0 if word == "sum" or len(every) == 1 else 1 / len(every))
    found.checked += 1
    if fits(out.sums, parts.sums, meant, unit):
        is_repeated = len(every) > 1 and word == "sum" and parts.is_repeated
        if is_repeated and parts.gradient and call.rank == min(every):
            found.equal_inputs.append((call, parts.gradient))
        return
    # The tensor of one rank is expected: that of another one, or the own buffer, may have been returned.
    known = parts.sums if len(every) > 1 else Sketches({**gave.only, **parts.sums})
    what = explanations(out.sums, known, call.rank, unit)
    words = " or ".join(dict.fromkeys(in_words(each, call.rank, exchange.ranks) for each in what))
    expected = f"the {word}" if len(every) > 1 else f"what rank {every[0]} gave"
    apart = distance(out.sums, meant.factor * parts.sums.whole(every).sums)
    found.wrong.append(WrongReduction(call.record, call.rank, call.index, expected, words, apart, exchange.ranks))


def _check_gathered(exchange: Exchange, expected: float | None, result: Item, found: Reductions) -> None:
    """Hold the norm of a tensor that should have the parts of all ranks against theirs: their squares add up."""
    returned = _norm([result])
    if expected is None or returned is None:
        found.skip("its parts are in one tensor, and a norm is missing")
        return
    found.by_norms += 1
    if abs(returned - expected) > max(_NORM, 4 * unit_roundoff(result.dtype)) * expected:
        text = f"a tensor with norm {returned:.3g}, where the parts together have {expected:.3g}"
        _add_norms(exchange, "the parts of all ranks", text, returned, expected, found)


def _check_scattered(exchange: Exchange, given: Sequence[Item], word: str, found: Reductions) -> None:
    """Hold the norm of all results together against that of the sum, which the sum of the sketches estimates."""
    results = [item for each in exchange.members for item in _tensors(each, flow_of(each, None).results, OUTPUT)[:1]]
    parts, returned = [part for part in map(part_of, given) if part is not None], _norm(results)
    if returned is None or not len(parts) == len(given) == len(results):
        found.skip("its parts are in one tensor, and a norm or a sketch is missing")
        return
    count, norms = len(given), [float((part.sums @ part.sums) ** 0.5) for part in parts]
    whole = Sketches({index: part.sums for index, part in enumerate(parts)}).whole(tuple(range(count))).sums
    size = float((whole @ whole) ** 0.5)
    if size <= 16 * count * max(part.unit for part in parts) * sum(norms):
        found.skip("its sum cancels, so that its norm tells nothing")
        return
    expected = size if word == "sum" else size / count
    found.by_norms += 1
    if fits_estimate(returned, expected):
        return
    text = f"tensors that together have norm {returned:.3g}, where the {word} has {expected:.3g}"
    for factor, name in ((1 / count, "divided"), (float(count), "multiplied")):
        if fits_estimate(returned, factor * expected):
            text = f"the {word} {name} by the number of ranks, by its norm"
    _add_norms(exchange, f"the {word}", text, returned, expected, found)


def fits_estimate(norm: float, estimate: float) -> bool:
    """True if a norm may be that which the sketch of a tensor estimates."""
    least, most = _OF_ESTIMATE
    return least * estimate <= norm <= most * estimate


def _add_norms(exchange: Exchange, meant: str, text: str, returned: float, expected: float, found: Reductions) -> None:
    call, apart = exchange.call, abs(returned - expected) / max(returned, expected)
    found.wrong.append(WrongReduction(call.record, call.rank, call.index, meant, text, apart, exchange.ranks))


def _norm(items: Sequence[Item]) -> float | None:
    """The norm of several tensors together; ``None`` where one has none, or an infinite one."""
    norms = [item.norm for item in items if type(item.norm) is float and isfinite(item.norm)]
    return hypot(*norms) if len(norms) == len(items) else None


def _gradient_name(item: Item) -> str:
    kind, _, name = (item.made_by or "").rpartition("gradient:")
    return name if kind in ("", "view:") else ""


def _operation(call: CollectiveCall) -> str:
    """``SUM`` of ``ReduceOp.SUM``; empty if the call names none."""
    item = argument(call, "op")
    value = item.value if item is not None else call.attributes.get("op")
    return "" if value is None else str(value).rpartition(".")[2].upper()


def _tensors(call: CollectiveCall, begins: Sequence[str], state: str) -> list[Item]:
    return [item for item in call.inputs if item.state == state and item.is_tensor and is_among(item.name, begins)]


def _given(call: CollectiveCall) -> list[Item]:
    begins = [f"{call.record}.{INPUT}"] if not call.function.gives else []
    for name in call.function.gives:
        key = name if name in call.passed else call.function.positions.get(name)
        if key in call.passed:
            begins.append(call.passed[key])
    return _tensors(call, begins, INPUT)


# --- what each result is made of

Given = Mapping[int, list[Item]]
Expected = Iterator["dict[int, Item] | None"]


def _elementwise(own: int, ranks: Sequence[int], given: Given, results: int, exchange: Exchange) -> Expected:
    """Result i is made of tensor i of every rank."""
    for index in range(results):
        yield _of_ranks(given, ranks, index)


def _scattered(own: int, ranks: Sequence[int], given: Given, results: int, exchange: Exchange) -> Expected:
    """The result of a rank is made of the tensor that each rank has for it."""
    if results == 1 and all(len(given[rank]) == len(ranks) for rank in ranks):
        yield _of_ranks(given, ranks, list(ranks).index(own))


def _gathered(own: int, ranks: Sequence[int], given: Given, results: int, exchange: Exchange) -> Expected:
    """Result i is the tensor of rank i of the group."""
    if results == len(ranks):
        yield from (_of_ranks(given, [rank], 0) for rank in ranks)


def _exchanged(own: int, ranks: Sequence[int], given: Given, results: int, exchange: Exchange) -> Expected:
    """Result i is what rank i of the group has for this one."""
    if results == len(ranks):
        yield from (_of_ranks(given, [rank], list(ranks).index(own)) for rank in ranks)


def _broadcast(own: int, ranks: Sequence[int], given: Given, results: int, exchange: Exchange) -> Expected:
    """The result is the tensor of the rank that gives."""
    if len(exchange.sources) == 1:
        yield from (_of_ranks(given, exchange.sources, index) for index in range(results))


def _of_ranks(given: Given, ranks: Sequence[int], index: int) -> dict[int, Item] | None:
    if not all(index < len(given[rank]) for rank in ranks):
        return None
    return {rank: given[rank][index] for rank in ranks}


_CHECKED = {
    ALL_REDUCE: _elementwise,
    REDUCE: _elementwise,
    REDUCE_SCATTER: _scattered,
    ALL_GATHER: _gathered,
    ALL_TO_ALL: _exchanged,
    BROADCAST: _broadcast,
}
_OF_OWN = (_scattered, _exchanged)
"""Those that give each rank a result of other tensors."""
