"""The values of a communication call that travel: those others get, those the call fills, and those without meaning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from probe.common.collectives.calls import (
    CollectiveCall,
    input_of,
    is_backward,
    is_returning,
    output_of,
)
from probe.common.collectives.functions import BARRIER, FROM_ONE, SEND, TO_ONE
from probe.common.dump.reading.records import INPUT, OUTPUT


@dataclass(frozen=True)
class Flow:
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
