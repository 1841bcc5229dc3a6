"""The gradient graph of a framework: its interface, the edges into a call, and the hooks on its nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional, Union

from typing_extensions import Protocol, TypeAlias

from probe.common.interfaces import Listener

Edge: TypeAlias = tuple[Any, int]
"""A gradient node, and the number of the output of it (of the forward, so a gradient input) that a tensor is."""
Cut: TypeAlias = Callable[[Any], Any]
"""Takes a tensor's part out of a gradient of the larger tensor it lies in; two that take the same part are equal."""
GradientEdge: TypeAlias = Optional[Union[Edge, tuple[Any, int, Cut]]]
"""The edge of a tensor, or that of the tensor it lies in with its part of it; ``None`` for a tensor that takes no
gradient and is listed in the record all the same."""
FindEdges: TypeAlias = Callable[[Sequence[Any], Mapping[str, Any]], list[GradientEdge]]
"""Finds the gradient edges of a call's inputs."""

LEAF_NUMBER = 1 << 62
"""Nodes of leaves have this number or a higher one, and say nothing about the order of the others."""


class Writes(NamedTuple):
    """The writes of a call, in place, to tensors it was given."""

    before: list[tuple[int, GradientEdge]]
    """For each input that it wrote to, the edge of what was there before, besides the input's own edge."""
    after: list[Edge]
    """The edges of what is there now, whether the call returned these tensors or not."""


class ReturnedView(NamedTuple):
    """A view that a call returned. Once its memory is written to, only a part of its gradient reaches its edge."""

    output: int
    """The number of the tensor among the outputs."""
    inputs: Sequence[int]
    """The inputs that are views of the same tensor, or that tensor: parts of their gradients pass through this view."""
    is_written: Callable[[], bool]
    """True if its memory was written to since the call."""


class GradientGraph(Protocol):
    """A framework's gradient graph. Nodes are compared by identity."""

    without_gradient_last: bool
    """True if backwards still open at the end of a pass that got no gradient of an input end last, outermost first."""

    def recording(self) -> bool:
        """True if operations are being recorded for a gradient."""

    def input_edges(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[GradientEdge]:
        """The gradient edges of a call's inputs."""

    def writes(self, inputs: list[GradientEdge]) -> Writes | None:
        """The writes of the call to the tensors with the edges `inputs`, which `input_edges` returned."""

    def output_edges(self, output: Any, inputs: list[GradientEdge]) -> list[GradientEdge]:
        """The gradient edges of what it returned; asked after `writes`."""

    def returned_views(self, output: Any, inputs: list[GradientEdge]) -> Sequence[ReturnedView]:
        """The views among what it returned whose edges do not get all of their gradient once they are written to."""

    def entry_number(self, inputs: list[GradientEdge]) -> int:
        """A sequence number that no node of the call about to begin is below, and each earlier one is."""

    def next_edges(self, node: Any) -> Sequence[tuple[Any, int]]:
        """The edges along which `node` sends gradients on, one for each of its forward inputs; ``None`` for no node."""

    def walked(self, nodes: Collection[Any]) -> None:
        """Note that these nodes, or ``None``, were walked over, in any order."""

    def number(self, node: Any) -> int:
        """The node's sequence number."""

    def metadata(self, node: Any) -> dict[str, Any]:
        """The dict kept with a node for as long as the node may still run; others may keep something there too."""

    def hold(self, node: Any) -> None:
        """Keep a leaf's node, and its metadata, until `forget`."""

    def forget(self) -> None:
        """The step is over; no gradient of it will be reported."""

    def register_prehook(self, node: Any, callback: Callable[[Sequence[Any]], None]) -> None:
        """Call `callback` with the gradients of the node's outputs before it runs."""

    def register_posthook(self, node: Any, callback: Callable[[Sequence[Any], Sequence[Any]], None]) -> None:
        """Call `callback` with the gradients of its inputs, and of its outputs, after it has run."""

    def current_pass(self) -> int:
        """The number of the backward pass under way on this thread, -1 outside of one."""

    def current_number(self) -> int | None:
        """The number of the node that runs now, where that is known."""

    def at_end_of_pass(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the pass under way is over."""

    def release(self, number: int) -> None:
        """A pass is over that ran nodes with sequence numbers from `number` on; they will not run again."""

    def add(self, one: Any, other: Any) -> Any:
        """The sum of two gradients."""

    def guarded(self, about: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)` unobserved, and report a failure instead of raising it."""


# --- edges


End: TypeAlias = tuple[Optional[int], Any]
"""The begin of a call's backward: the index of the output, ``None`` for a tensor that was written and not returned, and
its gradient edge."""
Crossing: TypeAlias = tuple[Any, int, Sequence[int], Optional[Cut]]
"""An edge from inside a call to its inputs: the node inside, its slot, the inputs, and their part of the gradient."""
Exit: TypeAlias = tuple[Any, int, Edge]
"""An edge that leads out of a call: the node inside, its slot, and the edge."""
WORTH_NOTING = 8
"""The fewest nodes, besides two for each exit, for which exits are kept. A guess: of a layer with a node or three they
are more objects for the garbage collector than the walk is worth."""
NodeCrossing: TypeAlias = tuple[int, Sequence[int], Optional[Cut]]
"""An edge from inside a call, of a known node: its slot, the inputs, and their part of the gradient."""


def unreturned(writes: Writes, ends: list[End]) -> list[End]:
    """The edges of what a call wrote that are of nothing it returned."""
    returned = {edge[:2] for _, edge in ends}
    return [(None, edge) for edge in dict.fromkeys(writes.after) if edge not in returned]


class Passages:
    """The calls that a walk over the gradient graph can pass without walking through them again.

    A call that has been left keeps with the node of its only output which edges lead out of it. A call around it needs
    no more of it, as long as none of its own inputs is inside: else modules nested n deep cost n walks over each node.
    """

    key = "msprobe exits"
    """The key of a call's exits in the metadata of its node; they are the same for every tracker."""

    def __init__(self, graph: GradientGraph) -> None:
        self._graph = graph
        self.numbers: set[int] = set()
        """The sequence numbers of nodes with exits: most nodes have none, and need no metadata to say so. Nodes of
        several threads can have the same number."""

    def allow(self, inputs: Iterable[Any], entered_at: int) -> bool:
        """True if a call with these inputs can be walked with passages.

        Each call inside began later than this one, so only of nodes that were there before it can be said that no edge
        between two nodes of such a call leads to them. Leaves are used anywhere, and a view that lost its node or was
        written to inside has a later one.
        """
        number_of = self._graph.number
        return all(len(given) == 2 and number_of(given[0]) < entered_at for given in inputs)

    def exits(self, node: Any, entered_at: int) -> list[Exit] | None:
        """The exits of a call inside the one that began at `entered_at`, where `node` is that of its output."""
        if not self.numbers or self._graph.number(node) not in self.numbers:
            return None
        began_at, exits = self._graph.metadata(node).get(self.key, (-1, ()))
        if began_at < entered_at:
            return None
        following = self._graph.next_edges
        nodes = [(node if inner is None else inner, slot) for inner, slot in exits]
        return [(inner, slot, following(inner)[slot]) for inner, slot in nodes]

    def note(self, ends: list[End], entered_at: int, exits: list[Exit], walked: int) -> None:
        """Keep the exits of a call, if it has one output node only and they are few to the nodes that were walked."""
        node = ends[0][1][0]
        if walked < WORTH_NOTING + 2 * len(exits) or any(edge[0] is not node for _, edge in ends):
            return
        number = self._graph.number(node)
        if entered_at <= number < LEAF_NUMBER:
            self.numbers.add(number)
            # A node that held itself would stay.
            kept = tuple((None if inner is node else inner, slot) for inner, slot, _ in exits)
            self._graph.metadata(node)[self.key] = entered_at, kept

    def forget(self) -> None:
        """The step is over."""
        self.numbers.clear()


def find_crossings(
    graph: GradientGraph, ends: list[End], inputs: dict[Any, list[int]], entered_at: int, passages: Passages | None
) -> list[Crossing]:
    """The edges from inside the call to its inputs.

    Args:
        graph: The gradient graph.
        ends: The outputs of the call.
        inputs: The indices of the inputs at each edge.
        entered_at: The sequence number at which the call began.
        passages: The calls inside, which are passed, and to which this one is added; ``None`` to walk over all nodes.
    """
    found: list[Crossing] = []
    if not inputs:
        return found
    next_edges_of, number_of = graph.next_edges, graph.number
    parts: dict[Edge, list[Any]] = {}
    for given in inputs:
        if len(given) == 3:
            parts.setdefault(given[:2], []).append(given)
    if passages is not None and not passages.allow(inputs, entered_at):
        passages = None
    leaving: list[Exit] = []
    seen: set[Any] = set()
    # An output that is an input is where the walk ends; all of its gradient is seen by the pre-hook there.
    returned = {edge for _, edge in ends if edge in inputs}
    ahead: list[Any] = [edge[0] for _, edge in ends if edge not in returned]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        exits = None if passages is None else passages.exits(node, entered_at)
        if exits is None:
            exits = [(node, slot, edge) for slot, edge in enumerate(next_edges_of(node))]
        else:
            # What was seen on another way has its edges found already.
            exits = [one for one in exits if one[0] not in seen]
            seen.update([inner for inner, _, _ in exits])
        seen.add(node)
        for one in exits:
            node, slot, edge = one
            following = edge[0]
            if following is None:
                continue
            indices = inputs.get(edge)
            if indices is not None:
                leaving.append(one)
                if edge not in returned:
                    found.append((node, slot, indices, None))
            elif following not in seen:
                number = number_of(following)
                if number < entered_at:
                    leaving.append(one)
                # A leaf leads nowhere.
                elif number < LEAF_NUMBER:
                    ahead.append(following)
            if parts:
                found += [(node, slot, inputs[part], part[2]) for part in parts.get(edge, ()) if part not in returned]
    graph.walked(seen)
    if passages is not None and not returned:
        passages.note(ends, entered_at, leaving, len(seen))
    return found


def separate_arguments(crossings: list[Crossing]) -> list[Crossing]:
    """Give each argument its own edge where as many edges lead to a tensor as it was given times, in their order."""
    edges: dict[int, list[int]] = {}
    for at, (_, _, indices, _) in enumerate(crossings):
        edges.setdefault(id(indices), []).append(at)
    for found in edges.values():
        indices = crossings[found[0]][2]
        if 1 < len(indices) == len(found):
            for index, at in zip(indices, found):
                node, slot, _, cut = crossings[at]
                crossings[at] = node, slot, [index], cut
    return crossings


def in_several(groups: Iterable[Sequence[int]]) -> set[int]:
    """The members of more than one of `groups`."""
    several: set[int] = set()
    seen: set[int] = set()
    for group in groups:
        several.update(seen.intersection(group))
        seen.update(group)
    return several


def ends_by_node(ends: list[End]) -> dict[Any, list[End]]:
    nodes: dict[Any, list[End]] = {}
    for index, edge in ends:
        nodes.setdefault(edge[0], []).append((index, edge))
    return nodes


def crossings_by_node(crossings: list[Crossing]) -> dict[Any, list[NodeCrossing]]:
    nodes: dict[Any, list[NodeCrossing]] = {}
    for node, slot, indices, cut in crossings:
        nodes.setdefault(node, []).append((slot, tuple(indices), cut))
    return nodes


# --- node hooks


class HookedCalls(list[Any]):
    """The calls that one hook serves: tuples, each with the watch of a call first and then what to do for it."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name of the call that a failure in this hook is logged with."""
        return getattr(self[-1][0].call, "name", "") if self else ""


class HookOwner(Protocol):
    """An object that acts on the gradients that hooks are called with."""

    guarded: Callable[..., Any]

    def before_node(self, hook: PreHook, grad_output: Sequence[Any]) -> None:
        """The node of `hook` is about to run on the gradients of its outputs."""

    def after_node(self, hook: PostHook, grad_input: Sequence[Any]) -> None:
        """The node of `hook` has computed the gradients of its inputs."""


class NodeHook(HookedCalls):
    """The calls to serve at a gradient node, and the hook that does it, in one object.

    The graph holds it until its backward, where Python's garbage collector looks at each object again and again: one
    here takes the place of a partial, its arguments, a method and two lists (benchmarks/RESULTS.md has the cost).
    """

    __slots__ = ("number", "owner")
    key = ""
    """The first part of the key of the hook in the node's metadata, which others may use too; see `key_of`."""
    # Two hooks that serve no call yet are not the same.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, owner: HookOwner, number: int) -> None:
        super().__init__()
        self.owner = owner
        self.number = number
        """The sequence number of the node."""


def key_of(kind: type[NodeHook], graph: GradientGraph) -> str:
    """The key under which the hook of one graph's tracker is in the metadata of a node; two trackers may be at work."""
    return f"{kind.key} {id(graph)}"


class PreHook(NodeHook):
    """Called before the node runs, for calls that returned an output of the node.

    Of each call it holds the watch and the edges of outputs that are here.
    """

    __slots__ = ()
    key = "msprobe pre-hook"

    def __call__(self, grad_output: Sequence[Any]) -> None:
        self.owner.guarded(self, self.owner.before_node, self, grad_output)


class PostHook(NodeHook):
    """Called after the node has run, for calls with an input that the node sends a gradient to.

    Of each call it holds the watch and the edges to inputs that begin here.
    """

    __slots__ = ()
    key = "msprobe post-hook"

    def __call__(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        self.owner.guarded(self, self.owner.after_node, self, grad_input)


# --- watches


class ModuleWatch:
    """The backward of one module call, as often as it happens."""

    __slots__ = (
        "backward", "call", "crossings", "crossings_left", "current_pass", "entered_at", "inputs", "kept", "late",
        "outputs", "outputs_left", "outputs_seen", "received", "shared", "sums", "unknown_inputs", "unknown_outputs",
        "views",
    )  # fmt: skip
    each_alone = False
    """True if a tensor given twice has the gradient of each argument, where they can be told apart, and not the sum."""
    ends_early = False
    """True if the backward is complete once all that can arrive has arrived, and not when the engine has passed it."""

    def __init__(self, call: Any, entered_at: int, outputs: int, outputs_seen: int, inputs: int) -> None:
        self.call = call
        self.entered_at = entered_at
        self.outputs = outputs
        self.outputs_seen = outputs_seen
        self.inputs = inputs
        self.crossings = 0
        self.late = False
        """True if a gradient can arrive when the engine has passed the call: of an input it returned, or of a leaf."""
        self.shared: Collection[int] = ()
        """The inputs that more than one edge leads to, whose gradient is a sum."""
        self.views: Sequence[ReturnedView] = ()
        self.current_pass: Any = None
        """The pass that the backward belongs to."""
        self.backward: Any = None
        """The listener's call while the backward is under way."""
        self.kept: Any = None
        """The backward as it was before it was complete, for late gradients."""
        self.outputs_left = outputs_seen
        self.crossings_left = 0
        self.received = False
        self.sums: dict[int, Any] = {}
        self.unknown_outputs: Collection[int] = ()
        self.unknown_inputs: Collection[int] = ()
        """The outputs and inputs with no gradient in the record, because what arrives may be a part of it."""

    def begin(self, listener: Listener) -> bool:
        self.backward = listener.enter_backward(self.call, self.outputs, self.inputs)
        return self.backward is not None

    def gradient(self, listener: Listener, field: str, index: int, gradient: Any) -> None:
        listener.backward_gradient(self.backward, field, index, gradient)

    def end(self, listener: Listener) -> None:
        listener.leave_backward(self.backward)

    def find_written_views(self) -> None:
        """Find out which gradients are unknown in the pass that begins: those of views written to since the call."""
        written = [view for view in self.views if view.is_written()]
        self.unknown_outputs = {view.output for view in written}
        self.unknown_inputs = {index for view in written for index in view.inputs}

    def nothing_left(self) -> bool:
        """True if nothing can arrive any more."""
        if self.outputs_left > 0:
            return False
        # With no inputs the record stands before those of what is inside.
        return self.inputs == 0 or (self.ends_early and self.crossings_left <= 0)

    def reset(self) -> None:
        """The backward is complete; it may happen again."""
        self.backward = None
        self.received = False
        self.outputs_left = self.outputs_seen
        self.crossings_left = self.crossings


class CallWatch(ModuleWatch):
    """The backward of one call of a function: reported once, with all gradients."""

    __slots__ = ()
    each_alone = True
    ends_early = True

    def begin(self, listener: Listener) -> bool:
        self.backward = {"input": [None] * self.outputs, "output": [None] * self.inputs}
        return True

    def gradient(self, listener: Listener, field: str, index: int, gradient: Any) -> None:
        self.backward[field][index] = gradient

    def end(self, listener: Listener) -> None:
        listener.backward_api(self.call, self.backward["input"], self.backward["output"])
