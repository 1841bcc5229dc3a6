"""Makes the fields of records from the live values of calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable, cast

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall
from probe.collect.describing.described_once import DescribedOnce
from probe.collect.describing.makers import KINDS, Makers
from probe.collect.describing.values import ValueDescriber
from probe.collect.step import CollectedStep
from probe.common.config.config import Config
from probe.common.interfaces import Entry, StatisticsMode


class CallDescriber:
    """Describes the values of calls, and has their tensors saved by the sinks that save them.

    Args:
        adapter: The framework.
        failed: Called with the call of a tensor that cannot be described, or a text, and the error.
    """

    def __init__(self, adapter: FrameworkAdapter, failed: Callable[[Any, BaseException], None]) -> None:
        self._tensors = adapter.tensors
        self._randomness = adapter.randomness
        self._failed = failed
        self._of: ActiveCall | None = None
        """The call whose values are described."""
        self._hooks = adapter.hooks
        self._makers: Makers | None = None
        self.once: DescribedOnce | None = None
        """Knows tensors again that were described in this step, where a sink needs those that are not finite."""

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
        self.once, describe, direct = None, self._describe_tensor, self._direct
        if step.total.nonfinite:
            # An entry that names the file of a tensor is that of one call.
            remembers = knows_results and not step.saving
            self.once = DescribedOnce(self._tensors, self._summary, direct, step.suspects, remembers)
            describe, direct = self.once.describe, None if direct is None else self.once.direct
        self._values = ValueDescriber(self._tensors, describe, self._tensor_failed, direct)
        self._given = self._returned = self._given_gradients = self._returned_gradients = self._values
        # An entry that several calls share has no maker of its own.
        if self._summary.sketch and self.once is None:
            self._makers = makers = Makers(self._tensors, self._hooks, self._sees_functions, self._tensor_failed)
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

    def forget(self) -> None:
        """Any tensor may have been written to since it was described."""
        if self.once is not None:
            self.once.forget()

    def suspend(self, call: ActiveCall) -> None:
        """`call` has returned and works on in the background."""
        if self.once is not None:
            self.once.suspend(call)

    def update(self, call: ActiveCall) -> None:
        """The background work of `call` has ended."""
        if self.once is not None:
            self.once.update(call)

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
        self._begin(call)
        save = self._step.saver_of(call) if self._step.saving else None
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
        if save is not None and self._step.total.random_states:
            state = self._randomness.random_state(call.base, args, kwargs)
            if state is not None:
                (fields["random_state"],) = self._values.sequence([state], f"{call.name}.random_state", save)

    def output(self, call: ActiveCall, output: Any) -> None:
        """Describe what a call returned."""
        self._begin(call)
        save = self._step.saver_of(call) if self._step.saving else None
        call.fields["output"] = self._returned.output(output, save and f"{call.name}.output", save)

    def parameters(self, call: ActiveCall, parameters: Mapping[str, Any]) -> None:
        """Describe the own parameters of a module."""
        self._of = call
        save = self._step.saver_of(call) if self._step.saving else None
        described = self._given.mapping(parameters, save and f"{call.name}.parameters", save) if parameters else {}
        # Null stands for None, which no parameter is: one that cannot be described is left out.
        call.fields["parameters"] = {name: entry for name, entry in described.items() if entry is not None}

    def gradients(self, call: ActiveCall, field: str, gradients: Sequence[Any]) -> None:
        """Describe the gradients of the outputs (``input``) or of the inputs (``output``) of a function's call."""
        self._begin(call)
        save = self._step.saver_of(call) if self._step.saving else None
        values = self._given_gradients if field == "input" else self._returned_gradients
        call.fields[field] = values.sequence(gradients, save and f"{call.name}.{field}", save)

    def gradient(self, call: ActiveCall, value: Any, path: str) -> Any:
        """The entry of one gradient; `path` follows the name of the call: ``input.0`` or ``weight``."""
        self._begin(call)
        save = self._step.saver_of(call) if self._step.saving else None
        values = self._returned_gradients if path.startswith("output.") else self._given_gradients
        return values.single(value, save and f"{call.name}.{path}", save)

    def saved(self, call: ActiveCall, value: Any, path: str) -> Entry:
        """The entry of a value that the program saves itself."""
        self._of = call
        return cast(Entry, self._values.describe(value, None, path, self._step.saver_of(None, call)))

    # --- shared steps

    def _begin(self, call: ActiveCall) -> None:
        self._of = call
        if self._makers is not None:
            self._makers.state[1] = call.api

    def _describe_tensor(self, tensor: Any) -> Entry:
        return self._tensors.describe_tensor(tensor, self._summary)

    def _tensor_failed(self, error: Exception) -> None:
        self._failed(self._of, error)
