"""The hooks that the backward tracker registers on nodes of the gradient graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from typing_extensions import Protocol

from probe.backends.shared.autograd.graph import GradientGraph


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

    def register(self, graph: GradientGraph, node: Any) -> None:
        """Have `graph` call this hook when `node` runs."""
        raise NotImplementedError


def key_of(kind: type[NodeHook], graph: GradientGraph) -> str:
    """The key under which the hook of one graph's tracker is in the metadata of a node; two trackers may be at work."""
    return f"{kind.key} {id(graph)}"


class PreHook(NodeHook):
    """Called before the node runs, for calls that returned an output of the node.

    Of each call it holds the watch and the edges of outputs that are here.
    """

    __slots__ = ()
    key = "msprobe pre-hook"

    def register(self, graph: GradientGraph, node: Any) -> None:
        graph.register_prehook(node, self)

    def __call__(self, grad_output: Sequence[Any]) -> None:
        self.owner.guarded(self, self.owner.before_node, self, grad_output)


class PostHook(NodeHook):
    """Called after the node has run, for calls with an input that the node sends a gradient to.

    Of each call it holds the watch and the edges to inputs that begin here.
    """

    __slots__ = ()
    key = "msprobe post-hook"

    def register(self, graph: GradientGraph, node: Any) -> None:
        graph.register_posthook(node, self)

    def __call__(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        self.owner.guarded(self, self.owner.after_node, self, grad_input)
