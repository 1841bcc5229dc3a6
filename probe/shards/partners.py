"""With which calls of other ranks a communication call exchanges data, over the dumps of all ranks of a step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from probe.common.collectives.collectives import CollectiveCall, Exchange, exchanges, is_communication
from probe.common.dump.reading.dump import Dump
from probe.shards.split import numbers


@dataclass(frozen=True)
class Partner:
    """A call of another rank that belongs to a call."""

    rank: int
    name: str
    text: str
    """The use of it by the call: ``send to rank 1``, ``all_reduce with ranks 0-3``."""


@dataclass(frozen=True)
class Partners:
    """The partners of all calls of a step."""

    of_calls: dict[tuple[int, str], list[Partner]] = field(default_factory=dict)
    """By rank and name of a call."""
    unpaired: list[tuple[int, str]] = field(default_factory=list)
    """Rank and a sentence for each call that lacks a partner, in the order of ranks and calls."""

    def unpaired_of(self, ranks: Collection[int]) -> list[str]:
        """The sentences on the calls of these ranks."""
        return [sentence for rank, sentence in self.unpaired if rank in ranks]

    def matched_distributed(self, rank: int, name: str) -> dict[str, Any]:
        """The fields of the drop-in database for a call; empty if it has no partner."""
        found = self.of_calls.get((rank, name), [])
        # The second text would be the status of the partner, of which the ranks beside it know nothing.
        nodes = {str(partner.rank): ["Nan", partner.name] for partner in found}
        return {"communications_type": "send_receive", "nodes_info": nodes} if nodes else {}


def partners(dumps: Mapping[int, Dump], rank_size: int = 0) -> Partners:
    """Pair the communication calls of the ranks of one step by group, kind, order, peer and tag.

    Args:
        dumps: of each rank that was recorded.
        rank_size: how many ranks the run had, where some were not recorded; those of calls that name no group.

    Raises:
        DumpFormatError: a record of a communication call is damaged.
    """
    ranks = sorted({*dumps, *range(rank_size)})
    calls = [list(_calls(rank, dumps[rank])) for rank in sorted(dumps)]
    found = Partners()
    for exchange in exchanges(calls, ranks):
        call = exchange.call
        of_call = found.of_calls.setdefault((call.rank, call.record), [])
        text = _text(exchange)
        of_call += (Partner(partner.rank, partner.record, text) for partner in exchange.partners)
        sentence = _unpaired(exchange, text, dumps)
        if sentence:
            found.unpaired.append((call.rank, sentence))
    return found


def _calls(rank: int, dump: Dump) -> Iterable[CollectiveCall]:
    for index, record in enumerate(dump):
        if is_communication(record.name):
            yield CollectiveCall(rank, index, record.name, tuple(dump.items(record)))


def _text(exchange: Exchange) -> str:
    others = [rank for rank in exchange.ranks if rank != exchange.call.rank]
    if exchange.what == "send":
        return f"send to rank {numbers(others)}" if others else "send"
    if exchange.what == "recv":
        return f"receive from rank {numbers(others)}" if others else "receive from any rank"
    return f"{exchange.what} with {'ranks' if len(exchange.ranks) > 1 else 'rank'} {numbers(sorted(exchange.ranks))}"


def _unpaired(exchange: Exchange, text: str, dumps: Mapping[int, Dump]) -> str:
    call = exchange.call
    begin = f"{call.record} of rank {call.rank} ({text})"
    lost = [rank for rank in exchange.missing if rank not in dumps]
    silent = [rank for rank in exchange.missing if rank in dumps]
    if silent:
        return f"{begin} has no call that belongs to it on rank {numbers(silent)}."
    if lost:
        return f"{begin} cannot be paired: rank {numbers(lost)} was not recorded."
    if not exchange.partners and exchange.what in ("send", "recv"):
        return f"{begin} has no call that belongs to it."
    return ""
