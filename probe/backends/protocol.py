"""What a deep-learning framework must offer to be collected from.

Three groups: `Tensors` (declared with the shared code, which is its only caller), `Hooks` and `Randomness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, NamedTuple

from typing_extensions import Protocol

from probe.common.interfaces import Handle, Listener, ModuleName, RandomCall, Tensors


class ModuleHandles(NamedTuple):
    """The hooks on modules. Gradients may arrive when the forward is no longer hooked."""

    forward: Handle
    gradients: Handle


class Hooks(Protocol):
    """Hooks that report what a user's program does. Every handle puts everything back exactly as it was."""

    def attach_apis(self, models: Any, listener: Listener) -> Handle:
        """Report every watched function to `listener`, those that `models` (or ``None``) hold included."""

    def attach_custom_api(self, owner: Any, attribute: str, prefix: str, listener: Listener) -> Handle:
        """Watch one function of the user's choice, recorded as ``prefix.attribute``."""

    def attach_modules(self, models: Any, listener: Listener) -> ModuleHandles:
        """Watch every module below `models`: one module, or a list or tuple of them."""

    def attach_module(self, module: Any, name: ModuleName, listener: Listener) -> ModuleHandles:
        """Watch one module under a given name."""

    def attach_optimizer_hooks(self, listener: Listener) -> Handle:
        """Report gradient clipping and the optimizer's step to `listener`."""

    def attach_passes(self, models: Any, begin: Callable[[], None], end: Callable[[], None]) -> Handle:
        """Call `begin` and `end` around every forward pass of the (first) model itself."""

    def attach_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> Handle | None:
        """Call `callback` with every gradient of `tensor`; ``None`` when it takes none."""

    def finish_backward(self) -> None:
        """Report every module backward that is still open; called before a flush."""

    def end_step(self) -> None:
        """Forget what was kept for the gradients of the step that is over."""

    def is_module(self, value: Any) -> bool: ...

    def class_name(self, module: Any) -> str:
        """The class as it stands in record names."""


class Randomness(Protocol):
    """Ways to make two runs draw the same numbers."""

    def seed_everything(self, seed: int, deterministic: bool) -> None: ...

    def remove_dropout(self) -> Handle: ...

    def fix_random_calls(self) -> Handle: ...

    def random_calls(self) -> Sequence[RandomCall]:
        """The functions and tensor methods that draw random numbers."""


class FrameworkAdapter(Tensors, Hooks, Randomness, Protocol):
    """One framework."""
