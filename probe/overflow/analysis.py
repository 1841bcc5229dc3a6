"""Follows what is not finite over the ranks of one step, from the records that made it.

The records of each rank stand in the order in which they ended; communication carries values from rank to rank. A
rank is *reached* once something that is not finite was made on it or came to it. What is found on a rank that was not
reached is a first finding; what is made anew of finite values on a rank that was is a further one, and all else came
from before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from probe.common.dump.naming import is_gradients, is_module
from probe.common.match.collectives import Exchange
from probe.common.match.event_graph import Event, TimedCall, in_order
from probe.overflow.findings import COMMUNICATION, ORIGIN, OUTSIDE, Explanation, Finding, StepFindings
from probe.overflow.findings import PARAMETER as OF_PARAMETER
from probe.overflow.scan import (
    EXPLAINED,
    INPUT,
    OUTPUT,
    PARAMETER,
    UNWRITTEN,
    BadRecord,
    Communication,
    RankScan,
)

_MOST_FURTHER = 20
"""Findings on ranks that were reached before."""
_LONGEST_PATH = 12


@dataclass
class _Rank:
    """How far one rank was followed."""

    scan: RankScan
    ahead: deque[BadRecord]
    causes: list[Finding] = field(default_factory=list)
    """What reached it."""


def analyse(scans: Sequence[RankScan], wanted: str | None = None) -> StepFindings:
    """What was found in one step, given what is not finite in the dump of each of its ranks.

    Args:
        scans: those of all ranks.
        wanted: the name of a record that is to be explained, whatever it is.
    """
    return _Analysis(scans, wanted).run()


class _Analysis:
    def __init__(self, scans: Sequence[RankScan], wanted: str | None) -> None:
        self._wanted = wanted
        self._ranks = {scan.rank: _Rank(scan, deque(scan.bad)) for scan in scans}
        self._calls = {
            (scan.rank, each.call.index): each for scan in scans for each in scan.communication
        }
        self._found: list[Finding] = []
        self._of_exchange: dict[object, Finding] = {}
        self._unmatched: list[str] = []
        self._result = StepFindings(scans[0].step if scans else None)

    def run(self) -> StepFindings:
        scans = [rank.scan for rank in self._ranks.values()]
        timed = [[TimedCall(each.call, each.ends_after) for each in scan.communication] for scan in scans]
        for event in in_order(timed, sorted(self._ranks)):
            rank = self._ranks[event.call.rank]
            self._records_before(rank, event.place)
            if event.is_forced:
                self._unmatched.append(f"rank {event.call.rank}: {event.call.record}")
            if event.is_end:
                self._end(rank, event)
            else:
                self._begin(rank, event)
        for rank in self._ranks.values():
            self._records_before(rank, float("inf"))
        return self._finished(scans)

    # --- records

    def _records_before(self, rank: _Rank, place: float) -> None:
        while rank.ahead and rank.ahead[0].place < place:
            self._record(rank, rank.ahead.popleft())

    def _record(self, rank: _Rank, record: BadRecord) -> None:
        flags = record.flags
        if record.name == self._wanted:
            self._explain(rank, record.name, record.input or record.output)
        if flags & EXPLAINED:
            return
        is_made_here = not flags & (INPUT | PARAMETER)
        # What was added up to a gradient is not recorded, nor all that goes on inside of a module.
        if rank.causes and (not is_made_here or is_gradients(record.name) or is_module(record.name)):
            self._spread(rank, record.name)
            return
        if is_made_here:
            kind, item, source = ORIGIN, record.output, record.mask
        elif flags & PARAMETER:
            kind, item, source = OF_PARAMETER, record.input, ""
        else:
            kind, item, source = OUTSIDE, record.input, record.unwritten if flags & UNWRITTEN else ""
        self._find(rank, Finding(kind, rank.scan.rank, record.name, item, source=source))

    def _explain(self, rank: _Rank, record: str, item: str) -> None:
        causes = [cause.place for cause in rank.causes]
        self._result.explained.append(Explanation(rank.scan.rank, record, item, causes))

    def _spread(self, rank: _Rank, record: str) -> None:
        for cause in rank.causes:
            if len(cause.path) < _LONGEST_PATH:
                cause.path.append((rank.scan.rank, record))

    def _find(self, rank: _Rank, finding: Finding) -> None:
        finding.is_first = not rank.causes
        if finding.is_first:
            rank.causes.append(finding)
        self._found.append(finding)

    # --- communication

    def _begin(self, rank: _Rank, event: Event) -> None:
        call = self._calls[event.call.rank, event.call.index]
        if call.flags and call.call.record == self._wanted:
            self._explain(rank, call.call.record, call.input or call.output)
        if call.flags & INPUT:
            if rank.causes:
                self._spread(rank, call.call.record)
            else:
                self._find(rank, Finding(OUTSIDE, rank.scan.rank, call.call.record, call.input))

    def _end(self, rank: _Rank, event: Event) -> None:
        call = self._calls[event.call.rank, event.call.index]
        if call.has_output and not call.flags & OUTPUT:
            return
        senders = self._senders(event.exchanges)
        bad = [sender for sender in senders if sender.flags & INPUT]
        if bad:
            # What has no output recorded is taken to have got what was sent.
            causes = [cause for sender in bad for cause in self._ranks[sender.call.rank].causes]
            self._reach(rank, call, causes)
        elif call.flags & OUTPUT and not call.flags & INPUT:
            self._made_by_communication(rank, call, event.exchanges)

    def _senders(self, of_call: Sequence[Exchange]) -> list[Communication]:
        """The recorded calls that the result of a call is made of."""
        places = dict.fromkeys(
            (each.rank, each.index)
            for exchange in of_call
            for each in (exchange.call, *exchange.partners)
            if each.rank in exchange.sources
        )
        return [self._calls[place] for place in places]

    def _reach(self, rank: _Rank, call: Communication, causes: Iterable[Finding]) -> None:
        new = [cause for cause in dict.fromkeys(causes) if cause not in rank.causes]
        if not rank.causes:
            for cause in new:
                if len(cause.path) < _LONGEST_PATH:
                    cause.path.append((rank.scan.rank, call.call.record))
        rank.causes += new

    def _made_by_communication(self, rank: _Rank, call: Communication, of_call: Sequence[Exchange]) -> None:
        missing = sorted({
            source for exchange in of_call for source in exchange.sources if source in exchange.missing
        })  # fmt: skip
        if missing:
            if not rank.causes:
                source = f"rank {', '.join(map(str, missing))}, of which there is no dump"
                self._find(rank, Finding(OUTSIDE, rank.scan.rank, call.call.record, call.output, source=source))
            return
        members = sorted({
            (each.rank, each.record) for exchange in of_call for each in (exchange.call, *exchange.partners)
        })  # fmt: skip
        finding = self._of_exchange.get(tuple(members))
        if finding is None:
            finding = Finding(COMMUNICATION, rank.scan.rank, call.call.record, call.output, members=members)
            self._of_exchange[tuple(members)] = finding
            self._find(rank, finding)
        else:
            finding.is_first |= not rank.causes
            rank.causes.append(finding)

    # --- at the end

    def _finished(self, scans: Sequence[RankScan]) -> StepFindings:
        result = self._result
        found = sorted(self._found, key=lambda finding: finding.rank)
        first = [finding for finding in found if finding.is_first]
        further = [finding for finding in found if not finding.is_first]
        result.findings = [*first, *further[:_MOST_FURTHER]]
        result.affected = {scan.rank: scan.affected + self._bad_communication(scan) for scan in scans}
        result.records = {scan.rank: scan.records for scan in scans}
        result.intended = [(scan.rank, name) for scan in scans for name in scan.intended]
        result.uninitialised = [(scan.rank, name) for scan in scans for name in scan.uninitialised]
        result.notes = list(self._notes(scans, len(further)))
        return result

    @staticmethod
    def _bad_communication(scan: RankScan) -> int:
        return sum(bool(each.flags) for each in scan.communication)

    def _notes(self, scans: Sequence[RankScan], further: int) -> Iterable[str]:
        if self._unmatched:
            yield (
                f"The communication of the ranks contradicts itself at {self._unmatched[0]}: "
                "what is before and what is behind it is not certain."
            )
        if len(scans) > 1 and not any(scan.communication for scan in scans):
            yield "No communication is recorded: whether a value came from another rank is not known."
        if further > _MOST_FURTHER:
            yield f"{further - _MOST_FURTHER} further findings are left out."
        for scan in scans:
            if scan.died:
                yield f"rank {scan.rank}: its process died; what its journal holds was read."
        for rank, item in [(scan.rank, item) for scan in scans for item in scan.norms][:5]:
            yield f"rank {rank}: {item} is finite, and its norm is beyond its type."
        nearly = [(scan.rank, *each) for scan in scans for each in scan.nearly_full]
        for rank, item, part in nearly[:5]:
            yield f"rank {rank}: {item} reaches {part:.0%} of the largest number of its type."
        if len(nearly) > 5:
            yield f"{len(nearly) - 5} more tensors come that near to the largest number of their type."
