"""Counts and chooses the calls that the hooks report, and hands them to the sinks of the step.

One collector serves one debugger. Its `Listener` methods run on the hot path: they raise nothing, change nothing, and
do what can be done per step or per stack elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Callable, TypeVar

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall, close, innermost
from probe.collect.describing.calls import CallDescriber
from probe.collect.sinks.sink import Sink
from probe.collect.step import CollectedStep, Receivers, name_of, note_failure, tell
from probe.common import log
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.config.record_filter import RecordFilter, RecordPatterns, wanted_by_risk
from probe.common.config.unmatched import Met, unmatched
from probe.common.dump import journal as journals
from probe.common.dump import naming
from probe.common.dump.frameworks import of_dump
from probe.common.dump.journal import RecordWriter
from probe.common.errors import failure_text
from probe.common.interfaces import ApiName, Entry, ModuleName

try:
    from probe.collect._calls import PlainCalls
except ImportError:  # not built here
    PlainCalls = None  # type: ignore[assignment,misc]

_MOST_STACKS = 200_000
"""Frames of distinct call stacks that are kept from one step to the next, some 60 MB."""

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _quick(receivers: Receivers) -> tuple[Any, ...]:
    """Receivers of records, each with a function that appends one if that is quick and else is false, or ``None``."""
    return tuple(
        (sink, record, record.append if RecordWriter is not None and isinstance(record, RecordWriter) else None)
        for sink, record in receivers
    )


class _WantedByRisk(dict[str, bool]):
    """True of the functions that are wanted at a risk level; each is looked up once."""

    def __init__(self, level: str, risk_class: Callable[[str], str]) -> None:
        self._level = level
        self._risk_class = risk_class

    def __missing__(self, base: str) -> bool:
        wanted = self[base] = wanted_by_risk(self._level, self._risk_class(base))
        return wanted


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


class Collector:
    """Implements `probe.common.interfaces.Listener`.

    Args:
        config: The validated configuration.
        adapter: The framework.
    """

    def __init__(self, config: Config, adapter: FrameworkAdapter) -> None:
        self.collecting = False
        """True if calls are handed on now. Backward of calls that were handed on is, until the step ends."""
        self.apis_hidden = False
        """Set between `module_dump` and `module_dump_end`."""
        self.step: CollectedStep | None = None
        """The step that is collected."""
        self.plain: Any = None
        """Does what `enter_api`, `leave_api` and `backward_api` do, compiled, for plain calls; ``None`` in a step of
        others."""
        self._hooks = adapter.hooks
        self._default_risk_level = of_dump(adapter.framework).risk_level
        self._stacks = CallStacks()
        self._state = CollectedStep(0, None, "", self._stacks, ())
        """The step that was collected last, `step` until that ends."""
        self._tried: set[Sink] = set()
        self._describer = CallDescriber(adapter, self.failed)
        self.configure(config)

    # --- the life of a step

    def configure(self, config: Config) -> None:
        """Use other settings from now on; only between steps."""
        self._config = config
        self._with_tree = config.level in ("L0", "mix")
        patterns = RecordPatterns.of(config.module, config.api)
        self._selection = RecordFilter(config.names, config.scope, config.data_mode, config.level == "mix", patterns)
        self.takes_everything = config.takes_every_function
        """True if calls are taken of every function that makes or changes a number, in the list or not."""
        level = "ALL" if self.takes_everything else config.risk_level or self._default_risk_level
        by_risk = not config.names and not config.scope and config.api is None and level != "ALL"
        self._by_risk = _WantedByRisk(level, self._hooks.risk_class) if by_risk else None
        """By function, whether its calls are wanted, if the risk level decides it."""
        self._describer.configure(config)

    def begin_step(self, number: int, rank: int | None, process: str, sinks: Iterable[Sink]) -> bool:
        """Collect from now on, with all counters at zero. False if no sink can take this step.

        Args:
            number: Of the step.
            rank: ``None`` in a program without ranks.
            process: The name of this process's folder, such as ``rank0``.
            sinks: What receives the calls.

        Raises:
            MsprobeException: a setting of a sink is wrong.
        """
        if len(self._stacks) > _MOST_STACKS:
            self._stacks = CallStacks()
        self._selection.reset()
        self.apis_hidden = False
        step = CollectedStep(number, rank, process, self._stacks, sinks)
        # Communication is not seen at level L0.
        self._describer.begin_step(step, self._config.level != "L0" or rank is None)
        is_taken = step.begin(self._tried)
        self._state = step
        self.step = step if is_taken else None
        self.plain = self._plain_calls(step) if is_taken else None
        return is_taken

    def _plain_calls(self, step: CollectedStep) -> Any:
        """The value of `plain` in a step; ``None`` if something is chosen, saved or watched for, or it is not built."""
        selection, describer = self._selection, self._describer.compiled()
        wants_all = selection.everything and selection.forward and selection.backward
        if PlainCalls is None or describer is None or not (wants_all and selection.inputs and selection.outputs):
            return None
        if not step.with_values or step.entering or step.leaving or step.has_live_gradients:
            return None
        return PlainCalls(
            *(self._with_tree, step.with_stacks, self, step, step.thread, step.counts, step.order),
            *(self._by_risk, ActiveCall, *self._stacks.compiled(), *describer),
            *(_quick(step.recording), _quick(step.recording_backward), self._note, self.failed, note_failure),
        )

    def _note(self, call: ActiveCall, is_backward: bool) -> None:
        """Hand on a call without a record."""
        step = self._state
        of = (step.recording_backward, step.noting_backward) if is_backward else (step.recording, step.noting)
        self._finish(step, call, journals.REPLACE, *of)

    def hold(self, models: Any) -> None:
        """The models of the step that has begun are these; ``None`` where the program gives none."""
        self._describer.hold(models)

    def numbers(self) -> dict[str, int]:
        """The number that the next call of each name gets."""
        # To take the next one and put it back would leave a gap for another thread; a counter says it only as a text.
        counts = list(self._state.counts.items())
        return {base: int(repr(number)[len("count(") : -1]) for base, number in counts}

    def number_from(self, numbers: Mapping[str, int]) -> None:
        """Let further calls have the numbers that calls had when `numbers` was asked for."""
        self._state.counts.clear()
        self._state.counts.update((base, count(number)) for base, number in numbers.items())

    def unmatched(self) -> list[str] | None:
        """The names in the configuration that this step did not have; the step is over and its files are written.

        Returns:
            A sentence for each; ``None`` if no call was seen, of which nothing can be said.
        """
        calls = {base: number for base, number in self.numbers().items() if number}
        if not calls or self.step is None:
            return None
        selection, status = self._selection, self.step.status()
        met = Met(calls, selection.first_met, selection.last_met, status.has_records, status.has_tensors)
        return unmatched(self._config, met)

    def leave_step(self) -> CollectedStep | None:
        """Take no more, late gradients included, for the step that has begun, which is what is returned."""
        self.attempt(self._describer.end_step)
        self.plain = None
        step, self.step = self.step, None
        if step is not None:
            self.collecting = False
        return step

    # --- failures

    def failed(self, about: Any, error: BaseException) -> None:
        """Log a failure of the tool itself, once per place, with the name of the record it happened at."""
        if isinstance(about, ActiveCall) and about.api is not None:
            # The end of the call may have failed, and no later call would be recorded on this thread.
            self._state.thread.in_api = False
        name = name_of(about)
        if self.step is None or not self.step.failed(name, error):
            # There is no folder whose log could have the place.
            log.warning(f"{name}: {failure_text(error)}; the training goes on.", once=f"failed {name}")

    def attempt(self, action: Callable[..., Any], *args: Any, about: str = "") -> Any:
        """Do one of several things of which each has to be done, also when another one fails.

        Args:
            action: What is done.
            args: Its arguments.
            about: The name in the log of what failed; by default that of `action`.
        """
        try:
            return action(*args)
        except Exception as error:
            self.failed(about or getattr(action, "__qualname__", "the end of collection"), error)
            return None

    # --- the end of collection

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
                    self._finish(self._state, call, journals.MOVE, self._state.recording, self._state.noting)
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
            if api.returns_arguments:
                self._describer.forget()
            if not self._selection.everything:
                call.wanted = self._selection.begin(name, False)
            else:
                call.wanted = self._by_risk is None or self._by_risk[base]
            if call.wanted:
                self._enter(call, args, kwargs)
        except Exception as error:
            self.failed(call, error)
        thread.in_api = True
        return call

    def _enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """A wanted call begins."""
        state, selection = self._state, self._selection
        if state.with_stacks:
            opened = state.thread.calls
            # A module stands there already itself.
            at = len(opened) - 1 - (call.frame is not None)
            if at < 0:
                call.stack = self._stacks.current()
            else:
                outer = opened[at]
                call.stack = self._stacks.current(outer.frame, outer.stack)
        if state.entering:
            state.enter(call, args, kwargs)
        if selection.forward and selection.inputs and state.with_values:
            self._describer.inputs(call, args, kwargs)

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
        watched = bool(state.leaving) and call.wanted and state.leave(call, output)
        self._finish(state, call, journals.REPLACE, state.recording, state.noting)
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
        if self._by_risk is not None:
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
        self._write_inputs(call)

    def cancel_api(self, call: ActiveCall) -> None:
        """The call turned out to be none (``NotImplemented``): as if it had not begun."""
        self._state.thread.in_api = False
        if call.step is not self.step:
            return  # its step is over
        self._state.counts[call.base] = count(call.number)

    def suspend_api(self, call: ActiveCall) -> None:
        self._state.thread.in_api = False
        if call.step is not self.step:
            return  # its step is over
        self._describer.suspend(call)
        if self._selection.everything or self._selection.end(call.name):
            self._state.suspended[call] = None
            self._write_inputs(call)

    @_guarded
    def _write_inputs(self, call: ActiveCall) -> None:
        if call.step is self.step:
            self._finish(self._state, call, journals.REPLACE, self._state.recording, self._state.noting)

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
        self._finish(state, call, journals.REPLACE, state.recording, state.noting)
        state.latest = latest

    @_guarded
    def backward_api(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        state = self.step
        if state is None or call.step is not state:
            return
        if state.has_live_gradients:
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
            if self._describer.remembers and self.collecting and not self.apis_hidden:
                self._describer.expect(grad_output)
                self._describer.expect(grad_input)
            if gradient.wanted and selection.inputs:
                self._describer.gradients(gradient, "input", grad_output)
            if ended and selection.outputs:
                self._describer.gradients(gradient, "output", grad_input)
        self._finish(state, gradient, journals.REPLACE, state.recording_backward, state.noting_backward)

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
        watched = bool(state.leaving) and call.wanted and state.leave(call, output)
        self._finish(state, call, journals.MOVE, state.recording, state.noting)
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
        name = f"{field}.{index}"
        if state.has_live_gradients and call.wanted:
            state.gradient(call, name, gradient)
        entries = call.fields.get(field)
        if entries is not None:
            entries[index] = self._describer.gradient(call, gradient, name)

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
            call.opened = None
            if not self._selection.end(call.name):
                call.fields.clear()
                call.held = None
        if call.fields:
            state.with_backward.add(call.base)
        call.order = next(state.order)
        self._finish(state, call, journals.MOVE, state.recording_backward, state.noting_backward)

    @_guarded
    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        if not self.collecting and not owed:
            return  # after stop, of calls that were not recorded
        state = self.step
        if state is None:
            return
        if state.has_live_gradients:
            state.gradient(module, parameter, gradient)
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
            self._finish(state, call, journals.ADD, state.recording_backward, state.noting_backward)

    # --- gradient clipping and the optimizer

    @_guarded
    def enter_optimizer(self, name: str) -> None:
        self._describer.forget()
        state = self.step
        if self.collecting and state is not None:
            call = ActiveCall(name, 0, name, next(state.order), None, state)
            call.frame = self._stacks.caller()
            state.thread.calls.append(call)
            self._finish(state, call, None, state.recording, state.noting)

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
            self.step.latest = name
            # Whatever its fields are.
            tell(self.step.recording, call, call, journals.REPLACE)

    def next_order(self) -> int:
        return next(self._state.order)

    # --- shared steps

    def _finish(
        self, state: CollectedStep, call: ActiveCall, rule: int | None, recording: Receivers, noting: Receivers
    ) -> None:
        """Hand on what there is of a call to `recording`: its record.

        If it has none, its place in the call tree and its stack are handed on to `noting`.
        """
        if call.fields:
            state.latest = call.name
        elif self._with_tree or call.stack >= 0:
            recording, rule = noting, None
        else:
            return
        for sink, record in recording:
            try:
                record(call, rule)
            except Exception as error:
                note_failure(sink, call, error)

    def _describe_output(self, call: ActiveCall, output: Any) -> None:
        try:
            if self._describer.remembers:
                self._describer.expect_result(call, output, self.collecting and not self.apis_hidden)
            self._describer.output(call, output)
        except Exception as error:
            self.failed(call, error)
