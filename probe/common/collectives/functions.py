"""The communication functions of the frameworks, and what their arguments are for.

Three families differ in where a result arrives. Those of torch.distributed, MSAdapter's too, and of
mindspore.mint.distributed write it into an argument. Those of mindspore.communication.comm_func, whose records begin
like torch's, and the primitives that a cell of MindSpore has return it; a primitive has been made with its group and
its peer, which are attributes of its records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

SEND, RECV, BATCH, BARRIER = "send", "recv", "batch", "barrier"
BROADCAST, SCATTER, REDUCE, GATHER = "broadcast", "scatter", "reduce", "gather"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = "all_reduce", "all_gather", "reduce_scatter", "all_to_all"

FROM_ONE = (BROADCAST, SCATTER)
"""One rank gives, the others get it."""
TO_ONE = (REDUCE, GATHER)
"""All give, one rank gets it."""


@dataclass(frozen=True)
class CollectiveFunction:
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
