"""What holds of every split and of every tensor: ranks and groups, statistics of pieces, calls that exchange data."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made_dumps import written

from probe.api.cli import main
from probe.common.collectives.collectives import CollectiveCall, exchanges
from probe.common.collectives.event_graph import layers
from probe.common.dump.naming import function_name
from probe.common.dump.reading import items
from probe.common.errors import MsprobeException
from probe.common.ranges import ranges
from probe.shards.merge import merge_tensors
from probe.shards.split import Calls, Split, check_ranks, splits
from probe.shards.split_runs import partners

ORDERS = [
    "-".join(order)
    for more in ((), ("cp",), ("ep",), ("cp", "ep"))
    for order in itertools.permutations(("tp", "dp", "pp", *more))
]
SIZE = st.integers(1, 5)


# --- ranks and groups


@given(tp=SIZE, pp=SIZE, dp=SIZE, order=st.sampled_from(ORDERS))
def test_every_rank_has_its_own_place(tp: int, pp: int, dp: int, order: str) -> None:
    split = Split(tp * pp * dp, tp, pp, 1, order)
    places = list(itertools.product(range(tp), range(dp), range(pp)))
    ranks = [split.rank(*place) for place in places]
    assert split.dp == dp and sorted(ranks) == list(range(split.rank_size))
    # The dimension that stands first counts fastest.
    sizes = {"tp": tp, "dp": dp, "pp": pp}
    for place, rank in zip(places, ranks):
        indices, rest = dict(zip(("tp", "dp", "pp"), place)), rank
        for name in order.split("-"):
            assert rest % sizes.get(name, 1) == indices.get(name, 0)
            rest //= sizes.get(name, 1)
        assert rest == 0


@given(text=st.text(max_size=12) | st.lists(st.sampled_from(["tp", "dp", "pp", "cp", "ep", "xp", ""])).map("-".join))
def test_an_order_is_one_of_those_that_are_allowed_or_an_error_that_names_it(text: str) -> None:
    if text in ORDERS:
        assert Split(8, 2, 2, 1, text).order == text
        return
    with pytest.raises(MsprobeException) as raised:
        Split(8, 2, 2, 1, text)
    assert str(raised.value).startswith('--order is "') and "allowed: tp, dp and pp once each" in str(raised.value)
    assert text in str(raised.value) or not text.isprintable()


@given(size=st.integers(-1, 30), tp=st.integers(-1, 6), pp=st.integers(-1, 6), vpp=st.integers(-1, 3))
def test_sizes_fit_or_the_flag_is_named(size: int, tp: int, pp: int, vpp: int) -> None:
    fits = min(size, tp, pp, vpp) > 0 and size % (tp * pp) == 0 and (vpp == 1 or pp > 1)
    if fits:
        assert Split(size, tp, pp, vpp).dp * tp * pp == size
        return
    with pytest.raises(MsprobeException, match=r"^--(rank_size|tp|pp|vpp) is -?\d+[;,] ?allowed"):
        Split(size, tp, pp, vpp)


@given(size=st.integers(1, 6), found=st.sets(st.integers(0, 8)))
def test_ranks_that_are_missing_or_too_many_are_named(size: int, found: set[int]) -> None:
    split = Split(size)
    if found == set(range(size)):
        check_ranks(split, sorted(found), "step0")
        return
    odd = sorted(set(range(size)) - found) or sorted(found - set(range(size)))
    with pytest.raises(MsprobeException) as raised:
        check_ranks(split, sorted(found), "step0")
    assert f"rank {ranges(odd)}" in str(raised.value) and "step0" in str(raised.value)


# --- statistics


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    count = math.prod(shape)
    number = st.floats(-1e4, 1e4, width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0])
    few = st.floats(-1e4, 1e4, width=32) if draw(st.booleans()) else number
    return np.array(draw(st.lists(few, min_size=count, max_size=count)), dtype=np.float64).reshape(shape)


def entry(array: np.ndarray) -> dict[str, Any]:
    """What a dump says of a tensor."""
    with np.errstate(all="ignore"):
        found = (array.max(), array.min(), array.mean(), np.linalg.norm(array.ravel()))
    statistics = dict(zip(("Max", "Min", "Mean", "Norm"), map(float, found)))
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape), **statistics}


def calls(records: dict[str, Any], rank: int) -> Calls:
    return Calls(dict.fromkeys(records), records, {}, {name: [(rank, name)] for name in records})


def merge(records: list[dict[str, Any]]) -> Calls:
    return merge_tensors(list(range(len(records))), [calls(each, rank) for rank, each in enumerate(records)])


def same(one: float, other: float) -> bool:
    return (one != one and other != other) or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-6)


@given(data=st.data(), array=arrays())
def test_statistics_of_pieces_give_those_of_the_whole(data: st.DataObject, array: np.ndarray) -> None:
    axis = data.draw(st.integers(0, array.ndim - 1))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(array.shape[axis] - 1, 1)), min_size=1)))
    pieces = [piece for piece in np.split(array, cuts, axis) if piece.size]
    assume(len(pieces) > 1 and len({str(entry(piece)) for piece in pieces}) > 1)
    name = "Functional.relu.0.forward"
    found = merge([{name: {"input_args": [entry(piece)], "input_kwargs": {}}} for piece in pieces])
    whole, (of_whole,) = entry(array), found.records[name]["input_args"]
    for key in ("Max", "Min"):
        assert same(of_whole[key], whole[key]), key
    # Two sums of the same n numbers in other orders are each off by (n - 1) u of the sum of their sizes, u = 2^-53.
    order = 2 * array.size * 2.0**-53 * float(np.abs(array.astype(np.float64)).mean())
    assert same(of_whole["Mean"], whole["Mean"]) or abs(of_whole["Mean"] - whole["Mean"]) <= order
    assert same(of_whole["Norm"], whole["Norm"]) or math.isclose(of_whole["Norm"], whole["Norm"], rel_tol=1e-6)
    how = found.items[f"{name}.input.0"]
    assert [part.rank for part in how.parts] == list(range(len(pieces))) and len(how.sentences) == 5
    # Which dimension it is cannot be told from pieces alone where they are all of one size.
    is_known = "is not known" not in how.sentences[-1]
    assert not is_known or math.prod(of_whole["shape"]) == array.size
    assert len({piece.shape for piece in pieces}) == 1 or of_whole["shape"] == list(array.shape)


@given(array=arrays(), count=st.integers(2, 4))
def test_what_all_ranks_have_alike_stays_as_it_is(array: np.ndarray, count: int) -> None:
    arguments = [entry(array), {"type": "int", "value": 3}]
    record = {"Functional.relu.0.forward": {"input_args": arguments, "input_kwargs": {}}}
    found = merge([record] * count)
    assert str(found.records) == str(record) and found.items == {}


@dataclass(frozen=True)
class LinearStep:
    """The forward and the backward pass of a linear layer, split by columns or by rows, as torch records them."""

    batch: int
    inputs: int
    outputs: int
    columns: bool
    has_bias: bool
    tp: int = 2

    def records(self, ranks: int) -> list[dict[str, Any]]:
        """The records of each of `ranks`, which are one or as many as the layer is split over."""
        random = np.random.default_rng(5)
        x, weight = random.normal(size=(self.batch, self.inputs)), random.normal(size=(self.outputs, self.inputs))
        bias, given_grad = random.normal(size=self.outputs), random.normal(size=(self.batch, self.outputs))
        along = {"columns": 0, "rows": 1}["columns" if self.columns else "rows"]
        of_ranks = zip(
            [x] * ranks if self.columns else np.split(x, ranks, 1), np.split(weight, ranks, along),
            np.split(bias, ranks), np.split(given_grad, ranks, 1) if self.columns else [given_grad] * ranks,
        )  # fmt: skip
        summed = given_grad @ weight if self.columns else x @ weight.T
        return [self._of_rank(ranks, summed, *arrays) for arrays in of_ranks]

    def _of_rank(
        self, ranks: int, summed: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray,
        given_grad: np.ndarray,
    ) -> dict[str, Any]:  # fmt: skip
        grad = given_grad @ weight
        biases = [bias] if self.has_bias and self.columns else []
        bias_grads = [entry(given_grad.sum(0))] if biases else []
        found = {
            "Functional.linear.0.forward": {"input_args": [entry(each) for each in (x, weight, *biases)],
                                            "input_kwargs": {}, "output": [entry(x @ weight.T)]},
            "Functional.linear.0.backward": {"input": [entry(given_grad)],
                                             "output": [*bias_grads, entry(grad), entry((given_grad.T @ x).T)]},
        }  # fmt: skip
        if ranks > 1:
            summand = grad if self.columns else x @ weight.T
            exchanged = {"input_args": [entry(summand)], "input_kwargs": {}, "output": [entry(summed)]}
            found["Distributed.all_reduce.0.forward"] = exchanged
        return found


LINEAR_STEPS = [
    LinearStep(batch, inputs, outputs, columns, has_bias)
    for batch, inputs, outputs in itertools.product((2, 4, 6), (4, 8), (4, 8))
    for columns, has_bias in ((True, True), (True, False), (False, False))
]


@pytest.mark.parametrize("step", LINEAR_STEPS, ids=str)
def test_gradients_of_a_linear_layer_are_never_merged_along_a_wrong_dimension(step: LinearStep) -> None:
    name = "Functional.linear.0.backward"
    found, (whole,) = merge(step.records(step.tp)), step.records(1)
    for index, (merged_entry, of_whole) in enumerate(zip(found.records[name]["output"], whole[name]["output"])):
        said = found.items[f"{name}.output.{index}"].sentences[-1]
        assert merged_entry["shape"] == of_whole["shape"] or "is not known" in said
        assert all(same(merged_entry[key], of_whole[key]) for key in ("Max", "Min", "Mean", "Norm"))


@pytest.mark.parametrize("step", LINEAR_STEPS, ids=str)
def test_a_whole_golden_run_tells_the_dimension_that_ranks_do_not(
    step: LinearStep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank, records in enumerate(step.records(step.tp)):
        written(tmp_path / "split" / "step0" / f"rank{rank}", records, None)
    written(tmp_path / "whole" / "step0" / "proc1", step.records(1)[0], None)
    paths = ["-tp", str(tmp_path / "split"), "-gp", str(tmp_path / "whole"), "-o", str(tmp_path / "out")]
    assert main(["compare", *paths, "--rank_size", "2", "1", "--tp", "2", "1", "--pp", "1", "1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no divergence") and " 0 error" in said and "has shape" not in said


def test_a_transposed_tensor_is_split_along_the_dimension_that_moved() -> None:
    random = np.random.default_rng(5)
    given_x, weight = random.normal(size=(3, 4)), random.normal(size=(6, 4))
    records = []
    for piece in np.split(weight, 2):
        # The result of each rank is square, so that shapes do not tell a transposed one.
        result = given_x @ piece.T
        swapped = [entry(result), {"type": "int", "value": 0}, {"type": "int", "value": 1}]
        records.append({
            "Functional.linear.0.forward": {"input_args": [entry(given_x), entry(piece)], "output": [entry(result)]},
            "Tensor.transpose.0.forward": {"input_args": swapped, "output": [entry(result.T)]},
        })  # fmt: skip
    (output,) = merge(records).records["Tensor.transpose.0.forward"]["output"]
    assert output["shape"] == [6, 3]


# --- calls that exchange data


@dataclass(frozen=True)
class Event:
    """One exchange of all that the ranks do, in an order in which they could."""

    kind: str
    ranks: tuple[int, ...]
    """Source and destination, or the group."""
    group: tuple[int, ...] | None = None
    tag: int = 0

    def channel(self, size: int) -> tuple[Any, ...]:
        """What happens in it keeps its order; what happens in several may be begun in any order."""
        group = tuple(range(size)) if self.group is None else self.group
        return ("send", self.ranks, self.tag, group) if "send" in self.kind else (self.kind, group)


@st.composite
def events(draw: st.DrawFn) -> tuple[int, list[Event]]:
    size = draw(st.integers(2, 5))
    pairs = st.permutations(range(size)).map(lambda order: tuple(order[:2]))
    groups = st.sets(st.integers(0, size - 1), min_size=2).map(lambda ranks: tuple(sorted(ranks)))
    found = []
    kinds = st.sampled_from(["send", "isend", "all_reduce", "broadcast", "all_gather"])
    for kind in draw(st.lists(kinds, max_size=12)):
        if "send" in kind:
            ranks = draw(pairs)
            around = draw(st.none() | groups)
            found.append(Event(kind, ranks, around and tuple(sorted({*around, *ranks})), draw(st.integers(0, 1))))
        else:
            group = draw(st.none() | groups)
            found.append(Event(kind, group or tuple(range(size)), group))
    return size, found


def group_entry(group: tuple[int, ...]) -> dict[str, Any]:
    ranks = list(group)
    return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": f"{zlib.crc32(str(ranks).encode()):08x}"}


def records_of(
    size: int, planned: list[Event], orders: list[list[int]] | None = None
) -> tuple[list[dict[str, Any]], dict[int, set[tuple[int, str]]]]:
    """The records of every rank, and of each event the calls that belong to it."""
    records: list[dict[str, Any]] = [{} for _ in range(size)]
    expected: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for rank in range(size):
        counts: Counter[str] = Counter()
        for number in range(len(planned)) if orders is None else orders[rank]:
            event = planned[number]
            if rank not in event.ranks:
                continue
            api, arguments = event.kind, {}
            if "send" in event.kind:
                is_source = rank == event.ranks[0]
                api = event.kind if is_source else event.kind.replace("send", "recv")
                peer = {"type": "int", "value": event.ranks[int(is_source)]}
                arguments = {"dst" if is_source else "src": peer, "tag": {"type": "int", "value": event.tag}}
            if event.group is not None:
                arguments["group"] = group_entry(event.group)
            name = f"Distributed.{api}.{counts[api]}.forward"
            counts[api] += 1
            records[rank][name] = {"input_args": [entry(np.full(2, float(number)))], "input_kwargs": arguments}
            expected[number].add((rank, name))
    return records, expected


def calls_of_ranks(records: list[dict[str, Any]]) -> list[list[CollectiveCall]]:
    return [
        [
            CollectiveCall(rank, index, name, tuple(items.flatten(name, fields)))
            for index, (name, fields) in enumerate(of_rank.items())
        ]
        for rank, of_rank in enumerate(records)
    ]


def reordered(size: int, planned: list[Event], random: Random) -> list[list[int]]:
    """For each rank the numbers of its events, channel by channel in their order, the channels mixed at random."""
    found = []
    for rank in range(size):
        own = [number for number, event in enumerate(planned) if rank in event.ranks]
        channels: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number in own:
            channels[planned[number].channel(size)].append(number)
        order = [planned[number].channel(size) for number in own]
        random.shuffle(order)
        waiting = {channel: iter(numbers) for channel, numbers in channels.items()}
        found.append([next(waiting[channel]) for channel in order])
    return found


@given(planned=events(), random=st.randoms(use_true_random=False))
def test_calls_belong_together_as_they_were_planned(planned: tuple[int, list[Event]], random: Random) -> None:
    size, of_all = planned
    records, expected = records_of(size, of_all, reordered(size, of_all, random))
    every = calls_of_ranks(records)
    where = {call: number for number, each in expected.items() for call in each}
    found = exchanges(every, range(size))
    assert len(found) == len(where)
    for exchange in found:
        one = (exchange.call.rank, exchange.call.record)
        partners_of_one = {(call.rank, call.record) for call in exchange.partners}
        assert {one} | partners_of_one == expected[where[one]]
        assert exchange.missing == ()


@given(planned=events())
def test_layers_hold_every_call_once_and_in_the_order_of_each_rank(planned: tuple[int, list[Event]]) -> None:
    size, of_all = planned
    records, _ = records_of(size, of_all)
    every = calls_of_ranks(records)
    found = layers(every, range(size))
    for rank, of_rank in enumerate(every):
        walked = [call for layer in found for link in layer for call in link if call.rank == rank]
        assert walked == of_rank
    for layer in found:
        ranks = [call.rank for link in layer for call in link]
        assert len(ranks) == len(set(ranks)), "a rank does one thing at a time"


def matched(*records: dict[str, Any]) -> dict[tuple[int, str], list[tuple[int, str]]]:
    """The partners of every call of these ranks, without direction and number."""
    every = calls_of_ranks([{f"{name}.0.forward": fields for name, fields in each.items()} for each in records])
    found = {}
    for each in exchanges(every, range(len(records))):
        partners_of_call = [(one.rank, function_name(one.record)) for one in each.partners]
        found[each.call.rank, function_name(each.call.record)] = partners_of_call
    return found


def test_a_peer_that_is_left_out_is_rank_zero_in_mindspore_and_anyone_in_pytorch() -> None:
    send, nothing = {"input_args": [entry(np.ones(2))]}, {"input_args": [None]}
    to_one = {**send, "input_kwargs": {"dst": {"type": "int", "value": 1}}}
    from_one = {**nothing, "input_kwargs": {"src": {"type": "int", "value": 1}}}
    found = matched({"MintDistributed.recv": from_one}, {"MintDistributed.send": send})
    assert found == {(0, "recv"): [(1, "send")], (1, "send"): [(0, "recv")]}
    receive = {"MintDistributed.recv": nothing}
    found = matched({"MintDistributed.send": to_one}, receive, receive)
    assert found[1, "recv"] == [(0, "send")] and found[2, "recv"] == []
    found = matched({"Distributed.send": to_one}, {"Distributed.recv": nothing})
    assert found[1, "recv"] == [(0, "send")]


@given(planned=events(), data=st.data())
def test_a_call_that_is_lost_is_missed_by_its_partners(
    planned: tuple[int, list[Event]], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    size, of_all = planned
    records, expected = records_of(size, of_all)
    last = [(rank, list(of_rank)[-1]) for rank, of_rank in enumerate(records) if of_rank]
    assume(last)
    rank, name = data.draw(st.sampled_from(last))
    (event,) = (number for number, each in expected.items() if (rank, name) in each)
    del records[rank][name]
    folder = tmp_path_factory.mktemp("run")
    found = partners({number: written(folder / f"rank{number}", each, None) for number, each in enumerate(records)})
    assert {one for one, _ in found.unpaired} == {other for other, _ in expected[event] if other != rank}
    for other, call in expected[event] - {(rank, name)}:
        (sentence,) = found.unpaired_of([other])
        assert sentence.startswith(f"{call} of rank {other} (") and sentence.endswith(f"on rank {rank}.")


def test_both_sides_have_as_many_copies() -> None:
    assert [split.dp for split in splits(2, [8, 4], [2, 1], [2, 2])] == [2, 2]
    with pytest.raises(MsprobeException, match="is 2 and 4"):
        splits(2, [8, 4], [2, 1], [2, 1])
    with pytest.raises(MsprobeException, match="--vpp has 1 values, 2; allowed: two values"):
        splits(2, [8, 4], [2, 1], [2, 2], [2])
