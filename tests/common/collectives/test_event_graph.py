"""Communication calls of several ranks, linked and in an order."""

from __future__ import annotations

import pytest

from probe.common.collectives.collectives import CollectiveCall, is_communication
from probe.common.collectives.event_graph import layers
from probe.common.dump.reading.records import Item


def peer(name: str, rank: int) -> Item:
    return Item(f"Distributed.x.0.forward.input.{name}", "input", "int", (), value=str(rank))


def test_sends_and_receives_are_linked_by_peer_and_order() -> None:
    first = [CollectiveCall(0, n, f"Distributed.send.{n}.forward", (peer("dst", 1),)) for n in range(2)]
    second = [CollectiveCall(1, n, f"Distributed.irecv.{n}.forward", (peer("1", 0),)) for n in range(2)]
    assert layers([first, second], [0, 1]) == [[[first[0], second[0]]], [[first[1], second[1]]]]


def test_groups_of_ranks_are_linked_apart() -> None:
    def reduce(rank: int, group: str) -> CollectiveCall:
        item = Item("Distributed.all_reduce.0.forward.input.group", "input", "torch.ProcessGroup", "[]", value=group)
        return CollectiveCall(rank, 0, "Distributed.all_reduce.0.forward", (item,))

    calls = [reduce(0, "[0, 1]"), reduce(1, "[0, 1]"), reduce(2, "[2, 3]"), reduce(3, "[2, 3]")]
    assert layers([[call] for call in calls], range(4)) == [[calls[:2], calls[2:]]]


def test_ranks_that_contradict_each_other_come_to_an_end() -> None:
    def named(rank: int, *names: str) -> list[CollectiveCall]:
        return [CollectiveCall(rank, n, f"Distributed.{name}.0.forward", ()) for n, name in enumerate(names)]

    calls = [named(0, "broadcast", "all_reduce"), named(1, "all_reduce", "broadcast")]
    found = layers(calls, [0, 1])
    assert sorted(call.record for layer in found for link in layer for call in link) == sorted(
        call.record for of_rank in calls for call in of_rank
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("Distributed.all_reduce.0.forward", True),
        ("MintDistributed.all_gather.1.forward", True),
        ("Torch.sin.0.forward", False),
        ("Torch.gather.0.forward", False),
    ],
)
def test_communication_is_recognised_by_prefix_and_name(record: str, expected: bool) -> None:
    assert is_communication(record) is expected
