"""Counts and chooses the calls that the hooks report, and hands them to the sinks of the step.

One collector serves one debugger. Its `Listener` methods run on the hot path: they raise nothing, change nothing, and
do what can be done per step or per stack elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Callable, TypeVar

from probe.collect.active_calls import ActiveCall, close, innermost
from probe.collect.step_life import StepLife
from probe.common.config.selection import wanted_by_risk
from probe.common.dump import journal as journals
from probe.common.dump import naming
from probe.common.interfaces import ApiName, Entry, ModuleName

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """A failure inside `method` is logged with the record's name, and the user's program goes on."""

    @functools.wraps(method)
    def call(self: Collector, *args: Any) -> Any:
        try:
            return method(self, *args)
        except Exception as error:
            self.failed(args[0] if args else method.__name__, error)
            return None

    return call  # type: ignore[return-value]


class Collector(StepLife):
    """Implements `probe.common.interfaces.Listener`; for the arguments see `StepLife`."""

    @_guarded
    def leave_all(self) -> None:
        """Collection stops here: what is still open on this thread keeps its inputs."""
        thread = self._state.thread
        thread.in_api = False
        opened, thread.calls = thread.calls, []
        for call in opened:
            if call.frame is not None:
                call.frame = None
                if call.step is self.step:
                    self._state.finish(call, journals.MOVE)
        # Behind `stop` nothing is seen, and nobody's tensors are referred to.
        self._describer.forget()

    # --- APIs

    def enter_api(self, api: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActiveCall | None:
        state, base = self._state, api.base
        thread = state.thread
        if thread.in_api or not self.collecting or self.apis_hidden:
            return None
        number = next(state.counts[base])
        opened = thread.calls
        begun = next(state.order)
        parent = innermost(opened, self._write_inputs) if opened and self._with_tree else None
        name = naming.api_name(base, number, naming.FORWARD)
        call = ActiveCall(base, number, name, begun, parent, state)
        call.api = api
        try:
            self._enter_api(call, args, kwargs)
        except Exception as error:
            self.failed(call, error)
        thread.in_api = True
        return call

    def _enter_api(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if call.api is not None and call.api.returns_arguments:
            self._describer.forget()
        selection = self._selection
        if not selection.everything:
            call.wanted = selection.begin(call.name, False)
        elif self._by_risk:
            call.wanted = self._risk_wanted(call.base)
        else:
            call.wanted = True
        if call.wanted:
            self._enter(call, args, kwargs)

    def _risk_wanted(self, base: str) -> bool:
        risk = self._state.risk
        wanted = risk.get(base)
        if wanted is None:
            wanted = risk[base] = wanted_by_risk(self._risk_level, self._hooks.risk_class(base))
        return wanted

    def _enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A wanted call begins."""
        state, selection = self._state, self._selection
        if state.with_stacks:
            self._take_stack(call)
        if state.live:
            state.enter(call, args, kwargs)
        if selection.forward and selection.inputs and state.with_values:
            self._describer.inputs(call, args, kwargs)

    def _take_stack(self, call: ActiveCall) -> None:
        opened = self._state.thread.calls
        # A module stands there already itself.
        at = len(opened) - 1 - (call.frame is not None)
        if at < 0:
            call.stack = self._stacks.current()
        else:
            outer = opened[at]
            call.stack = self._stacks.current(outer.frame, outer.stack)

    def leave_api(self, call: ActiveCall, output: Any) -> bool:
        self._state.thread.in_api = False
        try:
            return self._leave_api(call, output)
        except Exception as error:
            self.failed(call, error)
            return False

    def _leave_api(self, call: ActiveCall, output: Any) -> bool:
        state, selection = self.step, self._selection
        if state is None or call.step is not state:
            return False  # its step is over
        if call.api is not None and call.api.returns_arguments:
            self._describer.forget()
        wanted = call.wanted if selection.everything else selection.end(call.name)
        if wanted and selection.forward and selection.outputs and state.with_values:
            self._describe_output(call, output)
        watched = bool(state.live) and call.wanted and state.leave(call, output)
        state.finish(call, journals.REPLACE)
        if state.saving and call.wanted:
            state.returned(call)
        # The gradient graph keeps the call; it need not keep what has been written.
        call.fields = {}
        if watched or not state.records_backward:
            return watched
        if self._with_tree:
            return True
        if not selection.backward or not state.with_values:
            return False
        return call.wanted or wanted or self._possible(call)

    def _possible(self, call: ActiveCall) -> bool:
        if self._by_risk:
            return False
        return self._selection.possible(naming.api_name(call.base, call.number, naming.BACKWARD))

    def fail_api(self, call: ActiveCall) -> None:
        self._state.thread.in_api = False
        self._describer.forget()
        self._fail(call)

    @_guarded
    def _fail(self, call: ActiveCall) -> None:
        if call.step is not self.step:
            return  # its step is over
        if not self._selection.everything:
            self._selection.end(call.name)
        self._state.withdraw(call)
        self._write_inputs(call)

    def cancel_api(self, call: ActiveCall) -> None:
        """The call turned out to be none (``NotImplemented``): as if it had not begun."""
        self._state.thread.in_api = False
        if call.step is not self.step:
            return  # its step is over
        self._state.counts[call.base] = count(call.number)
        self._state.withdraw(call)

    def suspend_api(self, call: ActiveCall) -> None:
        self._state.thread.in_api = False
        if call.step is not self.step:
            return  # its step is over
        self._describer.suspend(call)
        self._state.withdraw(call)
        if self._selection.everything or self._selection.end(call.name):
            self._state.suspended[call] = None
            self._write_inputs(call)

    @_guarded
    def _write_inputs(self, call: ActiveCall) -> None:
        if call.step is self.step:
            self._state.finish(call, journals.REPLACE)

    @_guarded
    def update_api(self, call: ActiveCall, output: Any) -> None:
        state, selection = self.step, self._selection
        self._describer.update(call)
        if state is None or call not in state.suspended:
            return
        del state.suspended[call]
        if not (call.wanted and selection.forward and state.with_values):
            return
        if selection.outputs:
            self._describe_output(call, output)
        latest = state.latest
        if latest != call.name and call.fields:
            # The result arrived here, and not where the call stands.
            call.fields["waited_after"] = latest
        # Nothing, where neither inputs nor output could be described.
        state.finish(call, journals.REPLACE)
        state.latest = latest

    @_guarded
    def backward_api(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        state = self.step
        if state is None or call.step is not state:
            return
        if state.live_gradients:
            state.backward(call, grad_output, grad_input)
        if not state.records_backward:
            return
        thread = state.thread
        name = naming.api_name(call.base, call.number, naming.BACKWARD)
        parent = thread.calls[-1].name if self._with_tree and thread.calls else None
        gradient = ActiveCall(call.base, call.number, name, next(state.order), parent, state)
        selection = self._selection
        if selection.everything:
            gradient.wanted = call.wanted
            ended = call.wanted
        else:
            gradient.wanted = selection.begin(name, False)
            ended = selection.end(name)
        if state.with_values and selection.backward:
            if self._describer.once is not None and self._is_seen():
                self._describer.once.expect(grad_output)
                self._describer.once.expect(grad_input)
            if gradient.wanted and selection.inputs:
                self._describer.gradients(gradient, "input", grad_output)
            if ended and selection.outputs:
                self._describer.gradients(gradient, "output", grad_input)
        state.finish_backward(gradient, journals.REPLACE)

    # --- modules

    def enter_module(self, module: ModuleName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActiveCall | None:
        if not self.collecting:
            return None
        state, base = self._state, module.base
        number = next(state.counts[base])
        opened = state.thread.calls
        parent = innermost(opened, self._write_inputs) if opened else None
        call = ActiveCall(
            base, number, naming.module_name(base, number, naming.FORWARD), next(state.order), parent, state
        )
        call.frame = self._stacks.caller()
        opened.append(call)
        self._enter_module(call, args, kwargs)
        return call

    @_guarded
    def _enter_module(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        selection = self._selection
        call.wanted = selection.everything or selection.begin(call.name, True)
        if call.wanted:
            self._enter(call, args, kwargs)

    def leave_module(self, call: ActiveCall, output: Any, parameters: Mapping[str, Any]) -> bool:
        close(self._state.thread.calls, call, self._write_inputs)
        return bool(self._leave_module(call, output, parameters))

    @_guarded
    def _leave_module(self, call: ActiveCall, output: Any, parameters: Mapping[str, Any]) -> bool:
        state, selection = self.step, self._selection
        if state is None or call.step is not state:
            return False  # its step is over
        wanted = call.wanted if selection.everything else selection.end(call.name)
        if wanted and selection.forward and selection.outputs and state.with_values:
            self._describe_output(call, output)
            self._describer.parameters(call, parameters)
            call.order = next(state.order)
        watched = bool(state.live) and call.wanted and state.leave(call, output)
        state.finish(call, journals.MOVE)
        if state.saving and call.wanted:
            state.returned(call)
        call.fields = {}
        return watched or state.records_backward

    def fail_module(self, call: ActiveCall, parameters: Mapping[str, Any]) -> None:
        # Recorded like one that returned nothing, which is what its caller got.
        close(self._state.thread.calls, call, self._write_inputs)
        self._leave_module(call, None, parameters)

    def running_module(self) -> str | None:
        """The module whose forward is the innermost call of this thread; ``None`` if it is no module's."""
        opened = self._state.thread.calls
        return opened[-1].base if opened and opened[-1].frame is not None else None

    def enter_backward(self, call: ActiveCall, outputs: int, inputs: int) -> ActiveCall | None:
        state = self.step
        if state is None or call.step is not state:
            return None  # its step is over
        opened = state.thread.calls
        parent = opened[-1].name if opened else None
        name = naming.module_name(call.base, call.number, naming.BACKWARD)
        gradient = ActiveCall(call.base, call.number, name, next(state.order), parent, state)
        opened.append(gradient)
        selection = self._selection
        gradient.opened = opened
        gradient.wanted = selection.everything or selection.begin(name, True) or selection.possible(name)
        if state.with_values and selection.backward and gradient.wanted:
            if selection.inputs:
                gradient.fields["input"] = [None] * outputs
            if selection.outputs:
                gradient.fields["output"] = [None] * inputs
        return gradient

    @_guarded
    def backward_gradient(self, call: ActiveCall, field: str, index: int, gradient: Any) -> None:
        state = self.step
        if state is None:
            return
        if state.live_gradients and call.wanted:
            state.gradient(call, field, index, gradient)
        entries = call.fields.get(field)
        if entries is not None:
            entries[index] = self._describer.gradient(call, gradient, f"{field}.{index}")

    def leave_backward(self, call: ActiveCall) -> None:
        close(self._state.thread.calls, call, self._write_inputs)
        self._leave_backward(call)

    @_guarded
    def _leave_backward(self, call: ActiveCall) -> None:
        state = self.step
        if state is None:
            return
        # Only the end decides, and once: a backward that straddles the border of a scope is not split.
        if not self._selection.everything and call.opened is not None:
            state.decide(call, self._selection.end(call.name))
            call.opened = None
        if call.fields:
            state.with_backward.add(call.base)
        call.order = next(state.order)
        state.finish_backward(call, journals.MOVE)

    @_guarded
    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        if not self.collecting and not owed:
            return  # after stop, of calls that were not recorded
        state = self.step
        if state is None:
            return
        if state.live_gradients:
            state.parameter_gradient(module, parameter, gradient)
        if not (state.records_backward and state.with_values and self._selection.parameter_gradients):
            return
        number = state.gradient_counts.get((module.base, parameter), 0)
        state.gradient_counts[module.base, parameter] = number + 1
        name = naming.module_name(module.base, number, naming.PARAMETERS_GRAD)
        if not (self._selection.everything or self._selection.now(name) or module.base in state.with_backward):
            return
        call = ActiveCall(module.base, number, name, next(state.order), None, state)
        call.begun = -1
        entry = self._describer.gradient(call, gradient, parameter)
        if entry is not None:
            call.fields[parameter] = [entry]
            state.finish_backward(call, journals.ADD)

    # --- gradient clipping and the optimizer

    @_guarded
    def enter_optimizer(self, name: str) -> None:
        self._describer.forget()
        state = self.step
        if self.collecting and state is not None:
            call = ActiveCall(name, 0, name, next(state.order), None, state)
            call.frame = self._stacks.caller()
            state.thread.calls.append(call)
            state.node(call)

    @_guarded
    def leave_optimizer(self, name: str) -> None:
        self._describer.forget()
        opened = self._state.thread.calls
        call = next((call for call in reversed(opened) if call.name == name), None)
        if call is not None:
            close(opened, call, self._write_inputs)

    # --- saved values

    @_guarded
    def describe_saved(self, name: str, value: Any, path: str) -> Entry:
        """The entry of a value that is saved by itself."""
        return self._describer.saved(ActiveCall(name, 0, name, 0, None, self.step), value, path)

    @_guarded
    def write_saved(self, name: str, order: int, fields: Any) -> None:
        """Put `fields` under `name`, in the place it has already if it has one."""
        if self.step is not None:
            call = ActiveCall(name, 0, name, order, None, self.step)
            call.begun = -1
            call.fields = fields
            self.step.record(call, journals.REPLACE)

    def next_order(self) -> int:
        return next(self._state.order)

    # --- shared steps

    def _is_seen(self) -> bool:
        """True if calls are seen that may write to what is described now."""
        return self.collecting and not self.apis_hidden

    @_guarded
    def _describe_output(self, call: ActiveCall, output: Any) -> None:
        if self._describer.once is not None:
            self._describer.once.returned(call, output, self._is_seen())
        self._describer.output(call, output)
