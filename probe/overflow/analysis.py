"""Follows what is not finite over the ranks of one step, from the records that made it.

The records of each rank stand in the order in which they ended; communication carries values from rank to rank. A
rank is *reached* once something that is not finite was made on it or came to it. What is found on a rank that was not
reached is a first finding; what is made anew of finite values on a rank that was is a further one, and all else came
from before.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from probe.common.collectives.collectives import Exchange, is_among
from probe.common.collectives.event_graph import Event, TimedCall, in_order
from probe.common.dump.naming import FORWARD, is_gradients, is_module, parse
from probe.common.nonfinite.lineages import EXPLAINED, INPUT, PARAMETER, UNWRITTEN, BadRecord
from probe.overflow.overflow_report import COMMUNICATION, INSIDE, ORIGIN, OUTSIDE, Explanation, Finding, StepFindings
from probe.overflow.overflow_report import PARAMETER as OF_PARAMETER
from probe.overflow.scan import Communication, RankScan

_MOST_FURTHER = 20
"""Findings on ranks that were reached before."""
_LONGEST_PATH = 12
"""Records of a path that are kept; a guess."""


@dataclass
class _Rank:
    """The progress of the analysis in one rank."""

    scan: RankScan
    ahead: deque[BadRecord]
    causes: list[Finding] = field(default_factory=list)
    """The findings that reached it."""


def analyse(scans: Sequence[RankScan], wanted: str | None = None) -> StepFindings:
    """The findings in one step, given the values that are not finite in the dump of each of its ranks.

    Args:
        scans: those of all ranks.
        wanted: the name of a record that is to be explained, whatever it is.
    """
    return _Analysis(scans, wanted).run()


class _Analysis:
    def __init__(self, scans: Sequence[RankScan], wanted: str | None) -> None:
        self._wanted = wanted
        self._ranks = {scan.rank: _Rank(scan, deque(scan.bad)) for scan in scans}
        self._calls = {(scan.rank, each.call.index): each for scan in scans for each in scan.communication}
        self._exchanges: dict[tuple[int, int], Sequence[Exchange]] = {}
        """The exchanges of the calls that have begun."""
        self._causes_at: dict[tuple[int, int], tuple[Finding, ...]] = {}
        """The findings that had reached a rank when it began a call with a value that is not finite."""
        self._given_by_link: dict[int, Sequence[Finding] | None] = {}
        self._found: list[Finding] = []
        self._numbers: dict[Finding, int] = {}
        """The number of the record of each finding."""
        self._unseen: list[int] = []
        """Ranks to which gradients came that nothing recorded has brought."""
        self._of_exchange: dict[object, Finding] = {}
        self._unmatched: list[str] = []
        self._result = StepFindings(scans[0].step if scans else None)

    def run(self) -> StepFindings:
        scans = [rank.scan for rank in self._ranks.values()]
        timed = [[TimedCall(each.call, each.ends_after) for each in scan.communication] for scan in scans]
        events = list(in_order(timed, sorted(self._ranks)))
        self._settle_masks(events)
        for event in events:
            rank = self._ranks[event.call.rank]
            self._records_before(rank, event.position)
            if event.is_forced:
                self._unmatched.append(f"rank {event.call.rank}: {event.call.record}")
            if event.is_end:
                self._end(rank, event)
            else:
                self._begin(rank, event)
        for rank in self._ranks.values():
            self._records_before(rank, float("inf"))
        return self._finished(scans)

    def _settle_masks(self, events: Sequence[Event]) -> None:
        if not any(each.masked_inputs or each.masked_outputs for each in self._calls.values()):
            return
        bad = {number: list(rank.ahead) for number, rank in self._ranks.items()}
        settle(self._calls, bad, {(event.call.rank, event.call.index): event.exchanges for event in events})
        for number, rank in self._ranks.items():
            rank.ahead = deque(bad[number])

    # --- records

    def _records_before(self, rank: _Rank, number: float) -> None:
        while rank.ahead and rank.ahead[0].number < number:
            self._record(rank, rank.ahead.popleft())

    def _record(self, rank: _Rank, record: BadRecord) -> None:
        flags = record.flags
        if record.name == self._wanted:
            self._explain(rank, record.name, record.input or record.output)
        if flags & EXPLAINED:
            return
        is_made_here = not flags & (INPUT | PARAMETER)
        # The summands of a gradient are not recorded, nor are all calls inside a module.
        if rank.causes and (not is_made_here or is_gradients(record.name) or is_module(record.name)):
            self._spread(rank, record.name)
            return
        if is_made_here:
            kind, item, source = ORIGIN, record.output, record.mask
        elif flags & PARAMETER:
            kind, item, source = OF_PARAMETER, record.input, ""
        else:
            kind, item, source = OUTSIDE, record.input, record.unwritten if flags & UNWRITTEN else ""
            source = source or (record.inside and f"{INSIDE}{record.inside}")
        self._find(rank, Finding(kind, rank.scan.rank, record.name, item, source=source), record.number)

    def _explain(self, rank: _Rank, record: str, item: str) -> None:
        causes = [cause.key for cause in rank.causes]
        self._result.explained.append(Explanation(rank.scan.rank, record, item, causes))

    def _spread(self, rank: _Rank, record: str) -> None:
        for cause in rank.causes:
            if len(cause.path) < _LONGEST_PATH:
                cause.path.append((rank.scan.rank, record))

    def _find(self, rank: _Rank, finding: Finding, number: int) -> None:
        self._numbers[finding] = number
        finding.is_first = not rank.causes
        if finding.is_first:
            rank.causes.append(finding)
        self._found.append(finding)

    # --- communication

    def _begin(self, rank: _Rank, event: Event) -> None:
        call = self._calls[event.call.rank, event.call.index]
        if call.call.record == self._wanted and (call.inputs or call.outputs):
            self._explain(rank, call.call.record, (*call.inputs, *call.outputs)[0])
        self._exchanges[event.call.rank, event.call.index] = event.exchanges
        if call.inputs:
            if rank.causes:
                self._spread(rank, call.call.record)
            else:
                self._find(rank, Finding(OUTSIDE, rank.scan.rank, call.call.record, call.inputs[0]), call.call.index)
            self._causes_at[event.call.rank, event.call.index] = tuple(rank.causes)

    def _end(self, rank: _Rank, event: Event) -> None:
        call = self._calls[event.call.rank, event.call.index]
        for exchange in event.exchanges:
            result = next((name for name in call.outputs if is_among(name, exchange.flow.results)), None)
            if call.has_output and result is None:
                continue
            causes = self._given(exchange) if exchange.sources else None
            if causes is not None:
                # A call without a recorded output counts as having received the sent values.
                self._reach(rank, call, causes)
            elif result is not None:
                self._made_by_communication(rank, call, exchange, result)

    def _given(self, exchange: Exchange) -> Sequence[Finding] | None:
        """The findings behind the calls that give a value which is not finite; ``None`` if no call gives one."""
        key = id(exchange.members)
        if key not in self._given_by_link:
            causes = None
            for member in exchange.members:
                giver = (member.rank, member.index)
                if member.rank in exchange.sources and giver in self._causes_at and self._gives(giver, exchange):
                    causes = [*(causes or ()), *self._causes_at[giver]]
            self._given_by_link[key] = None if causes is None else list(dict.fromkeys(causes))
        return self._given_by_link[key]

    def _gives(self, key: tuple[int, int], exchange: Exchange) -> bool:
        """True if what a call gives in an exchange, of which it may have several, is not finite."""
        own = (each for each in self._exchanges[key] if each.members is exchange.members)
        gives = [name for each in own for name in each.flow.gives]
        return any(is_among(name, gives) for name in self._calls[key].inputs)

    def _reach(self, rank: _Rank, call: Communication, causes: Iterable[Finding]) -> None:
        new = [cause for cause in dict.fromkeys(causes) if cause not in rank.causes]
        if not rank.causes:
            for cause in new:
                if len(cause.path) < _LONGEST_PATH:
                    cause.path.append((rank.scan.rank, call.call.record))
        rank.causes += new

    def _made_by_communication(self, rank: _Rank, call: Communication, exchange: Exchange, item: str) -> None:
        missing = sorted(set(exchange.sources) & set(exchange.missing))
        if missing:
            if not rank.causes:
                source = f"rank {', '.join(map(str, missing))}, which has no dump"
                came_in = Finding(OUTSIDE, rank.scan.rank, call.call.record, item, source=source)
                self._find(rank, came_in, call.call.index)
            return
        members = sorted((each.rank, each.record) for each in exchange.members)
        finding = self._of_exchange.get(tuple(members))
        if finding is None:
            finding = Finding(COMMUNICATION, rank.scan.rank, call.call.record, item, members=members)
            self._of_exchange[tuple(members)] = finding
            self._find(rank, finding, call.call.index)
        else:
            finding.is_first |= not rank.causes
            rank.causes.append(finding)

    # --- at the end

    def _finished(self, scans: Sequence[RankScan]) -> StepFindings:
        result = self._result
        found = sorted(self._without_unseen(), key=lambda finding: finding.rank)
        first = [finding for finding in found if finding.is_first]
        further = [finding for finding in found if not finding.is_first]
        result.findings = [*first, *further[:_MOST_FURTHER]]
        result.affected = {scan.rank: scan.affected + self._bad_communication(scan) for scan in scans}
        result.records = {scan.rank: scan.records for scan in scans}
        result.processes = {scan.rank: scan.process for scan in scans if scan.process}
        result.intended = [(scan.rank, name) for scan in scans for name in scan.intended]
        result.uninitialised = [(scan.rank, name) for scan in scans for name in scan.uninitialised]
        result.meant = sum((scan.meant for scan in scans), Counter())
        result.notes = list(self._notes(scans, len(further)))
        return result

    def _without_unseen(self) -> list[Finding]:
        """The findings, except gradients that ranks have added up unseen, as DistributedDataParallel does.

        Where a call behind the first backward gets what nothing recorded has made, and another rank has a first
        finding that is no such call, it came from there.
        """
        first = [finding for finding in self._found if finding.is_first]
        unseen = [finding for finding in first if self._is_behind_backward(finding)]
        sources = [finding for finding in first if finding not in unseen]
        if not sources:
            return self._found
        for finding in unseen:
            for source in sources:
                if len(source.path) < _LONGEST_PATH:
                    source.path.append(finding.key)
            self._unseen.append(finding.rank)
            for each in self._result.explained:
                if each.rank == finding.rank and each.causes in ([], [finding.key]):
                    each.causes = [source.key for source in sources]
        return [finding for finding in self._found if finding not in unseen]

    def _is_behind_backward(self, finding: Finding) -> bool:
        parsed = parse(finding.record)
        if finding.kind != OUTSIDE or finding.source or parsed is None or parsed.direction != FORWARD:
            return False
        return self._numbers[finding] > self._ranks[finding.rank].scan.first_backward

    @staticmethod
    def _bad_communication(scan: RankScan) -> int:
        return sum(bool(each.inputs or each.outputs) for each in scan.communication)

    def _notes(self, scans: Sequence[RankScan], further: int) -> Iterable[str]:
        if self._unmatched:
            yield (
                f"The communication of the ranks contradicts itself at {self._unmatched[0]}: "
                "the order of other records before and after it is uncertain."
            )
        if self._unseen:
            several = "s" if len(self._unseen) > 1 else ""
            yield (
                f"Rank{several} {', '.join(map(str, self._unseen[:8]))} received it with the gradients: the ranks add "
                "up gradients in a way that is not recorded, as DistributedDataParallel does."
            )
        elif len(scans) > 1 and not any(scan.communication for scan in scans):
            yield (
                "No communication is recorded, so values from other ranks are not followed; collect at level L1 or mix."
            )
        if further > _MOST_FURTHER:
            yield f"{further - _MOST_FURTHER} more findings are not listed."
        for scan in scans:
            if scan.is_skipped:
                yield f"{scan.name}: a gradient scaler skipped this step, because its gradients are not finite."
            if scan.ending:
                yield f"{scan.name}: its dump {scan.ending}; the records before that were read."
        for name, item in [(scan.name, item) for scan in scans for item in scan.norms][:5]:
            yield f"{name}: {item} is finite, but its norm exceeds the range of its dtype."
        nearly = [(scan.name, *each) for scan in scans for each in scan.nearly_full]
        for name, item, part in nearly[:5]:
            yield f"{name}: {item} reaches {part:.0%} of the largest number of its dtype."
        if len(nearly) > 5:
            yield f"{len(nearly) - 5} more tensors are close to the largest number of their dtype."


# --- infinities that ranks send each other

CallKey = tuple[int, int]
"""Rank, and the number of a record."""


def settle(
    calls: dict[CallKey, Communication],
    bad: dict[int, list[BadRecord]],
    exchanges: Mapping[CallKey, Sequence[Exchange]],
) -> None:
    """Take for not finite what was sent as a mask and was none.

    Args:
        calls: those of all ranks; what is no mask is moved to their `inputs` and `outputs`.
        bad: what is not finite on each rank; calls that made what is no mask are added, and those that communicate,
            which stand in `calls`, are taken out.
        exchanges: what each call exchanges.
    """
    waiting = deque((rank, record.number) for rank, of_rank in bad.items() for record in of_rank)
    waiting = deque(key for key in waiting if key in calls)
    own = set(waiting)
    for rank, of_rank in bad.items():
        of_rank[:] = [record for record in of_rank if (rank, record.number) not in own]
    for key, call in calls.items():
        senders = [calls[sender] for sender in _senders(calls, exchanges, key)]
        if call.masked_outputs and not any(sender.inputs or sender.masked_inputs for sender in senders):
            # All that went into it is finite, so that it arose on the way.
            waiting.append(key)
        elif call.outputs and senders and not any(sender.inputs for sender in senders):
            # Something else came of masks alone.
            waiting.append(key)
    seen = set()
    while waiting:
        key = waiting.popleft()
        if key in seen:
            continue
        seen.add(key)
        call = calls[key]
        calls[key] = call._replace(outputs=(*call.outputs, *call.masked_outputs), masked_outputs=())
        givers = [key] if key in own else []
        for sender in (*givers, *_senders(calls, exchanges, key)):
            waiting.extend(_blamed(calls, bad, sender))
    for of_rank in bad.values():
        of_rank.sort(key=lambda record: record.number)


def _blamed(calls: dict[CallKey, Communication], bad: dict[int, list[BadRecord]], sender: CallKey) -> Iterator[CallKey]:
    """Take what a call gave for no mask; the calls by which it came to that rank."""
    call = calls[sender]
    calls[sender] = call._replace(inputs=(*call.inputs, *call.masked_inputs), masked_inputs=(), masks=())
    for mask in call.masks:
        key = (sender[0], mask.number)
        if key in calls:
            yield key
        elif mask not in bad[sender[0]]:
            bad[sender[0]].append(mask)


def _senders(
    calls: Mapping[CallKey, Communication], exchanges: Mapping[CallKey, Sequence[Exchange]], key: CallKey
) -> Iterator[CallKey]:
    for exchange in exchanges.get(key, ()):
        for call in (exchange.call, *exchange.partners):
            if call.rank in exchange.sources and (call.rank, call.index) in calls:
                yield call.rank, call.index
