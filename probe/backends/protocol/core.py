"""The three groups that every adapter has: `Tensors`, `Hooks` and `Randomness`."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.interfaces import (
    DeviceFile,
    Entry,
    Handle,
    Listener,
    Logs,
    ModuleName,
    RandomCall,
    StatisticsMode,
    TensorFile,
)


class Source(NamedTuple):
    """The values among which a function chose."""

    values: Any
    """The tensor; ``None`` where its values have no margins."""
    dim: int | None
    """The dimension that it searched; ``None`` for all elements."""
    takes_several: bool
    """True of top-k, whose result has the indices along `dim`; argmax has no such dimension, or one of size 1."""
    largest: bool


class Tensors(Protocol):
    """The tensors of a framework, their statistics, and its other values, as a dump has them."""

    several_outputs: tuple[type, ...]
    """The containers whose items are a call's outputs; any other container is one output."""

    def is_tensor(self, value: Any) -> bool:
        """True if `value` is a tensor of this framework."""

    def describe_tensor(self, tensor: Any, summary: StatisticsMode) -> Entry:
        """The dump.json entry of `tensor`. Statistics may be filled in later, by `resolve`."""

    def note_choices(self, entry: Entry, indices: Any, source: Source | None) -> None:
        """Put the choices that `indices` are into its entry, under `probe.common.dump.choices.CHOICES`.

        Now or at `resolve`.

        Args:
            entry: That of `indices`.
            indices: A tensor of whole numbers.
            source: Where they were looked for; ``None`` if it is not known, as of what a module returns.
        """

    def direct_describer(self, summary: StatisticsMode) -> Callable[[Any], Entry | None] | None:
        """A faster `describe_tensor` for most tensors, if there is one, which answers ``None`` for any other value.

        It raises nothing, and what it answers is complete.
        """

    def content_mark(self, tensor: Any) -> Any:
        """A mark of the contents of `tensor`, the same object: equal marks mean equal contents.

        ``None`` where that cannot be known. It raises nothing.
        """

    def memory(self, tensor: Any) -> tuple[Any, Any, Any] | None:
        """The memory of `tensor`, `tensor` itself, and a mark of the writes to it.

        The memory is an object that lives as long as it does: the same one for each tensor there, as far as the
        framework tells. It and the tensor itself are referred to weakly; a tensor to which nobody may refer so is
        ``None``, and a stand-in is the tensor of the program. The mark is ``None`` where writes are not counted; all is
        ``None`` where the tensor has no memory of its own.
        """

    counted_memory: Any
    """`memory` in parts: the type of tensors for which these are enough, a function that gives the memory, one that is
    true of a tensor whose writes are not counted, and the attribute with their number. ``None`` where it has none."""

    def base(self, tensor: Any) -> Any:
        """The tensor that `tensor` is a view of; ``None`` for none, or where the framework does not tell."""

    def part(self, tensor: Any) -> tuple[int, int, bool] | None:
        """The first byte of `tensor` in its memory, the byte behind the last one, and if there are no gaps between.

        ``None`` of a tensor that fills its memory, or where the framework does not tell.
        """

    def describe_value(self, value: Any, key: str | None) -> Entry | None:
        """A framework value that is no tensor (dtype, device, process group …), or ``None`` if it is none.

        `key` is the last dictionary key on the way to the value. A tensor under ``tensor`` of the entry is described in
        its turn.
        """

    def tensor_file(self, tensor: Any, copied: bool) -> TensorFile | DeviceFile | None:
        """The file contents of `tensor`, or of a numpy array among the values; ``None`` if it has no data.

        A tensor on the host has a `TensorFile`; of one on a device it may be a copy there, to be read with others.

        Args:
            tensor: of any device and layout.
            copied: later writes to `tensor` must not reach the result. Without it the result may be the tensor's own
                memory, and is used before the program goes on.
        """

    def pending(self) -> int:
        """Not 0 if described tensors still wait for `resolve`."""

    def resolve(self) -> None:
        """Fill in every pending entry, with one transfer from each device."""


# --- hooks


class ModuleHandles(NamedTuple):
    """The hooks on modules. Gradients may arrive when the forward is no longer hooked."""

    forward: Handle
    gradients: Handle


class HeldTensor(NamedTuple):
    """A tensor that a module holds under a name."""

    text: str
    """``parameter:layer.weight`` or ``buffer:norm.running_mean``."""
    owner: weakref.ref[Any]
    field: str
    key: str
    """The module, the name of its dictionary of such tensors, and the key there."""

    def now(self) -> Any:
        """The tensor that is held under the name; ``None`` without one."""
        owner = self.owner()
        members = {} if owner is None else owner.__dict__[self.field]
        # Not by `get`, which what a compiled module has in the place of its dictionaries lacks.
        return members[self.key] if self.key in members else None  # noqa: SIM401

    def holds(self, tensor: Any) -> bool:
        """True if it is `tensor`: another one may have its identity when it is gone."""
        return self.now() is tensor

    def has_gradient(self, tensor: Any) -> bool:
        """True if the gradient of it is `tensor`."""
        return getattr(self.now(), "grad", None) is tensor

    def gradient(self) -> Any:
        """The gradient of a parameter, in its attribute ``grad``; ``None`` without one."""
        tensor = self.now() if self.text.startswith("parameter:") else None
        # To ask another tensor than a leaf for its gradient is a warning of torch.
        return getattr(tensor, "grad", None) if getattr(tensor, "is_leaf", True) else None


class Hooks(Protocol):
    """Hooks that report what a user's program does. Every handle puts everything back exactly as it was."""

    def risk_class(self, base: str) -> str:
        """``core``, ``low`` or ``middle`` of an API ``Prefix.api``."""

    def check_mode(self) -> None:
        """See that what a program does can be reported in the mode in which the framework runs it.

        Raises:
            MsprobeException: it cannot.
        """

    def attach_apis(self, models: Any, listener: Listener, everything: bool = False) -> Handle:
        """Report every watched function to `listener`, those that `models` (or ``None``) hold included.

        With `everything` each function that makes or changes a number of a tensor is reported, in a list or not.
        """

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        """Watch one function of the user's choice, recorded as ``prefix.attribute``."""

    def attach_casts(self, listener: Listener, note: Callable[[str], None]) -> Handle | None:
        """Call `note` with each float8 dtype that a tensor is cast to on this thread, or a product takes.

        After the hooks on APIs. ``None`` where there is no way.

        Args:
            listener: The one of the other hooks.
            note: Called with a name such as ``float8_e4m3fn``.
        """

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        """Watch every module below `models`: one module, a list or tuple of them, or a mapping.

        The index in the list, or the key, begins the names.
        """

    def held_tensors(self, models: Any) -> Iterable[tuple[int, HeldTensor]]:
        """The parameters and buffers of `models` (or ``None``), each once, with their identities."""

    def attach_module(
        self, module: Any, name: ModuleName, listener: Listener, parameters: bool = True
    ) -> ModuleHandles:
        """Watch one module under a given name; the gradients of its own parameters are reported if `parameters`."""

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        """Report gradient clipping and the optimizer's step to `listener`."""

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        """Call `begin` and `end` around every forward pass of the (first) model itself."""

    def attach_gradient(self, tensor: Any, callback: Callable[[Any], None], logs: Logs, about: str) -> Handle | None:
        """Call `callback` with every gradient of `tensor`; ``None`` when it takes none.

        Args:
            logs: It is told of a failure of `callback`, which does not reach the backward of the program.
            about: The record that the gradient belongs to.
        """

    def unobserved(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call `function(*args)`, and let neither the tool nor anything of the user's see its operations."""

    def finish_backward(self) -> None:
        """Report every module backward that is still open; called before a flush."""

    def end_step(self) -> None:
        """Forget what was kept for the gradients of the step that is over."""

    def is_module(self, value: Any) -> bool: ...


# --- randomness


class Randomness(Protocol):
    """Ways to make two runs draw the same numbers."""

    def seed_everything(self, seed: int, deterministic: bool) -> None: ...

    def remove_dropout(self) -> Handle: ...

    def fix_random_calls(self) -> Handle: ...

    def random_calls(self) -> Sequence[RandomCall]:
        """The functions and tensor methods that draw random numbers."""

    def dropping_calls(self) -> Sequence[RandomCall]:
        """The functions that drop elements at random, if they can be replaced; those of MindSpore cannot."""

    def random_state(self, base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any | None:
        """From what the call `base` is about to draw random numbers, as a tensor; ``None`` of one that draws none.

        ``None`` too where the framework cannot say it. Asking changes nothing.
        """
