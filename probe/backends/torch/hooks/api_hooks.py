"""Recorded functions of torch: names, risk classes, casts to float8, and the hooks on them while collecting.

Three ways, because torch has three kinds of functions, and each way leaves the objects users hold as they are:

* built-in functions and methods pass a function mode, also those bound earlier by ``from torch import relu``;
* functions written in Python get other code while collecting (`patching.CodeSwap`): the mode would see them too,
  but with all defaults filled in, and the record must hold what the user passed;
* operators of ``Tensor`` are replaced on the class where the mode cannot tell ``x + 1``, ``1 + x`` and ``x.add(1)``
  apart; so are built-in functions which torch offers under two names.

Outside a collected range none of these is in place.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Callable

import torch

from probe.backends.shared import api_list
from probe.backends.shared.api_list import Watched
from probe.backends.shared.backward_tracker import BackwardTracker
from probe.backends.shared.patching import Attributes, CodeSwap, each, in_the_place_of
from probe.backends.torch import internals
from probe.backends.torch.gradient_graph import TorchGraph
from probe.backends.torch.guards import guarded, passed_over, unobserved
from probe.backends.torch.hooks.api_calls import ApiBackward, ApiCalls, all_disabled
from probe.backends.torch.hooks.compilers import readable_swap, script_guard
from probe.backends.torch.hooks.function_mode import FunctionMode
from probe.backends.torch.hooks.npu_functions import npu_functions
from probe.backends.torch.originals import BUILT_IN, OPERATORS, built_in, functions, is_of_torch, own
from probe.backends.torch.tensors.statistics import EIGHT_BIT_FLOAT
from probe.backends.torch.views import empty_of
from probe.common.interfaces import ApiName, Handle, Listener, Logs
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has

try:
    from probe.backends.torch.hooks._function_calls import FunctionCalls
except ImportError:  # not built here
    FunctionCalls = None  # type: ignore[assignment,misc]

_CASTS = frozenset((own.to, own.type))
_PRODUCTS = frozenset(
    getattr(functions, name)
    for name in ("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm")
    if hasattr(functions, name)
)


class CastWatch:
    """Tells of casts to float8 dtypes, and of products of them, among the calls that pass a function mode.

    Args:
        mode: The mode of the hooks on APIs. Without these the watch puts it in place itself.
        logs: Told of a failure of the tool.
    """

    def __init__(self, mode: FunctionMode, logs: Logs) -> None:
        self._mode = mode
        self._logs = logs
        self._brings_mode = False
        self.note: Callable[[str], None] | None = None
        """Called with the name of each dtype; ``None`` if nothing is watched."""

    def attach(self, note: Callable[[str], None], has_mode: bool) -> None:
        """Tell `note` until `remove`; `has_mode` is true if the mode is in place."""
        self.note, self._brings_mode = note, not has_mode
        if not has_mode:
            self._mode.install()
            script_guard.install(self, self._suspended, self._logs)

    def remove(self) -> None:
        """Tell nothing more, and take the mode away if it was put in place here."""
        self.note = None
        if self._brings_mode:
            script_guard.remove(self)
            self._mode.remove()
            self._brings_mode = False

    @contextmanager
    def _suspended(self, _module: Any) -> Iterator[None]:
        self._mode.remove()
        try:
            yield
        finally:
            self._mode.install()

    @passed_over
    def see(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at a call before it runs."""
        if function in _CASTS or function in _PRODUCTS:
            guarded(self._logs, "casts to float8", self._tell, function, args, kwargs)

    def _tell(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # A cast begins with the tensor itself, whose dtype may be any.
        seen = (*(args if function in _PRODUCTS else args[1:]), *kwargs.values())
        for value in seen:
            dtype = value.dtype if isinstance(value, torch.Tensor) else value
            if isinstance(dtype, torch.dtype) and dtype in EIGHT_BIT_FLOAT and self.note is not None:
                self.note(str(dtype).removeprefix("torch."))


# --- api list


_LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "api_list.yaml")
_RISK_PREFIXES = {prefix: (prefix,) for prefix in ("Functional", "Tensor", "Torch", "Distributed", "NPU")}
# Below these prefixes a function has the class of the torch function of the same name.
_RISK_PREFIXES.update(VF=("Torch",), Aten=("Torch",))

_MODULES = (torch.linalg, torch.fft, torch.special)
"""Beside torch itself, what has functions that are in no list."""


def _owners() -> dict[str, Any]:
    owners: dict[str, Any] = {
        "functional": torch.nn.functional,
        "tensor": torch.Tensor,
        "torch": torch,
        "vf": internals.VariableFunctions,
    }
    if torch.distributed.is_available():
        owners["distributed"] = torch.distributed
    return owners


@functools.cache
def watched() -> dict[str, list[Watched]]:
    """Every function of the list that this torch has, by family."""
    families = api_list.watched(_LIST, _owners(), in_place=("distributed",))
    families["npu"] = npu_functions()
    return api_list.told_apart(families, is_removed)


def is_removed(watched: Watched) -> bool:
    """True of a function that torch has only left a message of, such as ``torch.lstsq``."""
    return getattr(watched.function, "__module__", None) == "torch._linalg_utils"


def risk_class(base: str) -> str:
    """``core``, ``low`` or ``middle`` of ``Prefix.api``; what a user registered is always ``core``."""
    return api_list.risk_class(base, _RISK_PREFIXES)


def unlisted_name(function: Any) -> ApiName | None:
    """The name of a built-in function that no family has; ``None`` if it makes and changes no number of a tensor."""
    attribute = function.__name__
    if computes_nothing(attribute):
        return None
    if type(function) in (MethodDescriptorType, WrapperDescriptorType):
        return ApiName(f"Tensor.{attribute}", attribute)
    owner, attribute = _owned_elsewhere().get(function, (torch, attribute))
    # Of a dotted name the last part stands in the record, as with the functions of the list.
    is_other = owner is not torch and hasattr(torch, attribute)
    return ApiName(f"Torch.{attribute}", attribute, function=f"{owner.__name__}.{attribute}" if is_other else "")


def computes_nothing(name: str) -> bool:
    """True if a function makes and changes no number of a tensor, by the table of functions."""
    return has(name, Trait.TELLS, Trait.BRINGS_IN, Trait.HANDS_ON) and not has(name, Trait.OVERWRITES, Trait.LEAVES_OUT)


@functools.cache
def _owned_elsewhere() -> dict[Any, tuple[Any, str]]:
    return {
        function: (module, attribute)
        for module in _MODULES
        for attribute, function in vars(module).items()
        if type(function) is BuiltinFunctionType
    }


# --- api hooks


class ApiHooks:
    """Hooks the functions of `families` between `install` and `remove`.

    Args:
        listener: Gets the calls.
        tracker: Follows their backward.
        graph: Of the gradients.
        families: Gives the functions; called at the first `install`, since they are some 1,500.
    """

    def __init__(
        self,
        listener: Listener,
        tracker: BackwardTracker,
        graph: TorchGraph,
        families: Callable[[], Mapping[str, list[Watched]]],
    ) -> None:
        self._listener = listener
        self._families: Callable[[], Mapping[str, list[Watched]]] | None = families
        """``None`` once the hooks are prepared."""
        self._names: dict[Any, ApiName] = {}
        """The names of the functions that pass the mode."""
        self._swaps: list[CodeSwap] = []
        self._objects: dict[FunctionType, dict[int, Watched]] = {}
        """By the method that calls them: objects, by their identity, which a user put in the place of functions."""
        self._replacements: list[_Replacement] = []
        self._attributes = Attributes()
        self._mode = FunctionMode(self._from_mode, listener)
        self._casts = CastWatch(self._mode, listener)
        backward = ApiBackward(listener, tracker, graph)
        self._calls = ApiCalls(listener, tracker, backward, self._mode.call_without)
        self.attached = False
        """True between `install` and `remove`."""
        self.everything = False
        """True if functions are reported that no family has."""
        self._unlisted: dict[Any, ApiName | None] = {}
        """The names of functions that no family has; ``None`` for those that make and change no number."""
        self._compile(backward, tracker, graph)

    def _compile(self, backward: ApiBackward, tracker: BackwardTracker, graph: TorchGraph) -> None:
        """Let compiled code do what can be done so, where it is built."""
        if FunctionCalls is None or not internals.can_be_seen_compiling:
            return
        calls, mode = self._calls, self._mode
        compiled = FunctionCalls(
            *(self._listener, self, self._casts, _CASTS | _PRODUCTS, self._names, _VIEW_AS),
            *(tracker._passes, graph.current_pass, mode, mode.__torch_function__),
            *(calls.observe, calls.observe_beneath, backward.watch, backward.arrived, graph.freed_in_turn.seen),
            *(unobserved, guarded, empty_of, *internals.surroundings, torch.strided, torch.Tensor),
        )
        backward.hook, calls.call, calls.call_beneath = compiled.hook, compiled.observe, compiled.observe_beneath
        mode.passing = compiled.passing(mode)

    def _prepare(self, families: Mapping[str, list[Watched]]) -> None:
        # Empty but where this has failed before.
        for prepared in (self._names, self._swaps, self._objects, self._replacements):
            prepared.clear()
        for family, of_family in families.items():
            # Of two names of one built-in function the first is what it is called where it was imported before.
            for watched in sorted(of_family, key=lambda watched: watched.attribute in _OTHER_NAMES):
                self._prepare_one(family, watched)

    def _prepare_one(self, family: str, watched: Watched) -> None:
        function, name = watched.function, watched.name
        replaced = family == "tensor" and name.api.startswith("__") and name.api not in _KNOWN_TO_MODE
        if replaced or family == "npu":
            self._replace(watched)
        elif isinstance(function, FunctionType):
            self._swaps.append(self._swap(function, name))
            self._prepare_original(watched)
        elif type(function) not in _OF_TORCH and not isinstance(function, OPERATORS):
            self._prepare_object(watched)
            self._prepare_original(watched)
        elif function in self._names:
            self._replace(watched)
        else:
            self._names[function] = name

    def _prepare_original(self, watched: Watched) -> None:
        """Add torch's own function if a user has replaced it before: it may still be called in another way."""
        original = None if is_of_torch(watched.function) else built_in(watched.owner, watched.attribute)
        if original is not None:
            self._names.setdefault(original, watched.name)

    def _prepare_object(self, watched: Watched) -> None:
        call = inspect.getattr_static(type(watched.function), "__call__", None)
        if not isinstance(call, FunctionType):
            self._replace(watched)
            return
        if call not in self._objects:
            self._objects[call] = {}
            self._swaps.append(self._swap(call, self._objects[call]))
        self._objects[call][id(watched.function)] = watched

    def _swap(self, function: FunctionType, named: ApiName | Mapping[int, Watched]) -> CodeSwap:
        """A swap of the code of a function, or of the method that calls objects."""
        observe = self._calls.call_beneath
        name, objects = (named, {}) if isinstance(named, ApiName) else (None, named)

        @passed_over
        def record(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if all_disabled():
                return body(*args, **kwargs)
            if name is not None:
                return observe(name, body, args, kwargs)
            called = objects.get(id(args[0]))
            if called is None:
                return body(*args, **kwargs)
            return observe(called.name, functools.partial(body, args[0]), args[1:], kwargs)

        return readable_swap(function, record)

    def _replace(self, watched: Watched) -> None:
        wrap = functools.partial(self._calls.wrapper, watched.name)
        make = functools.partial(in_the_place_of, watched.owner, watched.attribute, wrap)
        self._replacements.append(_Replacement(watched.owner, watched.attribute, make))

    def wrapper(self, name: ApiName, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls `function` and reports it, to be put in its place."""
        return self._calls.wrapper(name, function)

    def watch_casts(self, note: Callable[[str], None]) -> Handle | None:
        """Call `note` with each float8 dtype that a tensor is cast to, until the handle is removed."""
        if not internals.HAS_FUNCTION_MODES:
            return None
        self._casts.attach(note, self.attached)
        return self._casts

    # --- installing

    def install(self, everything: bool = False) -> None:
        """Put the hooks in place.

        Args:
            everything: Whether functions are reported that no family has.
        """
        self.everything = everything
        if self.attached:
            return
        self.attached = True
        try:
            self._install()
        except BaseException:
            self.remove()
            raise

    def _install(self) -> None:
        if self._families is not None:
            self._prepare(self._families())
            self._families = None
        for swap in self._swaps:
            swap.install()
        for replacement in self._replacements:
            replacement.install(self._attributes)
        self._calls.async_handles.install()
        self._mode.install()
        script_guard.install(self, self._suspended, self._listener)

    def remove(self) -> None:
        """Put everything back; calls still running in other threads end without being seen."""
        # Also when it was done already: something may have failed, or have been on another thread.
        self.attached = False
        script_guard.remove(self)
        parts = (self._mode.remove, self._attributes.remove, self._calls.async_handles.remove)
        each([*parts, *(swap.restore for swap in self._swaps)])

    @contextmanager
    def _suspended(self, _module: Any) -> Iterator[None]:
        self.remove()
        try:
            yield
        finally:
            self.install(self.everything)

    def end_step(self) -> None:
        self._calls.async_handles.forget()
        if not self.attached and (self._mode.on_some_thread or self._attributes.in_place):
            # The parts that `stop` could not reach.
            self.remove()

    # --- calls that pass the mode

    @passed_over
    def _from_mode(self, function: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self._casts.note is not None:
            self._casts.see(function, args, kwargs)
        if not self.attached:
            # It was stopped on another thread, or casts alone are watched.
            return function(*args, **kwargs)
        if function is _VIEW_AS and guarded(self._listener, "view_as", _is_called_by_autograd, args):
            return function(*args, **kwargs)
        name = self._names.get(function)
        if name is None:
            if type(function) not in _OF_TORCH:
                name = guarded(self._listener, "Aten", self._aten_name, function)
            elif self.everything:
                name = guarded(self._listener, "unlisted", self._unlisted_name, function)
            if name is None:
                return function(*args, **kwargs)
        return self._calls.call(name, function, args, kwargs)

    def _unlisted_name(self, function: Any) -> ApiName | None:
        if function not in self._unlisted:
            self._unlisted[function] = unlisted_name(function)
        return self._unlisted[function]

    def _aten_name(self, function: Any) -> ApiName | None:
        packet = function.overloadpacket if isinstance(function, internals.OperatorOverload) else function
        if not isinstance(packet, internals.OperatorPacket):
            return None
        namespace, _, api = packet._qualified_op_name.partition("::")
        if namespace != "aten":
            return None
        is_chosen_by_arguments = function is packet or _is_only_one(function, packet)
        called = "" if is_chosen_by_arguments else overload_name(api, function._overloadname)
        name = self._names[function] = ApiName(f"Aten.{api}", api, function=called)
        return name


def overload_name(api: str, overload: str) -> str:
    """The full name of one overload of an operator of ATen: ``torch.ops.aten.div.Scalar``."""
    return f"torch.ops.aten.{api}.{overload}"


def _is_only_one(overload: Any, packet: Any) -> bool:
    """True if the operator has no other overload that could take what this one takes, but for writing to `out`."""
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    computing = [schema for schema in schemas if not any(argument.is_out for argument in schema.arguments)]
    return computing == [overload._schema]


_VIEW_AS = own.view_as
_forward_gradients_enabled = internals.forward_gradients_enabled


def _is_called_by_autograd(args: Sequence[Any]) -> bool:
    """True if torch itself calls `view_as`, at the end of a ``Function.apply``.

    torch calls it there for every input that the function returned as it is: for the hooks of
    register_full_backward_hook, for example, which pass inputs and outputs of a module through a function. It is the
    one who does so with both kinds of gradients off and outside of inference mode.
    """
    return (
        len(args) == 2
        and args[0] is args[1]
        and not torch.is_grad_enabled()
        and not _forward_gradients_enabled()
        and not torch.is_inference_mode_enabled()
    )


class _Replacement:
    """Puts a wrapper in the place of an attribute, around what is there then."""

    def __init__(self, owner: Any, attribute: str, make: Callable[[], Any]) -> None:
        self._owner = owner
        self._attribute = attribute
        self._make = make
        self._around = getattr(owner, attribute)
        self._wrapper = make()

    def install(self, attributes: Attributes) -> None:
        now = getattr(self._owner, self._attribute)
        if now is not self._around and vars(self._owner).get(self._attribute) is not self._wrapper:
            # The user has replaced it since.
            self._around, self._wrapper = now, self._make()
        attributes.set(self._owner, self._attribute, self._wrapper)


_OF_TORCH = (*BUILT_IN, WrapperDescriptorType)
_KNOWN_TO_MODE = frozenset((
    "__eq__", "__setitem__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__iand__", "__ior__",
    "__ixor__", "__ilshift__", "__irshift__",
))  # fmt: skip
"""Operators that reach the mode as themselves. torch looks them up on the class to hand them on: replaced, they
would reach the `__torch_function__` of other classes and modes as functions that nobody there knows."""
_OTHER_NAMES = frozenset(("dsmm", "hsmm", "saddmm", "spmm"))
"""Second names of functions, which nobody calls them by."""
