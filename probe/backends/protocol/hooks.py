"""Calls reported while a program runs: group `Hooks` of an adapter."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.interfaces import Handle, Listener, Logs, ModuleName


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
