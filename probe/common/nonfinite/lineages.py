"""Values that are not finite and may be harmless, followed from the call that made them to the calls that use them up.

Two kinds are followed. Infinities of one sign may be masks: attention is masked by minus infinity, which softmax turns
into zeros (`Infinities`). Any other value may be left out later: data are marked by NaN where a value is missing, and a
logarithm of 0 is left out by ``where`` (`Candidates`). Both know a tensor again by its maker if the dump records
makers, and otherwise by its statistics (`TensorMap`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from probe.common.dump.naming import BACKWARD, FORWARD, function_name, is_gradients, is_module, parse, record_name
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.items import Item
from probe.common.dump.sketch_file import DATA, VIEW
from probe.common.nonfinite.call_values import (
    CallValues,
    extremes,
    infinite_sign,
    is_masked_by_lowest,
    is_nonfinite,
    is_number,
    mark_of,
)
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

INPUT, PARAMETER, OUTPUT, EXPLAINED, UNWRITTEN = 1, 2, 4, 8, 16
"""The parts of a record that are not finite: an input, a parameter, an output. `EXPLAINED`: another record of this
rank, later in the file, made it. `UNWRITTEN`: its input is memory that was never written."""


class BadRecord(NamedTuple):
    """A record with values that are not finite."""

    number: int
    """The number of the record among those of its rank."""
    name: str
    flags: int
    input: str = ""
    """The first input or parameter that is not finite."""
    output: str = ""
    """The first output that is not finite."""
    unwritten: str = ""
    """The record that gave the memory which was never written."""
    inside: str = ""
    """The module of which all inputs are finite, where something inside of it that is not recorded made its input."""
    mask: str = ""
    """The record that made the infinities, which were asked for, of which this one made something else."""


def mark_explained(bad: list[BadRecord], tree: CallTree | None) -> list[BadRecord]:
    """Mark the records that another record explains, which need not be before them.

    The gradients of a module's parameters stand before its backward, its backward may stand before those of the calls
    inside of it, and what a forward call got or gave goes into its backward as well.
    """
    inside = set() if tree is None else tree.around_any(record.name for record in bad)
    backwards = {parsed.base: record.number for record in bad
                 if is_module(record.name) and (parsed := parse(record.name)) is not None
                 and parsed.direction == BACKWARD}  # fmt: skip
    names = {record.name for record in bad}
    weights = {
        record.name: record.input for record in bad if record.flags & PARAMETER and not record.flags & INPUT
    }  # fmt: skip
    made_inside = {record.name for record in bad if record.flags == OUTPUT and is_module(record.name)}
    marked = []
    for record in bad:
        if tree is not None and not is_module(record.name):
            module = tree.module(record.name) or ""
            record = _with_weight(record, weights.get(module, ""))
            if record.flags & INPUT and module in made_inside:
                record = record._replace(inside=module)
        flags = record.flags
        parsed = parse(record.name)
        if is_gradients(record.name):
            if parsed is not None and backwards.get(parsed.base, -1) > record.number:
                flags |= EXPLAINED
        elif flags == OUTPUT and record.name in inside:
            flags |= EXPLAINED
        elif (
            parsed is not None
            and parsed.direction == BACKWARD
            and record_name(parsed._replace(direction=FORWARD)) in names
        ):
            flags |= INPUT
        marked.append(record._replace(flags=flags))
    return marked


def _with_weight(record: BadRecord, weight: str) -> BadRecord:
    """A call inside of a module whose `weight` is not finite, and whose inputs are, has got that weight."""
    if not weight or not (record.flags & INPUT or record.mask):
        return record
    return record._replace(flags=(record.flags & ~INPUT) | PARAMETER, input=weight, mask="")


# --- lineages


_MOVES = (Trait.HANDS_ON, Trait.LEAVES_OUT)
Owner = TypeVar("Owner")
MakerOf = Callable[[Item], "str | None"]
"""The maker that a dump records of a tensor, as `Item.made_by` has it; ``None`` where it records none."""


def no_maker(item: Item) -> str | None:
    """No maker: what a training records while it runs has none."""
    return None


class TensorMap(Generic[Owner]):
    """The owner of each tensor that was added, found for further tensors that are the same or a view of it.

    Args:
        maker_of: tells the maker of a tensor.
        mark: the statistics by which tensors of unknown makers are taken for the same.
    """

    def __init__(self, maker_of: MakerOf, mark: Callable[[Item], Any]) -> None:
        self._maker_of, self._mark = maker_of, mark
        self._by_maker: dict[str, Owner] = {}
        self._by_mark: dict[Any, Owner] = {}

    def maker(self, item: Item) -> str:
        """The item, parameter or buffer that a tensor is, or is a view of; empty if that is not known."""
        maker = (self._maker_of(item) or "").removeprefix(VIEW)
        # Data may be the result of a call that is not recorded, of something that was.
        return "" if maker.startswith(DATA) else maker

    def add(self, item: Item, owner: Owner) -> None:
        """Note the owner of a tensor, the last one of those that have its statistics."""
        self._by_maker[self.maker(item) or item.name] = self._by_maker[item.name] = owner
        self._by_mark[self._mark(item)] = owner

    def get(self, item: Item) -> Owner | None:
        """The owner of a tensor; ``None`` if nothing is known of it."""
        maker = self.maker(item)
        return self._by_maker.get(maker) if maker else self._by_mark.get(self._mark(item))


# --- infinities of one sign


@dataclass
class Source:
    """A call that made infinities of one sign from finite values."""

    number: int
    """The number of the call, -1 if it is not recorded."""
    name: str
    item: str
    sign: int
    is_asked_for: bool
    open: set[Any] = field(default_factory=set)
    """The extremes of tensors of its lineage that no call has used yet."""
    last: int = -1
    """The number of the last call that had it."""
    user: tuple[int, str] | None = None
    """For values that came in with a call: number and name of this call."""
    is_broken: bool = False
    """True if something else than these infinities came of it."""


class Infinities:
    """The infinities of one rank that may be meant; told of every call with values that are not finite, in order.

    They are meant if an argument asks for an infinity, or the exact result of a call is one, as of the logarithm of
    zero, and all that comes of it is finite. A NaN that comes of it is a finding: at the call that made the NaN if the
    infinity was asked for, and otherwise at the call that made the infinity.
    """

    def __init__(self, maker_of: MakerOf = no_maker) -> None:
        self._sources: list[Source] = []
        # Moving, reshaping and masking keep the finite extreme beside an infinity.
        self._tensors: TensorMap[Source] = TensorMap(maker_of, extremes)
        self._latest: dict[int, list[Source]] = {-1: [], 1: []}
        """By sign, in the order in which calls had them; those that were used up may be among them."""
        self._of_record: dict[str, Source] = {}
        """By the records whose outputs belong to them."""

    def of_record(self, name: str) -> Source | None:
        """The lineage that the outputs of a record belong to, which are infinite."""
        source = self._of_record.get(name)
        return None if source is None or source.is_broken else source

    def known(self, number: int, name: str, inputs: list[Item]) -> list[Source] | None:
        """The lineages that all of `inputs`, which are not finite, belong to; ``None`` where one belongs to none."""
        found = []
        for item in inputs:
            sign = infinite_sign(item)
            source = self._tensors.get(item) if sign else None
            if source is None and sign:
                # Of one that was made where nothing is recorded, the nearest; of a mask that came in, none.
                source = None if self._tensors.maker(item) else self._nearest(sign)
                # A mask has no gradient, nor has what a minimum begins with; a weight and what was computed have.
                if source is None and not item.requires_grad:
                    source = self._begin(-1, "", item.name, sign, is_asked_for=True)
                    source.user = (number, name)
            if source is None or source.is_broken:
                return None
            found.append(source)
        return found

    def begin(self, number: int, name: str, values: CallValues) -> bool:
        """True if a call that makes infinities of finite values may have been meant to; follows them if so."""
        bad = [item for item in values.outputs if is_nonfinite(item)]
        signs = {infinite_sign(item) for item in bad}
        if len(signs) != 1 or 0 in signs:
            return False
        sign = signs.pop()
        if is_module(name):
            # A module returns what a call inside of it made.
            inner = self._tensors.get(bad[0])
            if inner is not None and not inner.is_broken:
                inner.last = number
                self._follow(inner, name, bad)
                return True
        # A call that moves numbers makes none: that of an argument which its record does not show.
        is_asked_for = sign * math.inf in values.numbers or has(function_name(name), *_MOVES)
        # Masks of the smallest number of a type, added to scores or to each other, are minus infinity, and meant alike.
        is_asked_for = is_asked_for or (sign < 0 and any(map(is_masked_by_lowest, values.inputs)))
        if not is_asked_for and not _is_exact(name, sign, values):
            return False
        self._follow(self._begin(number, name, bad[0].name, sign, is_asked_for), name, bad)
        return True

    def write(self, number: int, name: str, values: CallValues) -> None:
        """A call that returns nothing writes into a tensor; follows the infinity that it was asked to write."""
        for sign in (-1, 1):
            if sign * math.inf in values.numbers:
                source = self._begin(number, name, f"{name}.input.0", sign, is_asked_for=True)
                source.open.add("the tensor that was written to, whose extremes no record shows")
                self._move_up(source)

    def receive(self, number: int, name: str, item: Item) -> None:
        """Minus infinity came from another rank, with a call; it may be a mask."""
        source = self._begin(-1, "", item.name, -1, is_asked_for=True)
        source.user = (number, name)
        source.last = number
        self._follow(source, name, [item])

    def use(self, number: int, name: str, sources: list[Source], values: CallValues) -> Source | None:
        """A call uses what belongs to `sources`; returns the one of which something else than infinities came."""
        for source in sources:
            source.last = number
            source.open.difference_update(map(extremes, filter(infinite_sign, values.inputs)))
        bad = [item for item in values.outputs if is_nonfinite(item)]
        if not bad:
            return None
        signs = {source.sign for source in sources}
        if {infinite_sign(item) for item in bad} == signs and len(signs) == 1:
            self._follow(sources[0], name, bad)
            return None
        for source in sources:
            source.is_broken = True
            source.open.clear()
        # The one that nobody asked for is to blame rather than a mask.
        return next((source for source in sources if not source.is_asked_for), sources[0])

    @property
    def unsettled(self) -> list[Source]:
        """Infinities that nobody asked for and that are used by no call that makes finite values of them."""
        return [one for one in self._sources if not one.is_asked_for and not one.is_broken and one.open]

    @property
    def intended(self) -> list[Source]:
        """Calls of this rank whose infinities were meant."""
        unsettled = {id(source) for source in self.unsettled}
        return [one for one in self._sources if one.number >= 0 and id(one) not in unsettled and not one.is_broken]

    def _begin(self, number: int, name: str, item: str, sign: int, is_asked_for: bool) -> Source:
        source = Source(number, name, item, sign, is_asked_for, last=number)
        self._sources.append(source)
        return source

    def _follow(self, source: Source, name: str, items: list[Item]) -> None:
        self._of_record[name] = source
        for item in items:
            self._tensors.add(item, source)
            source.open.add(extremes(item))
        self._move_up(source)

    def _move_up(self, source: Source) -> None:
        latest = self._latest[source.sign]
        if not latest or latest[-1] is not source:
            latest.append(source)

    def _nearest(self, sign: int) -> Source | None:
        latest = self._latest[sign]
        while latest and not latest[-1].open:
            latest.pop()
        return latest[-1] if latest else None


def _is_exact(name: str, sign: int, values: CallValues) -> bool:
    """True if the exact result of a call is infinite, and no number that is too large for its type."""
    function = function_name(name)
    if sign < 0 and has(function, Trait.INFINITE):
        return True
    divisors = [item for item in values.inputs if is_number(item.max) and is_number(item.min)][-1:]
    is_zero = any(item.min <= 0 <= item.max for item in divisors) or 0 in values.numbers
    return is_zero and has(function, Trait.DIVIDES)


def is_masked(name: str) -> bool:
    """True if minus infinity masks the inputs of a call."""
    return has(function_name(name), Trait.MASKED)


# --- any other value


@dataclass(eq=False)
class Candidate:
    """A record that may become a finding, and what came of it so far."""

    records: list[BadRecord]
    """The records to report, the first one first."""
    is_computed: bool
    """True if anything was computed of it, rather than handed on, asked for or left out."""
    is_beyond_type: bool
    """True if these are infinities that are too large numbers for their type."""
    passed: list[BadRecord] = field(default_factory=list)
    """The records that it came to."""
    open: set[Any] = field(default_factory=set)
    """The marks of tensors that no call has left out or used yet."""

    @property
    def number(self) -> int:
        """The number of its first record."""
        return self.records[0].number


class Candidates:
    """The candidates of one rank: each is a finding, or has no consequence, once one of these is known.

    - A call leaves the value out, and all that it returns is finite: no consequence.
    - The backward begins at a finite result: no consequence. A NaN cannot become a number again unless it is left out,
      by a call that is recorded or by one that is not, as an index is.
    - The backward begins at the value, the step ends before anything leaves it out, or a call makes finite values of a
      NaN without leaving it out, as ``argmax`` does: the record is a finding.

    An infinity that is too large a number for its type is a finding unless a recorded call leaves it out: a saturating
    function makes a finite value of it, which is wrong.
    """

    def __init__(self, maker_of: MakerOf = no_maker) -> None:
        self._all: list[Candidate] = []
        self._tensors: TensorMap[Candidate] = TensorMap(maker_of, mark_of)
        self._of_record: dict[str, Candidate] = {}
        """By the records whose outputs belong to it."""
        self._numbers: dict[str, Candidate] = {}
        """By the records of those that returned a single number, as a loss is."""
        self.dismissed: list[str] = []
        """Records whose values had no consequence."""

    def candidate_of_items(self, items: Iterable[Item]) -> Candidate | None:
        """The first candidate that one of these tensors, which are not finite, belongs to."""
        owners = (owner for owner in map(self._tensors.get, items) if owner is not None)
        return min(owners, key=lambda owner: owner.number, default=None)

    def of_record(self, name: str) -> Candidate | None:
        """The candidate of which the outputs of a record are."""
        return self._of_record.get(name)

    def of_number(self, name: str) -> Candidate | None:
        """The candidate of the single number that a record has returned, as long as it was not reported."""
        candidate = self._numbers.get(name)
        return candidate if candidate in self._all else None

    def begin(
        self, records: Sequence[BadRecord], inputs: Sequence[Item], outputs: Sequence[Item], is_beyond_type: bool
    ) -> Candidate:
        """Follow what a record has made, or what came in with it.

        Args:
            records: the records to report; the last one is the record of the tensors.
            inputs: the tensors that came in and are not finite.
            outputs: the tensors that it returned and that are not finite.
            is_beyond_type: True if these are numbers too large for their type.
        """
        record = records[-1]
        is_computed = not inputs or not leaves_it_at_that(record.name, bool(outputs))
        candidate = Candidate(list(records), is_computed, is_beyond_type)
        self._all.append(candidate)
        for item in inputs:
            # Another call may take what came in, too.
            self._tensors.add(item, candidate)
        self._open(candidate, record.name, [*inputs, *outputs] if not is_computed else outputs)
        return candidate

    def go_on(self, candidate: Candidate, record: BadRecord, inputs: Sequence[Item], outputs: Sequence[Item]) -> bool:
        """True if the candidate is a finding, because a record that takes it makes finite values of it.

        Args:
            candidate: the candidate.
            record: the record.
            inputs: the tensors of the record that are not finite.
            outputs: the tensors that it returned and that are not finite.
        """
        candidate.passed.append(record)
        function = function_name(record.name)
        if outputs:
            candidate.open.difference_update(map(mark_of, inputs))
            candidate.is_computed |= not has(function, Trait.HANDS_ON)
            self._open(candidate, record.name, outputs)
            return False
        if has(function, Trait.ASKS) or (has(function, Trait.HANDS_ON) and not has(function, Trait.LEAVES_OUT)):
            return False
        are_infinities = not candidate.is_beyond_type and all(map(infinite_sign, inputs))
        if not has(function, Trait.LEAVES_OUT) and not are_infinities:
            return True
        candidate.open.difference_update(map(mark_of, inputs))
        return False

    @property
    def are_there(self) -> bool:
        """True if there was one so far."""
        return bool(self._all)

    def leave_out(self, number: int) -> None:
        """Close each candidate that reached no record since that number: the calls between need not be recorded."""
        for candidate in self._all:
            last = candidate.passed[-1].number if candidate.passed else candidate.number
            if not candidate.is_beyond_type and last < number:
                candidate.open.clear()

    def take(self, candidate: Candidate) -> list[BadRecord]:
        """The records of a candidate that is a finding, and those that it came to."""
        self._all.remove(candidate)
        return [*candidate.records, *candidate.passed]

    def first_open(self) -> Candidate | None:
        """The first candidate of which something may still come."""
        return min(self._waiting(), key=lambda candidate: candidate.number, default=None)

    def _waiting(self) -> list[Candidate]:
        return [candidate for candidate in self._all if candidate.open and candidate.is_computed]

    def end(self) -> list[BadRecord]:
        """The step is over: the records of candidates that are findings, since nothing has left them out."""
        waiting = self._waiting()
        dismissed = [one for one in self._all if one not in waiting and one.is_computed]
        self.dismissed = [candidate.records[0].name for candidate in dismissed]
        return [record for candidate in waiting for record in self.take(candidate)]

    def _open(self, candidate: Candidate, name: str, items: Sequence[Item]) -> None:
        self._of_record[name] = candidate
        if items and all(math.prod(item.shape or ()) == 1 for item in items):
            self._numbers[name] = candidate
        for item in items:
            self._tensors.add(item, candidate)
            candidate.open.add(mark_of(item))


def leaves_it_at_that(name: str, is_returned: bool) -> bool:
    """True if a call computes nothing of what is not finite in its inputs."""
    function = function_name(name)
    return has(function, Trait.HANDS_ON) or (not is_returned and has(function, Trait.LEAVES_OUT, Trait.ASKS))
