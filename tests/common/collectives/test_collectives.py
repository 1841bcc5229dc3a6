"""Which communication calls belong together, and which of their values travel."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from probe.common.collectives.collectives import (
    CollectiveCall,
    Exchange,
    collective_call,
    exchanges,
    is_among,
    is_communication,
)
from probe.common.collectives.event_graph import layers
from probe.common.dump.reading.records import Record

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 1.0}
TENSOR |= {"Mean": 1.0, "Norm": 1.0, "requires_grad": False}
OURS = {**TENSOR, "type": "mindspore.Tensor", "dtype": "Float32"}


def group(*ranks: int) -> dict[str, Any]:
    group_id = f"{zlib.crc32(str(list(ranks)).encode()):08x}"
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": group_id}


def plain(value: Any) -> Any:
    return value if isinstance(value, (dict, list)) or value is None else {"type": type(value).__name__, "value": value}


def operation(what: str, peer: int, tag: int = 0, *members: int) -> dict[str, Any]:
    group_id = group(*(members or (0, 1, 2, 3)))["group_id"]
    point = {"type": "torch.distributed.P2POp", "op": what, "peer": peer, "tag": tag, "group_id": group_id}
    return {**point, "tensor": TENSOR}


def call(rank: int, name: str, *args: Any, index: int = 0, attributes: Any = None, **kwargs: Any) -> CollectiveCall:
    """The call of a record as a dump has it; a name without a family is one of torch."""
    base = name if "." in name else f"Distributed.{name}"
    if not base.endswith(".backward"):
        base = f"{base}.{index}.forward"
    fields = {
        "input_args": [plain(value) for value in args],
        "input_kwargs": {key: plain(value) for key, value in kwargs.items()},
        "output": [],
        **({"attributes": attributes} if attributes else {}),
    }
    assert is_communication(base)
    return collective_call(rank, index, Record(base, fields, "dump.json"))


def one(name: str, *args: Any, rank: int = 0, ranks: int = 4, attributes: Any = None, **kwargs: Any) -> Exchange:
    """What one call exchanges, alone in a run of four ranks."""
    (found,) = exchanges([[call(rank, name, *args, attributes=attributes, **kwargs)]], range(ranks))
    return found


def places(exchange: Exchange) -> dict[str, list[str]]:
    begin = len(exchange.call.record) + 1
    flow = exchange.flow
    found = {"gives": flow.gives, "receives": flow.receives, "results": flow.results, "undefined": flow.undefined}
    return {what: [name[begin:] for name in names] for what, names in found.items() if names}


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("all_reduce", [TENSOR], {"gives": ["input.0"], "results": ["output.0"]}),
        ("all_gather", [None, TENSOR], {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]}),
        (
            "all_gather_into_tensor", [TENSOR, TENSOR],
            {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]},
        ),
        ("_all_gather_base", [None, TENSOR], {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]}),
        ("reduce_scatter", [None, [TENSOR]], {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]}),
        (
            "reduce_scatter_tensor", [None, TENSOR],
            {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]},
        ),
        ("all_to_all", [None, [TENSOR]], {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]}),
        ("all_to_all_single", [None, TENSOR], {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]}),
        ("MintDistributed.all_reduce", [OURS], {"gives": ["input.0"], "results": ["output.0"]}),
        # MSAdapter's are torch's, with MindSpore's tensors.
        ("all_reduce", [OURS], {"gives": ["input.0"], "results": ["output.0"]}),
        (
            "all_gather_into_tensor", [None, OURS],
            {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]},
        ),
        (
            "reduce_scatter_tensor", [OURS, OURS],
            {"gives": ["input.1"], "receives": ["input.0"], "results": ["output.0"]},
        ),
        # Those of comm_func return what they have.
        ("all_gather_into_tensor", [OURS, "tp"], {"gives": ["input.0"], "results": ["output"]}),
        ("reduce_scatter_tensor", [OURS, "sum", "tp"], {"gives": ["input.0"], "results": ["output"]}),
        ("communication.comm_func.all_reduce", [OURS], {"gives": ["input.0"], "results": ["output"]}),
        ("all_to_all_single_with_output_shape", [[plain(2)], OURS], {"gives": ["input.1"], "results": ["output"]}),
        ("Primitive.net.sum.AllReduce", [OURS], {"gives": ["input.0"], "results": ["output"]}),
        # Functions that no table has.
        ("all_reduce_quantized", [TENSOR], {"gives": ["input"], "results": ["output"]}),
    ],
)  # fmt: skip
def test_the_result_of_a_collective_is_made_of_what_all_give(name: str, args: Any, expected: Any) -> None:
    found = one(name, *args)
    assert places(found) == expected
    members = (0,) if "tp" in args else (0, 1, 2, 3)
    assert found.sources == found.ranks == members


@pytest.mark.parametrize(
    ("name", "args", "kwargs", "source"),
    [
        ("broadcast", [TENSOR, 2], {}, 2),
        ("broadcast", [TENSOR], {"src": 3}, 3),
        ("broadcast", [TENSOR], {"group_src": 1, "group": group(1, 3)}, 3),
        ("scatter", [None, None, 3], {}, 3),
        ("scatter", [None], {"scatter_list": None}, 0),
        ("scatter", [None, None], {"group": group(1, 3), "group_src": 1}, 3),
        ("MintDistributed.broadcast", [OURS, 2, "tp"], {}, 2),
        ("scatter_tensor", [OURS], {}, 0),
        ("Primitive.b.Broadcast", [[OURS]], {"attributes": {"root_rank": 2}}, 2),
        ("Primitive.s.CollectiveScatter", [OURS], {}, 0),
    ],
)
def test_what_one_rank_gives_is_all_of_the_result(name: str, args: Any, kwargs: Any, source: int) -> None:
    found = one(name, *args, rank=1, **kwargs)
    assert found.sources == (source,)
    flow = places(found)
    assert "gives" not in flow and "undefined" not in flow
    # What the others passed for it means nothing.
    tensors = [item.name for item in found.call.inputs if item.is_tensor]
    assert all(is_among(tensor, found.flow.receives) for tensor in tensors)
    assert flow["results"] in (["output.0"], ["output"])


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("reduce", [TENSOR, 1], {}),
        ("reduce", [TENSOR], {"dst": 1, "op": "sum"}),
        ("reduce", [TENSOR], {"group": group(0, 1), "group_dst": 1}),
        ("gather", [TENSOR, None, 1], {}),
        ("gather", [TENSOR], {"gather_list": None, "dst": 1}),
        ("MintDistributed.reduce", [OURS, 1], {}),
        ("gather_into_tensor", [OURS, 1], {}),
        ("Primitive.r.Reduce", [OURS], {"attributes": {"dest_rank": 1}}),
        ("Primitive.g.CollectiveGather", [OURS], {"attributes": {"dest_rank": 1}}),
    ],
)
def test_only_the_destination_has_a_result(name: str, args: Any, kwargs: Any) -> None:
    there, elsewhere = one(name, *args, rank=1, **kwargs), one(name, *args, rank=0, **kwargs)
    assert set(there.sources) == {0, 1, 2, 3} & set(there.ranks) and elsewhere.sources == ()
    assert "results" in places(there) and "undefined" not in places(there)
    assert "results" not in places(elsewhere)
    assert places(elsewhere)["gives"] == places(there)["gives"] == ["input.0"]
    assert places(elsewhere)["undefined"] == places(there)["results"]


@pytest.mark.parametrize(
    ("send", "receive"),
    [
        (("send", [TENSOR, 1], {}), ("recv", [None, 0], {})),
        (("isend", [TENSOR], {"dst": 1, "tag": 3}), ("irecv", [None, 0, None, 3], {})),
        (("send", [TENSOR], {"group": group(0, 1), "group_dst": 1}), ("recv", [None, 0, group(0, 1)], {})),
        (("send", [TENSOR, 1], {"group": group(0, 1, 2, 3)}), ("recv", [None], {"src": 0})),
        (("send", [TENSOR, 1], {}), ("recv", [None], {})),
        (("MintDistributed.send", [OURS, 1, "pp"], {}), ("MintDistributed.recv", [None, 0, "pp"], {})),
        (("isend", [OURS, 1], {}), ("irecv", [None], {})),
        (
            ("batch_isend_irecv", [[{**operation("isend", 1), "group_id": "hccl_world_group"}]], {}),
            ("MintDistributed.recv", [None, 0], {}),
        ),
        (("MintDistributed.isend", [OURS, 1], {}), ("MintDistributed.irecv", [None], {})),
        (("send", [OURS, 1], {}), ("recv", [OURS], {"src": 0})),
        (
            ("Primitive.s.Send", [OURS], {"attributes": {"sr_tag": 3, "dest_rank": 1}}),
            ("Primitive.r.Receive", [OURS], {"attributes": {"sr_tag": 3, "src_rank": 0}}),
        ),
        (("send", [TENSOR, 1], {}), ("batch_isend_irecv", [[operation("irecv", 0)]], {})),
        (("batch_isend_irecv", [[operation("isend", 1, 2)]], {}), ("recv", [None, 0, None, 2], {})),
        (
            ("batch_isend_irecv", [[operation("isend", 1, 0, 0, 1)]], {}),
            ("irecv", [None, 0], {"group": group(0, 1)}),
        ),
    ],
)
def test_a_receive_gets_what_its_source_sent(send: Any, receive: Any) -> None:
    (first, args, kwargs), (second, other_args, other_kwargs) = send, receive
    calls = [[call(0, first, *args, **kwargs)], [call(1, second, *other_args, **other_kwargs)]]
    given, got = exchanges(calls, range(4))
    assert (given.what, given.partners, given.sources) == ("send", (calls[1][0],), ())
    assert (got.what, got.partners, got.sources) == ("recv", (calls[0][0],), (0,))
    assert list(places(given)) == ["gives"] and set(places(got)) - {"receives"} == {"results"}


def test_each_operation_of_a_batch_is_an_exchange_of_its_own() -> None:
    batches = [
        [call(rank, "batch_isend_irecv", [operation("isend", 1 - rank), operation("irecv", 1 - rank)])]
        for rank in (0, 1)
    ]
    found = exchanges(batches, range(4))
    assert [(each.call.rank, each.what, each.sources) for each in found] == [
        (0, "send", ()), (0, "recv", (1,)), (1, "send", ()), (1, "recv", (0,)),
    ]  # fmt: skip
    assert places(found[0]) == {"gives": ["input.0.0"]}
    assert places(found[1]) == {"receives": ["input.0.1"], "results": ["output.0.1"]}
    assert all(len(each.partners) == 1 and not each.missing for each in found)


def test_a_batch_of_comm_func_returns_what_it_received() -> None:
    point = {**operation("irecv", 1), "group_id": "hccl_world_group", "tensor": OURS}
    assert places(one("batch_isend_irecv", [point])) == {"receives": ["input.0.0"], "results": ["output.0"]}
    of_torch = {**operation("irecv", 1), "tensor": OURS}
    assert places(one("batch_isend_irecv", [of_torch])) == {"receives": ["input.0.0"], "results": ["output.0.0"]}


def test_gradients_travel_the_other_way() -> None:
    first, second = call(0, "send", OURS, 1), call(1, "recv", OURS, 0)
    back = [call(0, "Distributed.send.0.backward", OURS), call(1, "Distributed.recv.0.backward", OURS)]
    found = exchanges([[first, back[0]], [second, back[1]]], range(2))
    assert [(each.what, each.sources) for each in found] == [("send", ()), ("recv", (1,)), ("recv", (0,)), ("send", ())]
    assert [each.partners[0] for each in found] == [second, back[1], first, back[0]]


def test_nobody_gets_anything_in_a_barrier() -> None:
    found = one("barrier", None)
    assert found.sources == () and places(found) == {} and found.missing == (1, 2, 3)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("Distributed.all_reduce.0.forward", True),
        ("Distributed.barrier.0.forward", True),
        ("MintDistributed.P2POp.0.forward", False),
        ("Primitive.comm.AllReduce.0.forward", True),
        ("Primitive.AllReduce.Add.0.forward", False),
        ("Primitive.comm.BatchISendIRecv.3.forward", True),
        ("Torch.gather.0.forward", False),
        ("Tensor.scatter_.0.forward", False),
        ("Distributed.get_rank.0.forward", False),
    ],
)
def test_communication_is_known_by_its_name(record: str, expected: bool) -> None:
    assert is_communication(record) is expected


def test_ranks_that_contradict_each_other_come_to_an_end() -> None:
    def named(rank: int, *names: str) -> list[CollectiveCall]:
        return [CollectiveCall(rank, n, f"Distributed.{name}.0.forward", ()) for n, name in enumerate(names)]

    calls = [named(0, "broadcast", "all_reduce"), named(1, "all_reduce", "broadcast")]
    found = layers(calls, [0, 1])
    assert sorted(call.record for layer in found for link in layer for call in link) == sorted(
        call.record for of_rank in calls for call in of_rank
    )
