"""One communication call of one rank: which function it is, and what its arguments say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Union

from probe.common.collectives.functions import BATCH, IN_PLACE, PRIMITIVES, RETURNING, CollectiveFunction, guessed
from probe.common.dump.naming import BACKWARD, FORWARD, function_name
from probe.common.dump.reading.records import INPUT, OUTPUT, Item, Record

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


@dataclass(frozen=True)
class CollectiveCall:
    """One communication call of one rank."""

    rank: int
    index: int
    """The number of its record among those of its rank."""
    record: str
    inputs: tuple[Item, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
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
