"""Turns what the hooks report into records of the journal.

One collector serves one debugger. Its `Listener` methods run on the hot path: they raise nothing, change nothing, and
do what can be done per step or per stack elsewhere.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Callable, TypeVar, cast

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall, ActiveCalls, close, innermost
from probe.collect.dump_folder import DumpFolder, StepPlace
from probe.collect.record_writer import RecordWriter
from probe.collect.tensor_budget import TensorBudget
from probe.collect.values import SaveTensor, ValueDescriber
from probe.common import log
from probe.common.callstack import CallStacks
from probe.common.config.config import Config
from probe.common.config.selection import Selection, wanted_by_risk
from probe.common.config.unmatched import Met, unmatched
from probe.common.dump import journal as journals
from probe.common.dump import naming
from probe.common.errors import failure_text
from probe.common.interfaces import ApiName, Entry, ModuleName, StatisticsMode

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


class Collector:
    """Implements `probe.common.interfaces.Listener`.

    Args:
        config: The validated configuration.
        adapter: The framework.
        ended: Called when enough differences to the reference run were found.
    """

    def __init__(self, config: Config, adapter: FrameworkAdapter, ended: Callable[[], None]) -> None:
        self._tensors = adapter.tensors
        self._hooks = adapter.hooks
        self._randomness = adapter.randomness
        self._ended = ended
        self._stacks = CallStacks()
        self._thread = ActiveCalls()
        self.collecting = False
        """Whether calls are recorded now. Backward of recorded calls is, until the step ends."""
        self.apis_hidden = False
        """Set between `module_dump` and `module_dump_end`."""
        self.folder: StepPlace | None = None
        self._budget = TensorBudget()
        self.configure(config)
        self._reset()

    # --- life of a step

    def configure(self, config: Config) -> None:
        """Use other settings from now on; only between steps."""
        self._config = config
        self._with_tree = config.level in ("L0", "mix")
        self._with_values = config.task != "structure"
        self._with_stacks = config.extra_info
        self._with_random_state = config.task == "tensor"
        self._selection = Selection(config.names, config.scope, config.data_mode, config.level == "mix")
        self._risk_level = config.risk_level or self._hooks.default_risk_level
        self._by_risk = bool(not config.names and not config.scope and self._risk_level != "ALL")
        self._summary = StatisticsMode(config.summary_mode, config.precision == "high", config.nonfinite)
        direct = self._direct_describer()
        self._values = ValueDescriber(self._tensors, self._describe_tensor, self._tensor_failed, direct)
        self._described: ActiveCall | None = None
        self._budget.allow(config.max_gib)
        self._writer = self._new_writer(config)
        self._with_reference = self._writer.has_reference

    def _new_writer(self, config: Config) -> RecordWriter:
        return RecordWriter(config, self._tensors, self.failed, self._ended, self._budget)

    def _direct_describer(self) -> Callable[[Any], Entry | None] | None:
        try:
            return self._tensors.direct_describer(self._summary)
        except Exception as error:
            self.failed("the faster way to describe tensors", error)
            return None

    def begin_step(self, folder: DumpFolder) -> None:
        """Collect into `folder`, with all counters at zero."""
        self._reset()
        self._writer.begin_step(folder, self._stacks)
        self._budget.begin_step(folder)
        self.folder = folder

    def _reset(self) -> None:
        # Counters, not numbers: two threads that ask at once must not get the same one.
        self._counts: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._gradient_counts: dict[tuple[str, str], int] = {}
        self._kept_backward: set[str] = set()
        self._order = count()
        self._risk: dict[str, bool] = {}
        self._suspended: dict[ActiveCall, None] = {}
        self._thread = ActiveCalls()
        self._selection.reset()
        self.apis_hidden = False
        if len(self._stacks.frames) > 50_000:
            self._stacks = CallStacks()

    def flush(self) -> bool:
        """Bring everything collected so far into the files; whether there was anything new."""
        return self._writer.flush()

    def numbers(self) -> dict[str, int]:
        """The number that the next call of each name gets."""
        return {base: _upcoming(number) for base, number in list(self._counts.items())}

    def number_from(self, numbers: Mapping[str, int]) -> None:
        """Let further calls have the numbers that calls had when `numbers` was asked for."""
        self._counts = defaultdict(count, {base: count(number) for base, number in numbers.items()})

    def unmatched(self) -> list[str] | None:
        """What the configuration names and this step did not have, of which all calls are over and the files are made.

        Returns:
            A sentence for each; ``None`` if no call was seen, of which nothing can be said.
        """
        counts = {base: next(number) for base, number in list(self._counts.items())}
        calls = {base: count for base, count in counts.items() if count}
        if not calls or self.folder is None:
            return None
        selection = self._selection
        # Task structure has a call tree and no records.
        records = not self._with_values or self.folder.has_records()
        met = Met(calls, selection.first_met, selection.last_met, records, self._budget.saved_in_step)
        return unmatched(self._config, met)

    def end_step(self) -> None:
        """Take no more records, late gradients included, for this step; call `flush` before."""
        if self.folder is not None:
            self.collecting = False
            try:
                self.folder.close()
            except Exception as error:
                self.failed("the end of the step", error)
            self.folder = None
            self._writer.end_step()
            self._budget.end_step()

    def abandon(self) -> None:
        """Forget the current step without touching its files, which belong to the process this one was forked from."""
        self.collecting = False
        folder, self.folder = self.folder, None
        self._writer.end_step()
        if folder is not None:
            folder.abandon()

    def failed(self, about: Any, error: BaseException) -> None:
        """Log a failure of the tool itself, once per place, with the name of the record it happened at."""
        if isinstance(about, ActiveCall) and about.api is not None:
            # What ends the call may have failed, and nothing further would be seen on this thread.
            self._thread.in_api = False
        try:
            of_call = getattr(about, "name", None) or getattr(about, "base", "a record")
            name = about if isinstance(about, str) else of_call
            if self.folder is not None:
                self.folder.log_error(str(name), error)
            else:
                # There is no folder whose log could have the place.
                log.warning(f"{name}: {failure_text(error)}; the training goes on.", once=f"failed {name}")
        except Exception as second:
            log.warning(f"a failure of the tool cannot be noted ({second!r}); the training goes on.", once="not noted")

    @_guarded
    def leave_all(self) -> None:
        """Collection stops here: what is still open on this thread keeps its inputs."""
        opened, self._thread.calls = self._thread.calls, []
        self._thread.in_api = False
        for call in opened:
            if call.frame is not None:
                call.frame = None
                self._writer.finish(call, journals.MOVE)

    # --- APIs

    def enter_api(self, api: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActiveCall | None:
        thread = self._thread
        if thread.in_api or not self.collecting or self.apis_hidden:
            return None
        base = api.base
        number = next(self._counts[base])
        opened = thread.calls
        begun = next(self._order)
        parent = innermost(opened, self._write_inputs) if opened and self._with_tree else None
        name = naming.api_name(base, number, naming.FORWARD)
        call = ActiveCall(base, number, name, begun, parent, self.folder)
        call.api = api
        try:
            self._enter_api(call, args, kwargs)
        except Exception as error:
            self.failed(call, error)
        thread.in_api = True
        return call

    def _enter_api(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        selection = self._selection
        if not selection.everything:
            call.wanted = selection.begin(call.name, False)
        elif self._by_risk:
            call.wanted = self._risk_wanted(call.base)
        else:
            call.wanted = True
        if call.wanted and selection.forward:
            self._enter(call, args, kwargs)
        elif call.wanted:
            self._take_stack(call)

    def _risk_wanted(self, base: str) -> bool:
        wanted = self._risk.get(base)
        if wanted is None:
            wanted = self._risk[base] = wanted_by_risk(self._risk_level, self._hooks.risk_class(base))
        return wanted

    def leave_api(self, call: ActiveCall, output: Any) -> bool:
        self._thread.in_api = False
        try:
            return self._leave_api(call, output)
        except Exception as error:
            self.failed(call, error)
            return False

    def _leave_api(self, call: ActiveCall, output: Any) -> bool:
        selection = self._selection
        wanted = call.wanted if selection.everything else selection.end(call.name)
        if wanted and selection.forward and selection.outputs and self._with_values:
            self._describe_output(call, output)
        self._writer.finish(call, journals.REPLACE)
        if self._with_reference and call.wanted:
            self._writer.compare_with_reference(call)
        # The gradient graph keeps the call; it need not keep what has been written.
        call.fields = {}
        if self._with_tree:
            return True
        if not selection.backward or not self._with_values:
            return False
        return call.wanted or wanted or self._possible(call)

    def _possible(self, call: ActiveCall) -> bool:
        if self._by_risk:
            return False
        return self._selection.possible(naming.api_name(call.base, call.number, naming.BACKWARD))

    def fail_api(self, call: ActiveCall) -> None:
        self._thread.in_api = False
        self._fail(call)

    @_guarded
    def _fail(self, call: ActiveCall) -> None:
        if not self._selection.everything:
            self._selection.end(call.name)
        self._writer.finish(call, journals.REPLACE)

    def cancel_api(self, call: ActiveCall) -> None:
        """The call turned out to be none (``NotImplemented``): as if it had not begun."""
        self._thread.in_api = False
        self._counts[call.base] = count(call.number)

    def suspend_api(self, call: ActiveCall) -> None:
        self._thread.in_api = False
        if self._selection.everything or self._selection.end(call.name):
            self._suspended[call] = None
            self._write_inputs(call)

    @_guarded
    def _write_inputs(self, call: ActiveCall) -> None:
        self._writer.finish(call, journals.REPLACE)

    @_guarded
    def update_api(self, call: ActiveCall, output: Any) -> None:
        if call not in self._suspended:
            return
        del self._suspended[call]
        selection = self._selection
        if not (call.wanted and selection.forward and self._with_values):
            return
        if selection.outputs:
            self._describe_output(call, output)
        latest = self._writer.latest
        if latest != call.name and call.fields:
            # The result arrived here, and not where the call stands.
            call.fields["waited_after"] = latest
        # Nothing, where neither inputs nor output could be described.
        self._writer.finish(call, journals.REPLACE)
        self._writer.latest = latest

    @_guarded
    def backward_api(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        if self.folder is None or call.folder is not self.folder:
            return
        thread = self._thread
        name = naming.api_name(call.base, call.number, naming.BACKWARD)
        parent = thread.calls[-1].name if self._with_tree and thread.calls else None
        gradient = ActiveCall(call.base, call.number, name, next(self._order), parent, self.folder)
        selection = self._selection
        if selection.everything:
            gradient.wanted = call.wanted
            ended = call.wanted
        else:
            gradient.wanted = selection.begin(name, False)
            ended = selection.end(name)
        if self._with_values and selection.backward:
            self._described = gradient
            save = self._writer.saver_of(gradient)
            if gradient.wanted and selection.inputs:
                gradient.fields["input"] = self._values.sequence(grad_output, save and f"{name}.input", save)
            if ended and selection.outputs:
                gradient.fields["output"] = self._values.sequence(grad_input, save and f"{name}.output", save)
        self._writer.finish(gradient, journals.REPLACE)

    # --- modules

    def enter_module(self, module: ModuleName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActiveCall | None:
        if not self.collecting:
            return None
        base = module.base
        number = next(self._counts[base])
        opened = self._thread.calls
        parent = innermost(opened, self._write_inputs) if opened else None
        name = naming.module_name(base, number, naming.FORWARD)
        call = ActiveCall(base, number, name, next(self._order), parent, self.folder)
        call.frame = self._stacks.caller()
        opened.append(call)
        self._enter_module(call, args, kwargs)
        return call

    @_guarded
    def _enter_module(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        selection = self._selection
        call.wanted = selection.everything or selection.begin(call.name, True)
        if call.wanted and selection.forward:
            self._enter(call, args, kwargs)
        elif call.wanted:
            self._take_stack(call)

    def leave_module(self, call: ActiveCall, output: Any, parameters: Mapping[str, Any]) -> bool:
        close(self._thread.calls, call, self._write_inputs)
        return bool(self._leave_module(call, output, parameters))

    @_guarded
    def _leave_module(self, call: ActiveCall, output: Any, parameters: Mapping[str, Any]) -> bool:
        selection = self._selection
        wanted = call.wanted if selection.everything else selection.end(call.name)
        if wanted and selection.forward and selection.outputs and self._with_values:
            self._describe_output(call, output)
            self._describe_parameters(call, parameters)
            call.order = next(self._order)
        self._writer.finish(call, journals.MOVE)
        if self._with_reference and call.wanted:
            self._writer.compare_with_reference(call)
        call.fields = {}
        return True

    def fail_module(self, call: ActiveCall, parameters: Mapping[str, Any]) -> None:
        # Recorded like one that returned nothing, which is what its caller got.
        close(self._thread.calls, call, self._write_inputs)
        self._leave_module(call, None, parameters)

    def enter_backward(self, call: ActiveCall, outputs: int, inputs: int) -> ActiveCall | None:
        if self.folder is None or call.folder is not self.folder:
            return None  # its step is over
        opened = self._thread.calls
        parent = opened[-1].name if opened else None
        name = naming.module_name(call.base, call.number, naming.BACKWARD)
        gradient = ActiveCall(call.base, call.number, name, next(self._order), parent, self.folder)
        opened.append(gradient)
        selection = self._selection
        gradient.opened = opened
        gradient.wanted = selection.everything or selection.begin(name, True) or selection.possible(name)
        if self._with_values and selection.backward and gradient.wanted:
            if selection.inputs:
                gradient.fields["input"] = [None] * outputs
            if selection.outputs:
                gradient.fields["output"] = [None] * inputs
        return gradient

    @_guarded
    def backward_gradient(self, call: ActiveCall, field: str, index: int, gradient: Any) -> None:
        entries = call.fields.get(field)
        if entries is None or self.folder is None:
            return
        self._described = call
        save = self._writer.saver_of(call)
        entries[index] = self._values.single(gradient, save and f"{call.name}.{field}.{index}", save)

    def leave_backward(self, call: ActiveCall) -> None:
        close(self._thread.calls, call, self._write_inputs)
        self._leave_backward(call)

    @_guarded
    def _leave_backward(self, call: ActiveCall) -> None:
        if self.folder is None:
            return
        # Only the end decides, and once: a backward that straddles the border of a scope is not split.
        if not self._selection.everything and call.opened is not None:
            self._writer.decide(call, self._selection.end(call.name))
            call.opened = None
        if call.fields:
            self._kept_backward.add(call.base)
        call.order = next(self._order)
        self._writer.finish(call, journals.MOVE)

    @_guarded
    def parameter_gradient(self, module: ModuleName, parameter: str, gradient: Any, owed: bool) -> None:
        if not self.collecting and not owed:
            return  # after stop, of calls that were not recorded
        if self.folder is None or not self._with_values or not self._selection.parameter_gradients:
            return
        key = (module.base, parameter)
        number = self._gradient_counts.get(key, 0)
        self._gradient_counts[key] = number + 1
        name = naming.module_name(module.base, number, naming.PARAMETERS_GRAD)
        if not (self._selection.everything or self._selection.now(name) or module.base in self._kept_backward):
            return
        call = ActiveCall(module.base, number, name, next(self._order), None, self.folder)
        call.begun = -1
        self._described = call
        save = self._writer.saver_of(call)
        entry = self._values.single(gradient, save and f"{name}.{parameter}", save)
        if entry is not None:
            call.fields[parameter] = [entry]
            self._writer.write(call, journals.ADD)

    # --- gradient clipping and the optimizer

    @_guarded
    def enter_optimizer(self, name: str) -> None:
        if self.collecting and self.folder is not None:
            call = ActiveCall(name, 0, name, next(self._order), None, self.folder)
            call.frame = self._stacks.caller()
            self._thread.calls.append(call)
            self._writer.write_node(call)

    @_guarded
    def leave_optimizer(self, name: str) -> None:
        for call in reversed(self._thread.calls):
            if call.name == name:
                close(self._thread.calls, call, self._write_inputs)
                return

    # --- saved values

    @_guarded
    def describe_saved(self, name: str, value: Any, save: SaveTensor | None, path: str) -> Entry:
        """The entry of a value that is saved by itself."""
        self._described = ActiveCall(name, 0, name, 0, None, self.folder)
        return cast(Entry, self._values.describe(value, None, path, save))

    @property
    def saver_of_values(self) -> SaveTensor | None:
        """What writes the tensors of values that are saved by hand; ``None`` if they are not wanted."""
        return self._writer.saver

    @_guarded
    def write_saved(self, name: str, order: int, fields: Any) -> None:
        """Put `fields` under `name`, in the place it has already if it has one."""
        if self.folder is not None:
            call = ActiveCall(name, 0, name, order, None, self.folder)
            call.begun = -1
            call.fields = fields
            self._writer.write(call, journals.REPLACE)

    def next_order(self) -> int:
        return next(self._order)

    # --- shared steps

    @_guarded
    def _describe_output(self, call: ActiveCall, output: Any) -> None:
        self._described = call
        save = self._writer.saver_of(call)
        call.fields["output"] = self._values.output(output, save and f"{call.name}.output", save)

    @_guarded
    def _describe_parameters(self, call: ActiveCall, parameters: Mapping[str, Any]) -> None:
        self._described = call
        save = self._writer.saver_of(call)
        described = self._values.mapping(parameters, save and f"{call.name}.parameters", save) if parameters else {}
        # Null stands for None, which no parameter is: one that cannot be described is left out.
        call.fields["parameters"] = {name: entry for name, entry in described.items() if entry is not None}

    def _tensor_failed(self, error: Exception) -> None:
        self.failed(self._described, error)

    def _enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._take_stack(call)
        if not self._selection.inputs or not self._with_values:
            return
        if call.api is not None and call.api.filled:
            filled = call.api.filled
            args = [None if i in filled else value for i, value in enumerate(args)]
            kwargs = {key: None if key in filled else value for key, value in kwargs.items()}
        if call.api is not None and call.api.known_before is not None:
            known = call.api.known_before
            args, kwargs = [known(value) for value in args], {key: known(value) for key, value in kwargs.items()}
        self._described = call
        save = self._writer.saver_of(call)
        fields = call.fields
        fields["input_args"] = self._values.sequence(args, save and f"{call.name}.input", save)
        fields["input_kwargs"] = self._values.mapping(kwargs, save and f"{call.name}.kwargs", save) if kwargs else {}
        if call.api is not None and call.api.attributes is not None:
            # Where tensors are saved, all that it takes to run the call again.
            if save:
                fields["attributes"] = call.api.attributes
            elif call.api.deciding:
                fields["attributes"] = call.api.deciding
        if save is not None and self._with_random_state:
            state = self._randomness.random_state(call.base, args, kwargs)
            if state is not None:
                (fields["random_state"],) = self._values.sequence([state], f"{call.name}.random_state", save)

    def _take_stack(self, call: ActiveCall) -> None:
        if not self._with_stacks:
            return
        opened = self._thread.calls
        # A module stands there already itself.
        at = len(opened) - 1 - (call.frame is not None)
        if at < 0:
            call.stack = self._stacks.current()
        else:
            outer = opened[at]
            call.stack = self._stacks.current(outer.frame, outer.stack)

    def _describe_tensor(self, tensor: Any) -> Entry:
        return self._tensors.describe_tensor(tensor, self._summary)


def _upcoming(number: Iterator[int]) -> int:
    # To take the next one and put it back would leave a gap for another thread; a counter says it only as a text.
    return int(repr(number)[len("count(") : -1])
