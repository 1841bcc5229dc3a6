"""Seeing how a program trains, without a line in its script: what the frameworks have in common.

Objects are found among those that Python's garbage collector knows, which costs some 50 ms for a million objects and is
done once for each model, and for optimizers once after some were made.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Callable

from probe.backends.protocol import ScaledUpdate, TrainingListener
from probe.backends.shared.patching import CodeSwap, Handles, Record, argument, plain_swap, remove_all
from probe.common import log
from probe.common.interfaces import Handle

MakeSwap = Callable[[FunctionType, Record], CodeSwap]


def instances(*kinds: type) -> list[Any]:
    """Every object of these classes that the garbage collector knows."""
    # By its type alone: to ask a proxy for its class may run code of the user's.
    return [found for found in gc.get_objects() if issubclass(type(found), kinds)]


def children(module: Any, attribute: str) -> list[Any]:
    """The values of the dictionary in `attribute` of a module; empty for a module whose constructor failed half-way."""
    return [child for child in (vars(module).get(attribute) or {}).values() if child is not None]


def parameters_of_groups(optimizer: Any) -> frozenset[int]:
    """The identities of the parameters in the groups of an optimizer as torch has them."""
    groups = getattr(optimizer, "param_groups", [])
    return frozenset(id(parameter) for group in groups for parameter in group["params"])


def outermost(module: Any, kind: type, children: Callable[[Any], Iterable[Any]]) -> Any:
    """The module that holds `module` and is held by none; one that several others hold is not looked beyond."""
    holders: dict[int, list[Any]] = {}
    for holder in instances(kind):
        for child in children(holder):
            holders.setdefault(id(child), []).append(holder)
    seen = {id(module)}
    while len(found := holders.get(id(module), [])) == 1 and id(found[0]) not in seen:
        module = found[0]
        seen.add(id(module))
    return module


class OutermostCalls:
    """Calls `around` in the place of `function` unless another call of it is going on.

    The function has its own code again while a call goes on, so that calls inside of it cost nothing and compilers see
    it as it is.
    """

    def __init__(self, function: FunctionType, make_swap: MakeSwap, around: Record) -> None:
        self._swap = make_swap(function, self._call)
        self._around = around
        self._attached = True
        self._swap.install()

    def _call(self, body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._swap.restore()
        try:
            return self._around(body, args, kwargs)
        finally:
            if self._attached:
                self._swap.install()

    def remove(self) -> None:
        self._attached = False
        self._swap.restore()


def attach_calls(function: Any, around: Record) -> Handle:
    """Call `around` in the place of the outermost calls of `function`, if it is written in Python."""
    if not isinstance(function, FunctionType):
        return Handles([])
    return OutermostCalls(function, plain_swap, around)


def attach_new_optimizers(kinds: Iterable[type], make_swap: MakeSwap, listener: TrainingListener) -> Iterator[Handle]:
    """Report when an optimizer of `kinds`, or of a class below them, is made, unpickled or copied."""

    def made(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return body(*args, **kwargs)
        finally:
            listener.new_optimizer()

    functions = (vars(kind).get(name) for kind in kinds for name in ("__init__", "__setstate__"))
    return (OutermostCalls(each, make_swap, made) for each in functions if isinstance(each, FunctionType))


class OptimizerSteps:
    """Reports the end of every step of an optimizer that has hooks as torch's have.

    Whoever is told may remove hooks of all optimizers then: those of one optimizer, of which ours is one, are called
    before those of all, and a hook that is removed while its dictionary is walked is the last one in it.

    Args:
        module: ``torch.optim.optimizer`` or what stands in its place.
        listener: Who is told.
    """

    def __init__(self, module: ModuleType | Any, listener: TrainingListener) -> None:
        self._listener = listener
        self._watched: weakref.WeakKeyDictionary[Any, Handle] = weakref.WeakKeyDictionary()
        self._stepping: Any = None
        self.count = 0
        """The number of steps that have ended."""
        self._handle: Handle = module.register_optimizer_step_pre_hook(self._before)

    def _before(self, optimizer: Any, *_: Any) -> None:
        if optimizer not in self._watched:
            self._watched[optimizer] = optimizer.register_step_post_hook(self._after)

    def _after(self, optimizer: Any, *_: Any) -> None:
        self.count += 1
        self._stepping = optimizer
        try:
            self._listener.leave_optimizer(optimizer)
        finally:
            self._stepping = None

    def remove(self) -> None:
        self._handle.remove()
        stepping = self._stepping
        if stepping is not None:
            hooks = stepping._optimizer_step_post_hooks
            ours = self._watched.pop(stepping, None)
            if ours is not None and next(reversed(hooks)) == ours.id:  # type: ignore[attr-defined]
                ours.remove()
        remove_all(list(self._watched.values()))
        self._watched.clear()


# --- scalers


Note = Callable[[ScaledUpdate], None]


def tell_of(note: Note, of_call: Callable[[], ScaledUpdate | None]) -> None:
    """Tell `note` what `of_call` finds out of a scaler, if that can be found out."""
    try:
        update = of_call()
        if update is not None:
            note(update)
    except Exception as error:
        # A scaler of another kind: what it skips is reported like any other overflow.
        log.warning(
            f"the steps of a gradient scaler cannot be observed ({error}); a step that it skips is reported like any "
            "other overflow.",
            once="scaler",
        )


def of_step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScaledUpdate | None:
    """The update that a scaler's `step` made when called with these arguments; ``None`` if it scales nothing."""
    scaler, optimizer = argument(0, "self", args, kwargs), argument(1, "optimizer", args, kwargs)
    if not scaler.is_enabled():
        return None
    # Its own numbers, one for each device: `update` makes room for new ones and leaves these as they are.
    found = list(scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {}).values())
    return ScaledUpdate(lambda: any(float(each) for each in found), lambda: float(scaler.get_scale()))
