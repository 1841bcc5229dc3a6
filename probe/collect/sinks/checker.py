"""Calls are checked while they run, and none is recorded."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from probe.collect.active_calls import ActiveCall
from probe.collect.sinks.sink import Discarded, Needs, Sink, Status, Step
from probe.common import log
from probe.common.dump.layout import step_folder
from probe.common.interfaces import CallChecker


class CheckerSink(Sink):
    """Hands the wanted calls of functions to a checker.

    Args:
        checker: Checks the calls.
        dump_path: The folder below which it writes what it finds.
    """

    def __init__(self, checker: CallChecker, dump_path: str) -> None:
        self._checker = checker
        self._root = os.path.abspath(dump_path)
        self._entered: weakref.WeakKeyDictionary[ActiveCall, Any] = weakref.WeakKeyDictionary()
        """The checker's notes on calls that run, and (next) on those whose backward it waits for."""
        self._left: dict[ActiveCall, Any] = {}
        self._step: Step | None = None
        """The step that has begun."""
        self._steps: list[int] = []

    def needs(self) -> Needs:
        return Needs(enter=self._enter, leave=self._leave, backward=self._backward)

    # --- the life of a step

    def begin_step(self, step: Step) -> bool:
        self._left = {}
        self._checker.begin_step(step.number, step.rank, self._folder(step))
        self._step = step
        self._steps.append(step.number)
        return True

    def start(self, models: Any) -> None:
        assert self._step is not None
        self._checker.resume_step(self._step.rank, self._folder(self._step))
        log.info(f"The calls of step {self._step.number} are checked.")

    def _folder(self, step: Step) -> str:
        return os.path.join(self._root, step_folder(step.number), step.process)

    def end_step(self) -> None:
        # A backward that has not run is none of the next step's.
        self._step, self._left = None, {}
        self._checker.end_step()

    def discard(self, what: Discarded) -> None:
        if self._step is not None and not what.is_fork:
            self._steps.pop()
        self._step = None

    def status(self) -> Status:
        return Status(self._steps)

    def failed(self, name: str, error: BaseException) -> bool:
        if self._step is None:
            return False
        kind = f"{type(error).__name__}: {error}"
        log.warning(f"{name} could not be checked ({kind}); the training goes on.", once=f"check {kind}")
        return True

    # --- calls

    def _enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if call.api is not None:
            entered = self._checker.enter(f"{call.base}.{call.number}", call.api, args, kwargs)
            if entered is not None:
                self._entered[call] = entered

    def _leave(self, call: ActiveCall, output: Any) -> bool:
        entered = self._entered.pop(call, None)
        left = None if entered is None else self._checker.leave(entered, output)
        if left is None:
            return False
        self._left[call] = left
        return True

    def _backward(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        left = self._left.pop(call, None)
        if left is not None:
            self._checker.backward(left, grad_output)
