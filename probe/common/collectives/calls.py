"""One communication call of one rank: its function, its arguments, and the values that travel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from typing import Any, Union

import msgspec
from msgspec.structs import replace

from probe.common.dump.naming import BACKWARD, FORWARD, function_name
from probe.common.dump.reading.records import INPUT, OUTPUT, Item, Record

SEND, RECV, BATCH, BARRIER = "send", "recv", "batch", "barrier"
BROADCAST, SCATTER, REDUCE, GATHER = "broadcast", "scatter", "reduce", "gather"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"

FROM_ONE = (BROADCAST, SCATTER)
"""One rank gives, the others get it."""
TO_ONE = (REDUCE, GATHER)
"""All give, one rank gets it."""


class CollectiveFunction(msgspec.Struct, frozen=True, dict=True):
    """The properties of a communication function by its arguments."""

    kind: str
    arguments: tuple[str, ...] = ()
    """Their names in order."""
    gives: tuple[str, ...] = ()
    """Arguments whose content others get; none of a function that nobody knows, which may give any."""
    fills: tuple[str, ...] = ()
    """Arguments whose content before the call means nothing, because only the call fills them."""
    results: tuple[str, ...] = ()
    """Arguments in which the result arrives; none where it is returned."""
    root: str = ""
    """The argument or attribute that names the one rank which gives or gets, or the peer."""
    default_root: int | None = None
    is_root_in_group: bool = False
    """True if the root is an index in the group, and not a rank of the run."""
    is_known: bool = True

    @cached_property
    def positions(self) -> dict[str, str]:
        """The positions of the arguments as records have them."""
        return {name: str(position) for position, name in enumerate(self.arguments)}


def _function(
    kind: str, arguments: str = "", gives: str = "", fills: str = "", results: str = "", root: str = "",
    default_root: int | None = None, is_root_in_group: bool = False,
) -> CollectiveFunction:  # fmt: skip
    filled = tuple(fills.split())
    return CollectiveFunction(
        kind, tuple(arguments.split()), tuple(gives.split()), filled, tuple(results.split()) or filled, root,
        default_root, is_root_in_group,
    )  # fmt: skip


def _returning(kind: str, arguments: str, gives: str, **more: str | int) -> CollectiveFunction:
    root = str(more.get("root", ""))
    return CollectiveFunction(
        kind, tuple(arguments.split()), tuple(gives.split()), root=root, default_root=0 if root else None
    )


_SEND = _function(SEND, "tensor dst group tag group_dst", gives="tensor", root="dst", default_root=0)
_RECV = _function(RECV, "tensor src group tag group_src", fills="tensor", root="src")
_ALL_GATHER_INTO = _function(
    ALL_GATHER, "output_tensor input_tensor group async_op", gives="input_tensor", fills="output_tensor"
)
_REDUCE_SCATTER_TENSOR = _function(REDUCE_SCATTER, "output input op group async_op", gives="input", fills="output")

IN_PLACE = {
    "send": _SEND,
    "isend": _SEND,
    "recv": _RECV,
    "irecv": _RECV,
    "batch_isend_irecv": _function(BATCH, "p2p_op_list"),
    "barrier": _function(BARRIER, "group async_op device_ids"),
    "monitored_barrier": _function(BARRIER, "group timeout wait_all_ranks"),
    "broadcast": _function(
        BROADCAST, "tensor src group async_op group_src", gives="tensor", results="tensor", root="src", default_root=0
    ),
    "scatter": _function(
        SCATTER, "tensor scatter_list src group async_op group_src", gives="scatter_list", fills="tensor", root="src",
        default_root=0,
    ),
    "reduce": _function(REDUCE, "tensor dst op group async_op group_dst", gives="tensor", results="tensor", root="dst"),
    "gather": _function(
        GATHER, "tensor gather_list dst group async_op group_dst", gives="tensor", fills="gather_list", root="dst",
        default_root=0,
    ),
    "all_reduce": _function(ALL_REDUCE, "tensor op group async_op", gives="tensor", results="tensor"),
    "all_reduce_coalesced": _function(ALL_REDUCE, "tensors op group async_op", gives="tensors", results="tensors"),
    "all_gather": _function(ALL_GATHER, "tensor_list tensor group async_op", gives="tensor", fills="tensor_list"),
    "all_gather_coalesced": _function(
        ALL_GATHER, "output_tensor_lists input_tensor_list group async_op", gives="input_tensor_list",
        fills="output_tensor_lists",
    ),
    "all_gather_into_tensor": _ALL_GATHER_INTO,
    "_all_gather_base": _ALL_GATHER_INTO,
    "all_gather_into_tensor_uneven": _function(
        ALL_GATHER, "output input output_split_sizes group async_op", gives="input", fills="output"
    ),
    "reduce_scatter": _function(
        REDUCE_SCATTER, "output input_list op group async_op", gives="input_list", fills="output"
    ),
    "reduce_scatter_tensor": _REDUCE_SCATTER_TENSOR,
    "_reduce_scatter_base": _REDUCE_SCATTER_TENSOR,
    "reduce_scatter_tensor_uneven": _function(
        REDUCE_SCATTER, "output input input_split_sizes op group async_op", gives="input", fills="output"
    ),
    "all_to_all": _function(
        ALL_TO_ALL, "output_tensor_list input_tensor_list group async_op", gives="input_tensor_list",
        fills="output_tensor_list",
    ),
    "all_to_all_single": _function(
        ALL_TO_ALL, "output input output_split_sizes input_split_sizes group async_op", gives="input", fills="output"
    ),
}  # fmt: skip
"""Functions of torch.distributed and mindspore.mint.distributed."""

_RETURNING_SEND = _returning(SEND, "tensor dst group tag", "tensor", root="dst")
_RETURNING_RECV = CollectiveFunction(
    RECV, ("tensor", "src", "group", "tag"), fills=("tensor",), root="src", default_root=0
)

RETURNING = {
    "send": _RETURNING_SEND,
    "isend": _RETURNING_SEND,
    "recv": _RETURNING_RECV,
    "irecv": _RETURNING_RECV,
    "batch_isend_irecv": _function(BATCH, "p2p_op_list"),
    "barrier": _function(BARRIER, "group"),
    "broadcast": _returning(BROADCAST, "tensor src group", "tensor", root="src"),
    "scatter_tensor": _returning(SCATTER, "tensor src group", "tensor", root="src"),
    "reduce": _returning(REDUCE, "tensor dst op group", "tensor", root="dst"),
    "gather_into_tensor": _returning(GATHER, "tensor dst group", "tensor", root="dst"),
    "all_reduce": _returning(ALL_REDUCE, "tensor op group async_op", "tensor"),
    "all_gather_into_tensor": _returning(ALL_GATHER, "tensor group async_op", "tensor"),
    "reduce_scatter_tensor": _returning(REDUCE_SCATTER, "tensor op group async_op", "tensor"),
    "all_to_all_single_with_output_shape": _returning(
        ALL_TO_ALL, "output_shape tensor output_split_sizes input_split_sizes group async_op", "tensor"
    ),
    "all_to_all_with_output_shape": _returning(
        ALL_TO_ALL, "output_shape_list input_tensor_list group async_op", "input_tensor_list"
    ),
    "all_to_all_v_c": _function(
        ALL_TO_ALL, "output input send_count_matrix group async_op", gives="input", fills="output"
    ),
}
"""Functions of mindspore.communication.comm_func."""


def _primitive(kind: str, root: str = "", default_root: int | None = None) -> CollectiveFunction:
    gives = () if kind in (RECV, BARRIER) else ("x",)
    fills = ("x",) if kind == RECV else ()
    # HCCL counts the ranks of a group, from 0 on.
    return CollectiveFunction(kind, ("x",), gives, fills, root=root, default_root=default_root, is_root_in_group=True)


PRIMITIVES = {
    "Send": _primitive(SEND, "dest_rank"),
    "Receive": _primitive(RECV, "src_rank"),
    "BatchISendIRecv": _primitive(BATCH),
    "Barrier": _primitive(BARRIER),
    "Broadcast": _primitive(BROADCAST, "root_rank"),
    "CollectiveScatter": _primitive(SCATTER, "src_rank", default_root=0),
    "Reduce": _primitive(REDUCE, "dest_rank"),
    "CollectiveGather": _primitive(GATHER, "dest_rank"),
    "AllReduce": _primitive(ALL_REDUCE),
    "AllGather": _primitive(ALL_GATHER),
    "AllGatherV": _primitive(ALL_GATHER),
    "ReduceScatter": _primitive(REDUCE_SCATTER),
    "ReduceScatterV": _primitive(REDUCE_SCATTER),
    "AlltoAll": _primitive(ALL_TO_ALL),
    "AlltoAllV": _primitive(ALL_TO_ALL),
    "AlltoAllVC": _primitive(ALL_TO_ALL),
    "NeighborExchange": _primitive(ALL_TO_ALL),
    "NeighborExchangeV2": _primitive(ALL_TO_ALL),
}
"""The collectives that a cell of MindSpore has."""

# The longer name first where one is a part of another.
_WORDS = (
    ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, BROADCAST, SCATTER, GATHER, REDUCE, SEND, RECV,
)  # fmt: skip


def guessed(name: str) -> CollectiveFunction | None:
    """The properties of a function that is in no table, guessed by its name; ``None`` if it does not communicate."""
    kind = next((word for word in _WORDS if word in name), None)
    if kind is None:
        return None
    # Nobody knows which argument is the peer, and not even whether a batch of sends and receives is meant.
    return CollectiveFunction(kind, is_known=False)


# --- calls


MINT = "MintDistributed."
_COMM_FUNC = "communication.comm_func."
_PREFIXES = ("Distributed.", MINT, _COMM_FUNC)
_PRIMITIVE = "Primitive."
_RANKS = re.compile(r"(?<![0-9])[0-9]{1,9}(?![0-9])")
_INPUTS = re.compile(rf"^(.*?\.(?:{FORWARD}|{BACKWARD}))\.{INPUT}\.([^.]+)")
# hccl_world_group, nccl_world_group, mccl_world_group
_WORLD = re.compile(r"[a-z]+_world_group\Z")
# Of the groups of torch.distributed, which have no names of their own.
_GROUP_ID = re.compile(r"[0-9a-f]{8}\Z")
_PROCESS_GROUP = "torch.ProcessGroup"
_NOT_A_MEMBER = -100
"""The group of torch.distributed for a rank that is not in it."""
_TENSORS_OF_TORCH = "torch."

Group = Union[tuple[int, ...], str]
"""The ranks of a group, or its name where a dump has no more."""


class CollectiveCall(msgspec.Struct, frozen=True, dict=True):
    """One communication call of one rank."""

    rank: int
    index: int
    """The number of its record among those of its rank."""
    record: str
    inputs: tuple[Item, ...]
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The arguments that a primitive was made with."""

    @cached_property
    def api(self) -> str:
        """``all_reduce``, ``AllReduce``."""
        return function_name(self.record)

    @cached_property
    def function(self) -> CollectiveFunction:
        """The properties of the called function."""
        if self.record.startswith(_PRIMITIVE):
            return PRIMITIVES[self.api]
        table = RETURNING if is_returning(self) else IN_PLACE
        name = self.api
        return table.get(name) or IN_PLACE.get(name) or RETURNING.get(name) or guessed(name) or CollectiveFunction(name)

    @cached_property
    def group(self) -> Group | None:
        """The group of the call, as `group_of` has it."""
        if self.record.startswith(_PRIMITIVE):
            return named_group(self.attributes.get("group"))
        for item in self.inputs:
            if item.dtype == _PROCESS_GROUP and item.state == INPUT:
                return _ranks(str(item.value))
        named = argument(self, "group")
        return None if named is None else named_group(named.value)

    @cached_property
    def passed(self) -> dict[str, str]:
        """The positions and names of the arguments that were passed, and what their items' names begin with."""
        found: dict[str, str] = {}
        begin = f"{self.record}.{INPUT}."
        length = len(begin)
        for item in self.inputs:
            if item.state != INPUT:
                continue
            if item.name.startswith(begin):
                key = item.name[length:].partition(".")[0]
                if key not in found:
                    found[key] = begin + key
            elif inputs := _INPUTS.search(item.name):
                # The items of a comparison can have the names of another call.
                found.setdefault(inputs.group(2), inputs.group())
        return found


def collective_call(rank: int, index: int, record: Record) -> CollectiveCall:
    """The call that `record` holds, which has the number `index` among those of its rank.

    Raises:
        DumpFormatError: the record is damaged.
    """
    attributes = record.attributes if record.name.startswith(_PRIMITIVE) else {}
    return CollectiveCall(rank, index, record.name, tuple(record.items()), attributes)


def without_statistics(call: CollectiveCall) -> CollectiveCall:
    """The call with all that tells what it exchanges, and no values of tensors: it crosses processes cheaply."""
    inputs = tuple(
        Item(item.name, item.state, item.dtype, peer=item.peer) if item.is_tensor else item for item in call.inputs
    )
    return replace(call, inputs=inputs)


def is_communication(record: str) -> bool:
    """True if the record is a call by which ranks exchange data."""
    if record.startswith(_PRIMITIVE):
        return function_name(record) in PRIMITIVES
    if not record.startswith(_PREFIXES):
        return False
    name = function_name(record)
    return name in IN_PLACE or name in RETURNING or guessed(name) is not None


def is_backward(record: str) -> bool:
    """True if the record holds the gradients of a call."""
    return record.endswith(f".{BACKWARD}")


def forward_of(record: str) -> str:
    """The name of the call whose gradients `record` holds."""
    return f"{record[: -len(BACKWARD)]}{FORWARD}"


def is_returning(call: CollectiveCall) -> bool:
    """True if the function is one of comm_func, whose records begin like those of torch, and returns its result.

    MSAdapter has torch's functions with MindSpore's tensors. Where both take the same arguments this says no: the
    result is the first output of either.
    """
    name = call.api
    if call.record.startswith((MINT, _COMM_FUNC)) or name not in IN_PLACE:
        return not call.record.startswith(MINT)
    if name not in RETURNING or not (IN_PLACE[name].fills or IN_PLACE[name].kind == BATCH):
        return False
    tensors = [item for item in call.inputs if item.is_tensor and item.state == INPUT]
    if any(str(item.dtype).startswith(_TENSORS_OF_TORCH) for item in tensors):
        return False
    peers = [item.peer for item in call.inputs if item.peer is not None and item.state == INPUT]
    if peers:
        # All of a batch of receives have a tensor only where nothing but what is returned is filled.
        return len(tensors) == len(peers) and not any(_GROUP_ID.match(str(group_id)) for *_, group_id in peers)
    # With a buffer to fill there would be another tensor, or nothing in its place.
    return len(tensors) == 1 and call.inputs[0].is_tensor


def group_of(items: Iterable[Item]) -> Group | None:
    """The group that a call names among its inputs.

    Returns:
        ``None`` where it names none, and means all ranks; no rank where the own one is not in the group.
    """
    inputs = tuple(item for item in items if item.state == INPUT)
    found = _INPUTS.search(inputs[0].name) if inputs else None
    return CollectiveCall(0, 0, found.group(1), inputs).group if found else None


@lru_cache(maxsize=4096)
def _ranks(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _RANKS.findall(text))


def named_group(value: Any) -> Group | None:
    """The group of a name; ``None`` for that of all ranks, no rank for one that the own rank is not in."""
    if value == _NOT_A_MEMBER:
        return ()
    return value if isinstance(value, str) and value and not _WORLD.match(value) else None


def argument(call: CollectiveCall, name: str) -> Item | None:
    """The plain argument `name` of a call, however it was passed; ``None`` where it was not."""
    wanted = input_of(call, name)
    return None if wanted is None else next((item for item in call.inputs if item.name == wanted), None)


def input_of(call: CollectiveCall, name: str) -> str | None:
    """The prefix of the names of the items of the argument `name`; ``None`` if it was not passed."""
    key = _key_of(call, name)
    return None if key is None else call.passed[key]


def output_of(call: CollectiveCall, name: str) -> str | None:
    """The place of the argument `name` among the outputs, which repeat the arguments; ``None`` if it was not passed."""
    key = _key_of(call, name)
    return None if key is None else f"{call.record}.{OUTPUT}.{list(call.passed).index(key)}"


def _key_of(call: CollectiveCall, name: str) -> str | None:
    passed = call.passed
    if name in passed:
        return name
    position = call.function.positions.get(name)
    return position if position in passed else None


# --- flow


class Flow(msgspec.Struct, frozen=True):
    """Items of one call, each by what its name begins with: ``<record>.input.0`` stands for ``<record>.input.0.1`` too.

    What is not here are plain arguments, and outputs that repeat what went in.
    """

    gives: tuple[str, ...] = ()
    """Inputs of which the results are made, here or on other ranks."""
    receives: tuple[str, ...] = ()
    """Inputs whose content means nothing: buffers that the call fills, and what only another rank would have given."""
    results: tuple[str, ...] = ()
    """Outputs that hold what was exchanged."""
    undefined: tuple[str, ...] = ()
    """Outputs whose content means nothing, as on the ranks to which a reduce does not bring its result."""

    def __add__(self, other: Flow) -> Flow:
        return Flow(
            (*self.gives, *other.gives), (*self.receives, *other.receives), (*self.results, *other.results),
            (*self.undefined, *other.undefined),
        )  # fmt: skip


def is_among(name: str, begins: Iterable[str]) -> bool:
    """True if the item `name` is, or is in, one of those that `begins` stands for.

    Example:
        >>> is_among("Distributed.all_gather.0.forward.input.0.1", ["Distributed.all_gather.0.forward.input.0"])
        True
    """
    return any(name == begin or name.startswith(f"{begin}.") for begin in begins)


def flow_of(call: CollectiveCall, is_root: bool | None) -> Flow:
    """The flow of a call that is no batch of sends and receives.

    Args:
        is_root: true if its rank is the one that gives or gets; ``None`` where the call does not say which is.
    """
    function = call.function
    everything, all_results = (f"{call.record}.{INPUT}",), (f"{call.record}.{OUTPUT}",)
    if is_backward(call.record):
        return Flow(everything, (), all_results)
    if not function.is_known:
        return Flow(everything, (), () if function.kind == SEND else all_results)
    gives = _items(call, function.gives, False)
    receives = _items(call, function.fills, False)
    results = _items(call, function.results, True)
    if not function.results and function.kind not in (SEND, BARRIER):
        results = all_results
    if function.kind in FROM_ONE and is_root is False:
        return Flow((), (*gives, *receives), results)
    if function.kind in TO_ONE and is_root is False:
        return Flow(gives, receives, (), results)
    return Flow(gives, receives, results)


def flow_of_operation(call: CollectiveCall, name: str, is_send: bool) -> Flow:
    """The flow of the send or receive `name`, an input, in a batch."""
    if is_send:
        return Flow((name,))
    inputs, _, argument_path = name.rpartition(f".{INPUT}.")
    # If the arguments are repeated, they are in a list.
    result = argument_path.rpartition(".")[2] if is_returning(call) else argument_path
    return Flow((), (name,), (f"{inputs}.{OUTPUT}.{result}",))


def _items(call: CollectiveCall, arguments: Iterable[str], are_outputs: bool) -> tuple[str, ...]:
    item_of = output_of if are_outputs else input_of
    items = (item_of(call, name) for name in arguments)
    return tuple(item for item in items if item is not None)
