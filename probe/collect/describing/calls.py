"""Makes the fields of records from the live values of calls."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple, cast

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall
from probe.collect.describing.choices import Chooser
from probe.collect.describing.makers import KINDS, Makers
from probe.collect.describing.values import ValueDescriber
from probe.collect.step import CollectedStep
from probe.common.config.config import Config
from probe.common.interfaces import Entry, StatisticsMode
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has, writes_in_place

_LEAST, _MOST = -math.inf, math.inf
_WORTH_KNOWING = 8192
"""Elements from which on to look whether a tensor is known takes less than to describe it."""
_MOST_KNOWN = 100_000
"""Tensors that are known again; most of so many are gone already."""


class _DescribedTensor(NamedTuple):
    """A tensor that was described in this step."""

    tensor: weakref.ref[Any]
    mark: Any
    entry: Entry


class CallDescriber:
    """Describes the values of calls, and has their tensors saved by the sinks that save them.

    If a sink needs the tensors that are not finite, each tensor is described once a step. It keeps its entry as long as
    the framework says that it holds what it held (`Tensors.content_mark`). Since not every write is counted, only
    results of calls are known again (`expect`), and none of them any more once something was called that may write
    without being counted (`forget`); of all else the statistics are taken again.

    Args:
        adapter: The framework.
        failed: Called with the call of a tensor that cannot be described, or a text, and the error.
    """

    def __init__(self, adapter: FrameworkAdapter, failed: Callable[[Any, BaseException], None]) -> None:
        self._tensors = adapter.tensors
        self._mark = adapter.tensors.content_mark
        self._randomness = adapter.randomness
        self._hooks = adapter.hooks
        self._failed = failed
        self.of: ActiveCall | None = None
        """The call whose values are described."""
        self._makers: Makers | None = None
        self._maker_state: list[Any] = [None, None]
        """`Makers.state`; without makers a list that nobody reads, so that a call need not ask."""
        self._chooser: Chooser | None = None
        self.remembers = False
        """True if tensors are known again that were described in this step."""
        self._known: dict[int, _DescribedTensor] = {}
        self._expected: dict[int, Any] = {}
        """The marks of results that are about to be described."""
        self._in_background: set[ActiveCall] = set()
        """Calls that work on, and may write at any time."""

    def configure(self, config: Config) -> None:
        """Use other settings from now on; only between steps."""
        sketch = config.sketch and config.task in ("statistics", "tensor")
        self._sees_functions = config.level != "L0"
        self._summary = StatisticsMode(config.summary_mode, config.precision == "high", config.nonfinite, sketch)
        try:
            self._direct = self._tensors.direct_describer(self._summary)
        except Exception as error:
            self._direct = None
            self._failed("the faster way to describe tensors", error)

    def begin_step(self, step: CollectedStep, knows_results: bool) -> None:
        """Describe for the sinks of `step`.

        Args:
            step: The step that begins. Asked at each call for the sinks that save, which may become fewer.
            knows_results: True if every call is seen that may write to a result without that being counted.
        """
        self._step = step
        self._saver_of = step.saver_of if step.saving else None
        self._known, self._expected, self._in_background = {}, {}, set()
        # An entry that names the file of a tensor is that of one call.
        self.remembers = step.with_nonfinite and knows_results and not step.saving
        if step.with_nonfinite:
            direct = None if self._direct is None else self._suspect_direct
            self._values = ValueDescriber(self._tensors, self._suspect_tensor, self._tensor_failed, direct)
        else:
            self._values = ValueDescriber(self._tensors, self._describe_tensor, self._tensor_failed, self._direct)
        self._given = self._returned = self._given_gradients = self._returned_gradients = self._values
        # An entry that several calls share has no maker of its own.
        self._chooser = None
        if self._summary.sketch and not step.with_nonfinite:
            self._chooser = Chooser(self._tensors, self._tensor_failed)
            self._makers = makers = Makers(self._tensors, self._hooks, self._sees_functions, self._tensor_failed)
            self._maker_state = makers.state
            self._given, self._given_gradients, self._returned, self._returned_gradients = (
                self._noting(makers, kind) for kind in range(len(KINDS))
            )

    def _noting(self, makers: Makers, kind: int) -> ValueDescriber:
        describe: Any = makers.describing(kind, self._describe_tensor)
        direct = None if self._direct is None else makers.describing(kind, self._direct)
        return ValueDescriber(self._tensors, describe, self._tensor_failed, direct)

    def hold(self, models: Any) -> None:
        """The program's models are these, as far as it has told."""
        if self._makers is not None:
            self._makers.hold(models)

    def end_step(self) -> None:
        """The step is over."""
        self.forget()
        if self._makers is not None:
            self._makers.forget()
            self._makers = None

    def compiled(self) -> tuple[Any, ...] | None:
        """The arguments for `probe.collect._calls.PlainCalls`; ``None`` if it cannot describe all of this step."""
        if self._makers is None or self._direct is None or self._saver_of is not None:
            return None
        idle = None if self._chooser is None else self._chooser.idle
        kinds = self._given, self._given_gradients, self._returned, self._returned_gradients
        directs, others = (each.direct for each in kinds), (each.describe for each in kinds)
        return (self, self._maker_state, idle, self._returned.output, *directs, *others)

    # --- what may have been written to

    def forget(self) -> None:
        """Any tensor may have been written to since it was described."""
        if self.remembers:
            self._known, self._expected = {}, {}

    def suspend(self, call: ActiveCall) -> None:
        """`call` has returned and works on in the background."""
        self._in_background.add(call)
        self.forget()

    def update(self, call: ActiveCall) -> None:
        """The background work of `call` has ended."""
        self._in_background.discard(call)
        self.forget()

    def expect(self, values: Any) -> None:
        """`values`, a result or several, are about to be described, and to be known from then on."""
        if not self.remembers or self._in_background:
            return
        for value in values if isinstance(values, (tuple, list)) else (values,):
            # Before: what is written meanwhile, on another thread, makes it another mark.
            mark = self._mark(value)
            if mark is not None:
                self._expected[id(value)] = mark

    def expect_result(self, call: ActiveCall, output: Any, is_seen: bool) -> None:
        """`output` of `call` is about to be described; `is_seen`: so are calls that may write to it."""
        if call.api is not None:
            # It has just been written; a module may hand on what was described already.
            for value in output if isinstance(output, (tuple, list)) else (output,):
                self._known.pop(id(value), None)
        if is_seen and (call.api is None or not _hands_out_memory(call)):
            self.expect(output)

    # --- one call

    def inputs(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Describe what a call is given."""
        if call.api is not None and call.api.filled:
            filled = call.api.filled
            args = [None if i in filled else value for i, value in enumerate(args)]
            kwargs = {key: None if key in filled else value for key, value in kwargs.items()}
        if call.api is not None and call.api.known_before is not None:
            known = call.api.known_before
            args, kwargs = [known(value) for value in args], {key: known(value) for key, value in kwargs.items()}
        self.of = call
        if self._chooser is not None and call.base not in self._chooser.idle:
            self._chooser.enter(call, args, kwargs)
        save = None if self._saver_of is None else self._saver_of(call)
        fields = call.fields
        fields["input_args"] = self._given.sequence(args, save and f"{call.name}.input", save)
        fields["input_kwargs"] = self._given.mapping(kwargs, save and f"{call.name}.kwargs", save) if kwargs else {}
        if call.api is not None and call.api.function:
            fields["function"] = call.api.function
        if call.api is not None and call.api.attributes is not None:
            # If tensors are saved: all that is needed to run the call again.
            if save:
                fields["attributes"] = call.api.attributes
            elif call.api.deciding:
                fields["attributes"] = call.api.deciding
        if save is not None and self._step.with_random_states:
            state = self._randomness.random_state(call.base, args, kwargs)
            if state is not None:
                (fields["random_state"],) = self._values.sequence([state], f"{call.name}.random_state", save)

    def output(self, call: ActiveCall, output: Any) -> None:
        """Describe what a call returned."""
        self.of, self._maker_state[1] = call, call.api
        save = None if self._saver_of is None else self._saver_of(call)
        call.fields["output"] = described = self._returned.output(output, save and f"{call.name}.output", save)
        if self._chooser is not None and call.base not in self._chooser.idle:
            self._chooser.leave(call, output, described)

    def parameters(self, call: ActiveCall, parameters: Mapping[str, Any]) -> None:
        """Describe the own parameters of a module."""
        self.of = call
        save = None if self._saver_of is None else self._saver_of(call)
        described = self._given.mapping(parameters, save and f"{call.name}.parameters", save) if parameters else {}
        # Null stands for None, which no parameter is: one that cannot be described is left out.
        call.fields["parameters"] = {name: entry for name, entry in described.items() if entry is not None}

    def gradients(self, call: ActiveCall, field: str, gradients: Sequence[Any]) -> None:
        """Describe the gradients of the outputs (``input``) or of the inputs (``output``) of a function's call."""
        self.of, self._maker_state[1] = call, call.api
        save = None if self._saver_of is None else self._saver_of(call)
        values = self._given_gradients if field == "input" else self._returned_gradients
        call.fields[field] = values.sequence(gradients, save and f"{call.name}.{field}", save)

    def gradient(self, call: ActiveCall, value: Any, path: str) -> Any:
        """The entry of one gradient; `path` follows the name of the call: ``input.0`` or ``weight``."""
        self.of, self._maker_state[1] = call, call.api
        save = None if self._saver_of is None else self._saver_of(call)
        values = self._returned_gradients if path.startswith("output.") else self._given_gradients
        return values.single(value, save and f"{call.name}.{path}", save)

    def saved(self, call: ActiveCall, value: Any, path: str) -> Entry:
        """The entry of a value that the program saves itself."""
        self.of = call
        return cast(Entry, self._values.describe(value, None, path, self._step.saver_of(None, call)))

    # --- shared steps

    def _describe_tensor(self, tensor: Any) -> Entry:
        return self._tensors.describe_tensor(tensor, self._summary)

    def _suspect_direct(self, value: Any) -> Entry | None:
        """The entry of most tensors, ``None`` for any other value; see `Tensors.direct_describer`."""
        known = self._known.get(id(value))
        if known is not None and known.tensor() is value and known.mark == self._mark(value):
            return known.entry
        entry = self._direct(value)  # type: ignore[misc]
        if entry is None:
            return None
        # A NaN compares as false.
        if not (entry["Min"] > _LEAST and entry["Max"] < _MOST):
            self._step.suspects.add(entry)
        if self._expected:
            mark = self._expected.pop(id(value), None)
            shape = entry["shape"]
            if mark is not None and len(shape) > 1 and math.prod(shape) >= _WORTH_KNOWING:
                self._note(value, mark, entry)
        return entry

    def _suspect_tensor(self, tensor: Any) -> Entry:
        """The entry of any tensor; its statistics may come later."""
        known = self._known.get(id(tensor))
        if known is not None and known.tensor() is tensor and known.mark == self._mark(tensor):
            return known.entry
        entry = self._describe_tensor(tensor)
        self._step.suspects.ask_later(entry)
        mark = self._expected.pop(id(tensor), None)
        if mark is not None:
            self._note(tensor, mark, entry)
        return entry

    def _note(self, tensor: Any, mark: Any, entry: Entry) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(tensor)] = _DescribedTensor(weakref.ref(tensor), mark, entry)

    def _tensor_failed(self, error: Exception) -> None:
        self._failed(self.of, error)


def _hands_out_memory(call: ActiveCall) -> bool:
    """True if a result of this call may be a buffer, or be filled by what is not seen."""
    assert call.api is not None
    name = call.api.api
    if call.api.returns_arguments or writes_in_place(name):
        return True
    # Kernels fill such memory without that being counted.
    return has(name, Trait.UNWRITTEN, Trait.CONSTANT)
