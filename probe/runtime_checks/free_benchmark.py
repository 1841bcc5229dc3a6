"""Task ``free_benchmark``: every chosen call of a training is run again with perturbed inputs, and judged.

The training goes on with what it computed itself: everything here works on copies, and the random states are put back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.backends.protocol import FrameworkAdapter, execution_of
from probe.calls.arguments import Unreadable
from probe.calls.cases import not_run
from probe.calls.evaluation import Output, output_places, outputs_of
from probe.calls.prepared import reason
from probe.common import log
from probe.common.config.config import Config
from probe.common.errors import MsprobeException
from probe.common.interfaces import ApiName
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has
from probe.runtime_checks.examination import CheckFinding, Examination, FindingsFile, Message
from probe.runtime_checks.running_call import RunningCall, kept_random_states

_MOST_REASONS = 3
"""Reasons that are logged; a guess."""
_MOST_NAMES = 5
"""Functions that are logged; a guess."""


@dataclass
class _WaitingBackward:
    """A call whose backward is to be checked."""

    call: RunningCall
    outputs: list[Output]
    """The tensors that it returned, without their values."""
    with_gradient: list[bool]
    """True for those that take a gradient."""


class FreeBenchmark:
    """Implements `probe.common.interfaces.CallChecker`.

    Args:
        config: The settings; they stay as they are.
        adapter: The framework.

    Raises:
        MsprobeException: the framework cannot do what is asked.
    """

    def __init__(self, config: Config, adapter: FrameworkAdapter) -> None:
        if config.fuzz_stage == "backward" and not execution_of(adapter).differentiates_anywhere:
            raise MsprobeException(
                f'"free_benchmark.fuzz_stage" is "backward", which {adapter.framework} cannot do: the gradients '
                'of one call cannot be computed while those of the step are. Use "forward", or record the step and '
                "run msprobe acc_check."
            )
        self._adapter, self._execution = adapter, execution_of(adapter)
        self._mode = config.pert_mode
        self._backward = config.fuzz_stage == "backward"
        self._functions: dict[tuple[str, str], Callable[..., Any] | None] = {}

    # --- a step

    def begin_step(self, step: int, rank: int | None, folder: str) -> None:
        self._step, self._rank = step, rank
        self._file = FindingsFile(folder)
        self._functions.clear()
        self._checked = self._written = 0
        self._verdicts: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()
        self._unlisted: Counter[str] = Counter()

    def resume_step(self, rank: int | None, folder: str) -> None:
        self._rank = rank
        self._file.move(folder)

    def end_step(self) -> None:
        found = ", ".join(f"{count} {verdict}" for verdict, count in self._verdicts.most_common()) or "nothing found"
        stage = "backward" if self._backward else "forward"
        where = f", see {self._file.path}" if self._file.exists else ""
        lost = sum(self._verdicts.values()) - self._written
        where += f"; {lost} of them could not be written" if lost else ""
        log.info(f"free_benchmark, {self._mode}, {stage}: {self._checked} calls of step {self._step}: {found}{where}.")
        for why, count in self._left_out.most_common(_MOST_REASONS):
            log.info(f"free_benchmark: not checked, {count}: {why}.")
        if self._unlisted:
            names = [name for name, _ in self._unlisted.most_common(_MOST_NAMES)]
            more = f" and {len(self._unlisted) - len(names)} more" if len(self._unlisted) > len(names) else ""
            why = "a function that is not in the framework's lists cannot be run again"
            count = sum(self._unlisted.values())
            log.info(f"free_benchmark: not checked, {count}: {why}: {', '.join(names)}{more}.")
        self._file.remove_earlier()

    # --- calls

    def enter(self, name: str, api: ApiName, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RunningCall | None:
        self._file.remove_earlier()
        if not self._computes(api):
            return None
        function = self._function(api)
        if function is None:
            self._unlisted[api.base] += 1
            return None
        try:
            return RunningCall.of(self._adapter, name, function, args, kwargs)
        except Exception as error:
            self._leave_out(error)
            return None

    def _function(self, api: ApiName) -> Callable[..., Any] | None:
        base = api.base
        if api.attributes is not None:
            # One of many primitives of this name, each made in its own way.
            return self._execution.function(base, api.attributes)
        called = base, api.function
        if called not in self._functions:
            self._functions[called] = self._execution.function(base, called=api.function)
        return self._functions[called]

    @staticmethod
    def _computes(api: ApiName) -> bool:
        # Rounding is what a cast is for.
        return not_run(api.base) is None and not has(api.api, Trait.CASTS) and not api.returns_arguments

    def leave(self, call: Any, output: Any) -> Any:
        if not call.inputs:
            return None
        if self._backward:
            return self._kept(call, output)
        shown = [
            (str(value.dtype), str(value.shape)) if self._execution.is_tensor(value) else ("", "")
            for _, value in output_places(output, self._execution.is_tensor)
        ]

        def examined() -> list[Message]:
            results = outputs_of(call.execution, output)
            return Examination(call, results, autocast=call.autocast_of(results)).under(self._mode)

        self._examine(call, f"{call.name}.forward", shown, examined)
        return None

    def _kept(self, call: RunningCall, output: Any) -> _WaitingBackward | None:
        if not any(leaf.is_differentiated for leaf in call.arguments.leaves):
            return None
        is_tensor, dtype_name = self._execution.is_tensor, self._execution.dtype_name
        tensors = [value for _, value in output_places(output, is_tensor) if is_tensor(value)]
        outputs = [Output(str(index), None, dtype_name(value)) for index, value in enumerate(tensors)]
        return _WaitingBackward(call, outputs, [bool(getattr(value, "requires_grad", False)) for value in tensors])

    def backward(self, waiting: Any, grad_output: Sequence[Any]) -> None:
        call, execution = waiting.call, self._execution
        leaves = [leaf for leaf in call.arguments.leaves if leaf.is_differentiated]
        shown = [(str(each.dtype), str(each.shape)) for each in (call.inputs[leaf.number] for leaf in leaves)]

        def examined() -> list[Message]:
            autocast = call.autocast_of(waiting.outputs)
            gradients = [
                execution.copied(each) if execution.is_tensor(each) else None for each in _aligned(grad_output, waiting)
            ]
            output_gradients = [
                None if each is None else Output(str(index), execution.values(each), execution.dtype_name(each))
                for index, each in enumerate(gradients)
            ]
            # The gradients of the training are in the order of the gradient function, not in that of the arguments.
            given = [None if each is None else execution.copied(each) for each in gradients]
            results = call.again(None, given, autocast).gradients
            return Examination(call, results, output_gradients, gradients, autocast).under(self._mode)

        self._examine(call, f"{call.name}.backward", shown, examined)

    # --- what is found

    def _examine(
        self, call: RunningCall, name: str, shown: Sequence[tuple[str, str]], examined: Callable[[], list[Message]]
    ) -> None:
        with kept_random_states(self._execution):
            try:
                said = examined()
            except Exception as error:
                self._leave_out(error)
                return
        self._checked += 1
        for each in said:
            self._verdicts[each.verdict] += 1
            text = f"{name} is {each.verdict}: {each.explanation}."
            log.warning(text, once=f"free_benchmark {call.base} {each.verdict}")
        # After all of them were said: the file may have no room.
        for each in said:
            self._write(name, shown, each)
            self._written += 1

    def _write(self, name: str, shown: Sequence[tuple[str, str]], said: Message) -> None:
        index = said.output_index if len(shown) > 1 else None
        stage = "backward" if self._backward else "forward"
        self._file.add(CheckFinding(
            self._rank, self._mode, stage, self._step, name, said.max_rel, *shown[said.output_index], index,
            said.verdict, said.explanation,
        ))  # fmt: skip

    def _leave_out(self, error: Exception) -> None:
        # The single call is seldom of interest, and there would be thousands of lines.
        self._left_out[reason(error)] += 1


def _aligned(gradients: Sequence[Any], waiting: _WaitingBackward) -> Sequence[Any]:
    """The gradient of each tensor that was returned: there is one for each, or for each that takes one.

    Raises:
        Unreadable: it is not clear which is whose.
    """
    if len(gradients) == len(waiting.outputs):
        return gradients
    if len(gradients) != sum(waiting.with_gradient):
        raise Unreadable("it is not clear which gradient belongs to which output")
    given = iter(gradients)
    return [next(given) if takes else None for takes in waiting.with_gradient]
