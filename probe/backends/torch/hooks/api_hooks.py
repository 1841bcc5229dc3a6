"""Seeing calls of torch functions.

Three ways, because torch has three kinds of functions, and each way leaves the objects users hold as they are:

* built-in functions and methods pass a `TorchFunctionMode`, also those bound earlier by ``from torch import relu``;
* functions written in Python get other code while collecting (`substitution.CodeSwap`): the mode would see them too,
  but with all defaults filled in, and the record must hold what the user passed;
* operators of ``Tensor`` are replaced on the class where the mode cannot tell ``x + 1``, ``1 + x`` and ``x.add(1)``
  apart; so are built-in functions which torch offers under two names.

Outside a collected range none of these is in place.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any, Callable

import torch

from probe.backends.shared.api_list import Watched
from probe.backends.shared.async_collectives import Works
from probe.backends.shared.autograd.backward_tracker import GradientFlow
from probe.backends.shared.patching import Attributes, CodeSwap, each
from probe.backends.torch.autograd.graph import TorchGraph, first_tensor
from probe.backends.torch.autograd.views import Part, has_lost_its_node, written_through
from probe.backends.torch.guards import compiling, passed_over, safely
from probe.backends.torch.hooks.api_backward import _Backward, _made_of, _result_around
from probe.backends.torch.hooks.function_mode import (
    _NONE,
    _depth,
    _insert_lowest,
    _Mode,
    _pop,
    _push,
    _Reentry,
    _take_out,
    _without,
)
from probe.backends.torch.hooks.torch_compile import forget_signature
from probe.common.interfaces import ApiName, Listener

_all_disabled = torch._C._is_torch_function_all_disabled
_grad_enabled = torch.is_grad_enabled
_COMPILED = frozenset((BuiltinFunctionType, MethodDescriptorType))
"""What a function is that neither calls others which could be recorded nor is an operator of `torch.ops`."""


class ApiHooks:
    """Attached to a listener from construction until `remove`."""

    def __init__(
        self, listener: Listener, flow: GradientFlow, graph: TorchGraph, families: Mapping[str, list[Watched]]
    ) -> None:
        self.listener = listener
        self.flow = flow
        self._views = graph.views
        self._on_departure = graph.on_departure
        self._names: dict[Any, ApiName] = {}
        self._swaps: list[CodeSwap] = []
        self._replacements: list[tuple[Any, str, Any]] = []
        self._attributes = Attributes()
        self._question = Attributes()
        self._mode_on: set[threading.Thread] = set()
        """Threads on which `start` put the mode, and no `stop` has taken it off yet."""
        self._works = Works(listener, _kinds_of_work, safely)
        self._mode = _Mode(self.from_mode)
        self._reentry = _Reentry(self._mode, listener)
        self._prepare(families)
        self._attached = False

    def _prepare(self, families: Mapping[str, list[Watched]]) -> None:
        for family, functions in families.items():
            # Of two names of one built-in function the first is what it is called where it was imported before.
            for watched in sorted(functions, key=lambda watched: watched.attribute in _OTHER_NAMES):
                self._prepare_one(family, watched)
        vf = families.get("vf", [])
        if vf:
            self._prepare_vf({watched.attribute for watched in vf}, families.get("torch", []))

    def _prepare_one(self, family: str, watched: Watched) -> None:
        function, name = watched.function, watched.name
        if family == "vf":
            return
        replaced = family == "tensor" and name.api.startswith("__") and name.api not in _TOLD_APART
        if replaced or family == "npu":
            self._replace(watched.owner, watched.attribute, self.wrapper(name, function))
        elif isinstance(function, FunctionType):
            self._swaps.append(self._swap(name, function))
        elif function in self._names:
            self._replace(watched.owner, watched.attribute, self.wrapper(name, function))
        else:
            self._names[function] = name

    def _prepare_vf(self, always: set[str], torch_functions: list[Watched]) -> None:
        """``torch._VF`` hands out torch's own built-ins, and torch.nn calls them there."""
        watched = always | {watched.attribute for watched in torch_functions} | _RECURRENT
        module: Any = torch._VF
        self._replace(module, "vf", _VariableFunctions(self, module.vf, watched, always))

    def _replace(self, owner: Any, attribute: str, wrapper: Any) -> None:
        self._replacements.append((owner, attribute, wrapper))

    # --- attaching

    def install(self) -> None:
        if self._attached:
            return
        self._attached = True
        try:
            self._install()
        except BaseException:
            self.remove()
            raise

    def _install(self) -> None:
        for swap in self._swaps:
            swap.install()
        for replacement in self._replacements:
            self._attributes.set(*replacement)
        self._works.install()
        self._views.resume()
        self._place_mode()

    def remove(self) -> None:
        """Put everything back; calls still running in other threads end without being seen."""
        # Also when it was done already: something may have failed, or have been on another thread.
        self._attached = False
        parts = (self._take_mode_off, self._attributes.remove, self._works.remove, self._views.remove)
        each([*parts, *(swap.restore for swap in self._swaps)])

    def _place_mode(self) -> None:
        self._take_mode_off()
        if not self._mode_on:
            question = torch.overrides.has_torch_function
            self._question.set(torch.overrides, "has_torch_function", _without(self._mode, question))
        self._mode_on.add(threading.current_thread())
        _insert_lowest(self._mode)

    def _take_mode_off(self) -> None:
        """From this thread: the modes of another one are out of reach.

        Until ours is taken off there too nobody may notice it, so the question whether there are modes stays replaced.
        """
        _take_out(self._mode)
        here = threading.current_thread()
        self._mode_on = {thread for thread in self._mode_on if thread is not here and thread.is_alive()}
        if not self._mode_on:
            self._question.remove()

    def end_step(self) -> None:
        self._works.forget()
        if not self._attached and (self._mode_on or self._attributes.in_place):
            # What was out of reach of `stop`.
            self.remove()

    # --- calls

    @passed_over
    def observe(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call `function` and report it. Where the tool has no part in the call, do not come here."""
        listener = self.listener
        call = safely(listener, name, self._enter, name, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        try:
            output = function(*args, **kwargs)
            if output is NotImplemented:
                # An operator that leaves the work to the other operand.
                safely(listener, call, listener.cancel_api, call)
            elif name.returns_arguments:
                result = (*args, *kwargs.values())
                if not safely(listener, call, self._works.hold, call, output, result):
                    safely(listener, call, listener.leave_api, call, result)
            else:
                safely(listener, call, self._leave, call, name, args, kwargs, output)
            return output
        except BaseException:
            # The function's own, or an interrupt, which may come while the end of the call is reported.
            safely(listener, call, listener.fail_api, call)
            raise

    def _enter(self, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self.flow.advance_to_current()
        return self.listener.enter_api(name, args, kwargs)

    def _leave(self, call: Any, name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        if not self.listener.leave_api(call, output) or not _grad_enabled():
            return
        tensor = first_tensor(output)
        # A dropout of probability 0 has no backward by contract.
        if tensor is None or not tensor.requires_grad or _drops_nothing(name, args, kwargs):
            return
        if tensor._is_view():
            written = written_through(tensor, args, kwargs)
            if written is not None:
                self._watch_written(call, tensor, written)
                return
            if has_lost_its_node(tensor):
                return
            whole = _result_around(tensor, args, kwargs)
            if whole is not None:
                # Nobody else has it, so its gradient is that of the view; and it arrives there in any case, at the
                # view's own node only until the view is written to.
                self._watch_part(call, tensor, whole)
                return
        node = tensor.grad_fn
        if node is not None:
            backward = _Backward(self, call, node._sequence_nr())
            self._on_departure(node, backward)
            if tensor._is_view():
                self._views.watch(tensor, _made_of(tensor, args, kwargs), backward)

    def _watch_part(self, call: Any, view: torch.Tensor, whole: Any) -> None:
        node, part, slot = whole.grad_fn, Part.of(view), whole.output_nr
        number = node._sequence_nr()

        def backward(_: Sequence[Any], gradients: Sequence[Any]) -> None:
            gradient = gradients[slot]
            self.backward(call, number, [gradient], [part(gradient)])

        self._on_departure(node, functools.partial(safely, self.listener, call, backward))

    def _watch_written(self, call: Any, view: torch.Tensor, node: Any) -> None:
        number, part = node._sequence_nr(), Part.of(view)

        def backward(grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
            # The first input is the whole tensor before, the others are what was written from.
            inputs = [part(grad_input[0]), *grad_input[1:]]
            self.backward(call, number, inputs, [part(gradient) for gradient in grad_output])

        self._on_departure(node, functools.partial(safely, self.listener, call, backward))

    def backward(self, call: Any, number: int, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        self.flow.advance(number)
        self.listener.backward_api(call, grad_output, grad_input)

    def _swap(self, name: ApiName, function: FunctionType) -> CodeSwap:
        observe, aside, body = self.observe, self._aside, function

        @passed_over
        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return observe(name, functools.partial(aside, body), args, kwargs)

        # What torch's compiler reads: it can only read a function that refers to nothing but functions.
        @passed_over
        def handle(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if compiling() or _all_disabled():
                return body(*args, **kwargs)
            return record(args, kwargs)

        def changing(swap: CodeSwap) -> None:
            nonlocal body
            body = swap.body
            forget_signature(function)

        return CodeSwap(function, handle, changing)

    @passed_over
    def _aside(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose inner calls are of no interest, without the mode in their way."""
        depth = _depth()
        if not depth:
            return function(*args, **kwargs)
        top = _pop()
        if top is not self._mode:
            # The user's mode is above ours and stays in charge; ours lets inner calls pass.
            _push(top)
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            _push(top)

    def wrapper(self, name: ApiName, function: Callable[..., Any]) -> Callable[..., Any]:
        aside = functools.partial(self._aside, function)
        observe = self.observe

        @passed_over
        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return observe(name, aside, args, kwargs)

        return _wrapper(function, record)

    def vf_wrapper(self, name: ApiName, function: Callable[..., Any], always: bool) -> Callable[..., Any]:
        """Records what user code calls; of the calls of torch itself those that are in the list, which is `always`."""
        aside = functools.partial(self._aside, function)
        observe = self.observe

        @passed_over
        def record(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            caller = sys._getframe(2).f_globals.get("__name__", "")
            if always or not caller.startswith("torch."):
                return observe(name, aside, args, kwargs)
            return aside(*args, **kwargs)

        return _wrapper(function, record)

    @passed_over
    def from_mode(
        self, function: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> Any:
        """A call that passed the mode, which is out of the way until this returns."""
        if not self._attached:
            # It was stopped on another thread.
            return function(*args, **(kwargs or _NONE))
        name = self._names.get(function)
        if name is None:
            if type(function) in _COMPILED:
                return function(*args, **(kwargs or _NONE))
            name = safely(self.listener, "Aten", self._aten_name, function)
            if name is None:
                return self._reentry.call(function, types, args, kwargs or _NONE)
        return self.observe(name, function, args, kwargs or _NONE)

    def _aten_name(self, function: Any) -> ApiName | None:
        packet = function.overloadpacket if isinstance(function, torch._ops.OpOverload) else function
        if not isinstance(packet, torch._ops.OpOverloadPacket):
            return None
        namespace, _, api = packet._qualified_op_name.partition("::")
        if namespace != "aten":
            return None
        name = self._names[function] = ApiName(f"Aten.{api}", api)
        return name


_TOLD_APART = frozenset((
    "__eq__", "__setitem__", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__", "__iand__", "__ior__",
    "__ixor__", "__ilshift__", "__irshift__",
))  # fmt: skip
"""Operators that the mode is told of as themselves. torch looks them up on the class to hand them on: replaced, they
would reach the `__torch_function__` of other classes and modes as functions that nobody there knows."""
_OTHER_NAMES = frozenset(("dsmm", "hsmm", "saddmm", "spmm"))
"""Of functions that nobody calls by them."""
_RECURRENT = frozenset(
    ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
)


def _wrapper(function: Callable[..., Any], record: Callable[..., Any]) -> Callable[..., Any]:
    """Calls `record`. torch's compiler can read it, since it refers to nothing but functions."""

    @passed_over
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if compiling() or _all_disabled():
            # Not the user's own call, or one where the user wants no interception.
            return function(*args, **kwargs)
        return record(args, kwargs)

    return wrapper


def _kinds_of_work() -> list[type]:
    if not torch.distributed.is_available():
        return []
    kinds: list[type] = []
    ahead: list[type] = [torch._C._distributed_c10d.Work]
    while ahead:
        kind = ahead.pop()
        kinds.append(kind)
        ahead += kind.__subclasses__()
    return kinds


class _VariableFunctions:
    """Stands for what ``torch._VF`` looks its functions up in."""

    def __init__(self, hooks: ApiHooks, functions: Any, watched: set[str], always: set[str]) -> None:
        self._hooks = hooks
        self._functions = functions
        self._watched = watched
        self._always = always

    def __getattr__(self, attribute: str) -> Any:
        function = getattr(self._functions, attribute)
        if attribute in self._watched:
            name = ApiName(f"VF.{attribute}", attribute)
            function = self._hooks.vf_wrapper(name, function, attribute in self._always)
        # Found without this method next time.
        setattr(self, attribute, function)
        return function


def _drops_nothing(name: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if "dropout" not in name.api:
        return False
    probability = kwargs.get("p", args[1] if len(args) > 1 else None)
    return isinstance(probability, (int, float)) and probability == 0


