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
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType
from typing import Any, Callable

import torch
from torch.overrides import TorchFunctionMode

from probe.backends.torch.gradient_flow import TorchGraph, first_tensor
from probe.backends.torch.quiet import compiling, safely, skipped
from probe.backends.torch.views import Part, can_be_cut, has_lost_its_node, written_through
from probe.common.api_list import Watched
from probe.common.containers import found_in
from probe.common.contract import ApiName, Listener
from probe.common.gradient_flow import GradientFlow
from probe.common.substitution import Attributes, CodeSwap, each
from probe.common.view_backward import Parts
from probe.common.works import Works

_pop = torch._C._pop_torch_function_stack
_push = torch._C._push_on_torch_function_stack
_depth = torch._C._len_torch_function_stack
_all_disabled = torch._C._is_torch_function_all_disabled
_grad_enabled = torch.is_grad_enabled
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_NONE: Mapping[str, Any] = {}
_COMPILED = frozenset((BuiltinFunctionType, MethodDescriptorType))
"""What a function is that neither calls others which could be recorded nor is an operator of `torch.ops`."""
_NO_MODE = object()


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
        self._mode = _Mode(self)
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

    def observe(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call `function` and report it."""
        if compiling() or _all_disabled():
            # Not the user's own call, or one where the user wants no interception.
            return function(*args, **kwargs)
        return self._observe(name, function, args, kwargs)

    def _observe(
        self, name: ApiName, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
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
        observe, aside = self.observe, self._aside

        def handle(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return observe(name, functools.partial(aside, swap.body), args, kwargs)

        swap = CodeSwap(function, handle)
        return swap

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

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return observe(name, aside, args, kwargs)

        return wrapper

    def vf_wrapper(self, name: ApiName, function: Callable[..., Any], always: bool) -> Callable[..., Any]:
        """Records what user code calls; of the calls of torch itself those that are in the list, which is `always`."""
        aside = functools.partial(self._aside, function)
        observe = self.observe

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if always or not caller.startswith("torch."):
                return observe(name, aside, args, kwargs)
            return aside(*args, **kwargs)

        return wrapper

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
        # The mode has asked already what `observe` asks.
        return self._observe(name, function, args, kwargs or _NONE)

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


def _result_around(view: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The tensor that `view` is of, if the call itself made it, as ``linear`` can; else ``None``."""
    whole: Any = view._base
    # First of all what nearly all have: the argument that they make a view of.
    if args and (whole is args[0] or (isinstance(args[0], torch.Tensor) and whole is args[0]._base)):
        return None
    if whole.grad_fn is None or not can_be_cut(whole):
        return None
    return None if _made_of(view, args, kwargs) is not None else whole


def _made_of(view: torch.Tensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument that `view` is a view of, or another view of the same tensor."""
    whole = view._base
    for value in (*args, *kwargs.values()):
        # Few arguments are containers, and to look for what is in them takes longer than all else here.
        tensors = (value,) if value is None or isinstance(value, torch.Tensor) else found_in(value, torch.Tensor)
        for tensor in tensors:
            if tensor is whole or (tensor is not None and tensor._base is whole):
                return tensor
    return None


class _Backward:
    """The backward of one call: a hook on its gradient node.

    One object for the garbage collector, as `probe.common.node_hooks.NodeHook` is; what writes to a view is rare.
    Implements `ViewBackward` and `Later` of `probe.common.view_backward` too.
    """

    __slots__ = ("_call", "_hooks", "_known", "_later", "_number")

    def __init__(self, hooks: ApiHooks, call: Any, number: int) -> None:
        self._hooks = hooks
        self._call = call
        self._number = number
        self._later: tuple[Parts, int] | None = None
        """What does not arrive here and has not been reported."""
        self._known = True
        """Whether what arrives here, and that, are all of it."""

    @skipped
    def __call__(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        hooks = self._hooks
        if not self._known:
            return
        if self._later is not None and hooks.flow.runs_now(self._later[1]):
            safely(hooks.listener, self._call, self._report_together, grad_input, grad_output)
            return
        # What a hook returns takes the gradient's place.
        safely(hooks.listener, self._call, hooks.backward, self._call, self._number, grad_input, grad_output)

    def written(self, number: int, parts: Parts) -> None:
        self._later = parts, self._hooks.flow.when_reached(self._call, number, self)

    def unknown(self) -> None:
        self._known = False

    def report(self) -> None:
        if self._later is not None:
            parts, self._later = self._later[0], None
            found = parts() if self._known else None
            if found is not None:
                gradient, given = found
                self._hooks.listener.backward_api(self._call, [gradient], [given])

    def drop(self) -> None:
        self._later = None

    def _report_together(self, grad_input: Sequence[Any], grad_output: Sequence[Any]) -> None:
        assert self._later is not None
        parts, self._later = self._later[0], None
        found = parts()
        if found is None:
            return
        gradient, given = found
        both = [_sum(grad_input[0], given)], [_sum(grad_output[0], gradient)]
        self._hooks.backward(self._call, self._number, *both)


def _sum(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    # Of a call that makes a view of a view, one is the gradient of what lies between.
    return torch.add(one, other) if one.shape == other.shape else None


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


class _Mode(TorchFunctionMode):
    def __init__(self, hooks: ApiHooks) -> None:
        super().__init__()
        self._from_mode = hooks.from_mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The first are the getter and the setter of an attribute, which programs use more often than functions.
        if type(func) is MethodWrapperType or compiling():
            return func(*args, **(kwargs or _NONE))
        return self._from_mode(func, types, args, kwargs)


class _Reentry:
    """Runs functions that are not recorded themselves but call others that are.

    A Python function of torch first asks whether a mode is active and hands itself over; called again it would do so
    for ever, and called without the mode its inner calls would go unseen. So its body runs with a view of its
    globals in which that question is answered with no.
    """

    def __init__(self, mode: TorchFunctionMode, listener: Listener) -> None:
        self._mode = mode
        self._listener = listener
        self._bodies: dict[Any, Callable[..., Any]] = {}
        self._local = _Running()

    def call(self, function: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if type(function) is not FunctionType or not _PLAIN.issuperset(types):
            return function(*args, **kwargs)
        running = self._local.functions
        if function in running:
            return function(*args, **kwargs)
        body = self._bodies.get(function)
        if body is None:
            body = safely(self._listener, function.__name__, _without_question, function) or function
            self._bodies[function] = body
        try:
            running.add(function)
            _push(self._mode)
            return body(*args, **kwargs)
        finally:
            _take_out(self._mode)
            running.discard(function)


class _Running(threading.local):
    def __init__(self) -> None:
        self.functions: set[Any] = set()


class _View(dict[str, Any]):
    """A function's globals, as they are at each look-up, with some names answered differently."""

    def __init__(self, under: dict[str, Any], over: dict[str, Any]) -> None:
        super().__init__(over)
        self._under = under

    def __missing__(self, key: str) -> Any:
        return self._under[key]


def _no(*_: Any) -> bool:
    return False


def _without_question(function: FunctionType) -> Callable[..., Any]:
    inner: Any = function
    if function.__code__.co_name == "wrapped" and hasattr(function, "__wrapped__"):
        inner = function.__wrapped__  # a decorator of torch asks the question for the function
    if type(inner) is not FunctionType:
        return function
    questions = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    view = _View(inner.__globals__, dict.fromkeys(questions, _no))
    body = FunctionType(inner.__code__, view, inner.__name__, inner.__defaults__, inner.__closure__)
    body.__kwdefaults__ = inner.__kwdefaults__
    return body


def _without(mode: TorchFunctionMode, question: Callable[..., bool]) -> Callable[..., bool]:
    """`question` as if our mode were not there.

    Modules such as TransformerEncoder take a faster path, with other last bits, when no mode is active.
    """

    def ask(*args: Any) -> bool:
        if not _depth():
            return question(*args)
        top = _pop()
        try:
            if top is mode:
                return question(*args)
        finally:
            _push(top)
        return question(*args)

    return ask


def _insert_lowest(mode: TorchFunctionMode) -> None:
    """Below the user's modes: a user's ``with`` block that ends takes off whatever is on top.

    But above the one of ``torch.set_default_device``, which torch looks for at the very bottom.
    """
    above: list[Any] = []
    try:
        while _depth():
            above.append(_pop())
        if above and above[-1] is getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", _NO_MODE):
            _push(above.pop())
        _push(mode)
    finally:
        for other in reversed(above):
            _push(other)


def _take_out(mode: TorchFunctionMode) -> None:
    """However often it is there: an interrupt may have kept it from being taken out."""
    # No comprehension: it is a call, which can fail where this one did not.
    others: list[Any] = []
    try:
        for _ in range(_depth()):
            top = _pop()
            if top is not mode:
                others.append(top)
    finally:
        for other in reversed(others):
            _push(other)
