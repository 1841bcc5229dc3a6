"""Seeing calls of MindSpore's functions.

Functions are replaced in the modules and on the classes where users reach them, between `install` and `remove` only.
The layers of mindspore.nn hold functions of their own and are not disturbed; what their primitives do is seen by
giving each primitive that a cell holds another class for as long.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mindspore
from mindspore import ops

from probe.backends.mindspore.gradient_graph import PrimitiveWatch, Tracker
from probe.backends.mindspore.guards import guarded, is_unobserved, wait_for_all
from probe.backends.mindspore.hooks.jit import Compilation
from probe.backends.mindspore.hooks.module_hooks import CELLS, ModuleKind
from probe.backends.shared import api_list
from probe.backends.shared.api_list import Watched
from probe.backends.shared.async_collectives import AsyncWorkHandles
from probe.backends.shared.gradient_graph import CallWatch
from probe.backends.shared.patching import Attributes, each, in_the_place_of
from probe.common.align.operations import DECIDING_ATTRIBUTES
from probe.common.callstack import hide_own_frames
from probe.common.containers import by_prefix
from probe.common.interfaces import ApiName, Listener

Primitive = ops.Primitive


class ApiHooks:
    """Attached to a listener from construction until `remove`."""

    def __init__(
        self,
        listener: Listener,
        tracker: Tracker,
        compilation: Compilation,
        families: Callable[[], Mapping[str, list[Watched]]],
        async_work_types: Callable[[], Sequence[type]],
    ) -> None:
        self._listener = listener
        self._tracker = tracker
        self._compilation = compilation
        self._families = families
        self._watched: list[Watched] = []
        self._wrappers: dict[tuple[int, str], tuple[Any, Callable[..., Any]]] = {}
        """For each function of `_watched` by its place, what was found there last and the wrapper made for it."""
        self._attributes = Attributes()
        self._async_handles = AsyncWorkHandles(listener, async_work_types, guarded)
        self._primitives: list[tuple[Any, str]] = []
        self._classes: dict[tuple[str, type], type] = {}
        self._names: dict[int, ApiName] = {}
        """The names of watched primitives with their attributes, by the identity of the primitive."""
        self._changed: list[tuple[Any, type]] = []
        self._attached = False

    def install(self, models: Any, kind: ModuleKind = CELLS) -> None:
        """Watch the functions, and the primitives that the cells of `models` hold (``None`` for no model)."""
        if self._attached:
            return
        self._attached = True
        try:
            # Asked each time: a user may have put functions where none were before.
            self._watched = [watched for functions in self._families().values() for watched in functions]
            self._primitives = list(_primitives(kind, models))
            self._async_handles.install()
            self.resume()
            self._compilation.add(self)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Put everything back."""
        # Also when it was done already: something may have failed.
        self._attached = False
        each((functools.partial(self._compilation.discard, self), self.suspend, self._async_handles.remove))
        self._primitives = []
        self._names.clear()

    def end_step(self) -> None:
        self._async_handles.forget()
        if not self._attached and self._attributes.in_place:
            # A wrapper of the user's covered ours when collection stopped, and may be gone.
            self._attributes.remove()

    def suspend(self) -> None:
        """Put everything back for a moment."""
        while self._changed:
            primitive, before = self._changed.pop()
            primitive.__class__ = before
        self._attributes.remove()

    def resume(self) -> None:
        if not self._attached:
            return
        for watched in self._watched:
            # Looked up now: someone may have put a function of their own there, and that is what must run.
            found = getattr(watched.owner, watched.attribute)
            place = id(watched.owner), watched.attribute
            held = self._wrappers.get(place)
            if held is None or held[0] is not found:
                wrap = functools.partial(self.wrapper, watched.name)
                held = self._wrappers[place] = found, in_the_place_of(watched.owner, watched.attribute, wrap)
            self._attributes.set(watched.owner, watched.attribute, held[1])
        for primitive, attribute in self._primitives:
            before = type(primitive)
            if id(primitive) not in self._names:
                attributes = _attributes(primitive)
                own = ApiName(
                    _base(attribute, before), attribute, attributes=attributes, deciding=_deciding(before, attributes)
                )
                self._names[id(primitive)] = own
            primitive.__class__ = self._watching(attribute, before)
            self._changed.append((primitive, before))

    # --- calls

    def observe(
        self,
        kind: type[CallWatch],
        name: ApiName,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call `function` and report it."""
        if is_unobserved():
            return function(*args, **kwargs)
        listener = self._listener
        wait_for_all(listener, name, args)
        if kwargs:
            wait_for_all(listener, name, kwargs)
        call = guarded(listener, name, listener.enter_api, name, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        given = args, kwargs
        entered, (args, kwargs) = guarded(listener, call, self._tracker.enter, kind, call, given) or (None, given)
        try:
            output = function(*args, **kwargs)
            if output is not NotImplemented:
                wait_for_all(listener, call, output)
        except BaseException:
            guarded(listener, call, listener.fail_api, call)
            raise
        if output is NotImplemented:
            # An operator that leaves the work to the other operand.
            guarded(listener, call, listener.cancel_api, call)
        else:
            guarded(listener, call, self._leave, name, call, entered, args, kwargs, output)
        return output

    def _leave(
        self, name: ApiName, call: Any, entered: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        result = (*args, *kwargs.values()) if name.returns_arguments else output
        if self._async_handles.hold(call, output, result):
            return  # the record is completed when the user has waited
        wants_backward = self._listener.leave_api(call, result)
        if wants_backward and not name.returns_arguments and not _drops_nothing(name, args, output):
            self._tracker.leave(call, entered, output)

    def wrapper(self, name: ApiName, function: Callable[..., Any]) -> Callable[..., Any]:
        observe = self.observe

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            try:
                return observe(CallWatch, name, function, args, kwargs)
            except BaseException as error:
                hide_own_frames(error)
                raise

        return wrapper

    def _watching(self, attribute: str, kind: type) -> type:
        """A class for primitives of class `kind` that are held as `attribute`."""
        watching = self._classes.get((attribute, kind))
        if watching is None:
            name = ApiName(_base(attribute, kind), attribute)
            observe, call, names = self.observe, kind.__call__, self._names

            def call_watched(primitive: Any, *args: Any, **kwargs: Any) -> Any:
                own = names.get(id(primitive), name)
                try:
                    return observe(PrimitiveWatch, own, functools.partial(call, primitive), args, kwargs)
                except BaseException as error:
                    hide_own_frames(error)
                    raise

            def copy_unwatched(primitive: Any, memo: Any) -> Any:
                primitive.__class__ = kind
                try:
                    return copy.deepcopy(primitive, memo)
                finally:
                    primitive.__class__ = watching

            members = {"__call__": call_watched, "__module__": kind.__module__, "__deepcopy__": copy_unwatched}
            watching = self._classes[attribute, kind] = type(kind.__name__, (kind,), members)
        return watching


def async_work_types() -> list[type]:
    """The classes of what asynchronous communication returns."""
    # It moved in 2.9, and both places are in use since.
    modules = (sys.modules.get(f"mindspore.{name}") for name in ("communication.comm_func", "ops.function.comm_func"))
    return [module.CommHandle for module in modules if module is not None and hasattr(module, "CommHandle")]


def _base(attribute: str, kind: type) -> str:
    return f"Primitive.{attribute}.{kind.__name__}"


# With which ranks a primitive communicates.
_OF_COMMUNICATION = frozenset(
    (
        "dest_rank", "group", "op", "op_types", "recv_rank_ids", "remote_ranks", "root_rank", "send_rank_ids", "sr_tag",
        "src_rank",
    )
)  # fmt: skip


def _attributes(primitive: Any) -> dict[str, Any] | None:
    """The arguments that a primitive was made with, except defaults: all that is needed to make it again.

    A value that JSON has no form for is ``None``. The whole is ``None`` of a class that takes nothing, or does not keep
    what it took.
    """
    kind, made_with = type(primitive), getattr(primitive, "init_attrs", {})
    defaults = _defaults(kind)
    if kind.__module__.endswith(".comm_ops"):
        # It is not made again: that takes the other ranks.
        made_with = {name: value for name, value in made_with.items() if name in _OF_COMMUNICATION}
    elif not defaults.keys() <= made_with.keys():
        return None
    values = {name: _listed(value) for name, value in sorted(made_with.items())}
    found = {name: value for name, value in values.items() if name not in defaults or value != _listed(defaults[name])}
    return {name: value if _is_plain(value) else None for name, value in found.items()} if made_with else None


def _deciding(kind: type, attributes: dict[str, Any] | None) -> dict[str, Any] | None:
    if attributes is None or kind.__module__.endswith(".comm_ops"):
        return attributes
    deciding = ((name, value) for name, value in attributes.items() if name in DECIDING_ATTRIBUTES)
    return {name: value for name, value in deciding if value not in (None, [])}


def _listed(value: Any) -> Any:
    return [_listed(each) for each in value] if isinstance(value, (list, tuple)) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value))


def _defaults(kind: Any) -> dict[str, Any]:
    try:
        parameters = inspect.signature(kind.__init__).parameters
    except (TypeError, ValueError):
        return {}
    return {name: parameter.default for name, parameter in list(parameters.items())[1:]}


def _drops_nothing(name: ApiName, args: Sequence[Any], output: Any) -> bool:
    """By contract a dropout that is off has no backward."""
    return "dropout" in name.api and any(output is value for value in args)


def _primitives(kind: ModuleKind, models: Any) -> Iterator[tuple[Any, str]]:
    """Every primitive that is an attribute of a cell, once, with the first attribute's name."""
    seen: set[int] = set()
    for model in by_prefix(models).values():
        if not isinstance(model, kind.base):
            continue  # at level L1 a model is welcome and not needed
        for _, module in kind.inside(model):
            for attribute, value in vars(module).items():
                if isinstance(value, Primitive) and id(value) not in seen:
                    seen.add(id(value))
                    yield value, attribute


# --- api list


_LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_list.yaml")

# Prefix of a family, and the torch families by whose table its functions are classified.
_RISK_PREFIXES: dict[str, tuple[str, ...]] = {
    "Functional": ("Torch", "Functional"),
    "Tensor": ("Tensor",),
    "Mint": ("Torch", "Functional"),
    "MintFunctional": ("Functional",),
    "Distributed": ("Distributed",),
    "MintDistributed": ("Distributed",),
    # The record of a primitive is named after the attribute that holds it, which says nothing about its work.
    "Primitive": (),
    "Jit": (),
}


@functools.cache
def watched() -> dict[str, list[Watched]]:
    """Every function of the list that this MindSpore has, by family."""
    owners: dict[str, Any] = {
        "functional": mindspore.ops,
        "tensor": mindspore.Tensor,
        "mint": mindspore.mint,
        "mint_functional": mindspore.mint.nn.functional,
        "mint_distributed": importlib.import_module("mindspore.mint.distributed"),
    }
    try:
        owners["distributed"] = importlib.import_module("mindspore.communication.comm_func")
    except ImportError:
        pass  # deprecated since 2.9
    return api_list.told_apart(api_list.watched(_LIST, owners, in_place=("mint_distributed",)))


def risk_class(base: str) -> str:
    """``core``, ``low`` or ``middle`` of ``Prefix.api``; what a user registered is always ``core``.

    A function has the class of the torch function of the same name, where there is one: of `torch` or
    `torch.nn.functional` for ops and mint, of the family with the same purpose for the others. A name that torch does
    not have is ``middle``, and so are primitives.
    """
    return api_list.risk_class(base, _RISK_PREFIXES)
