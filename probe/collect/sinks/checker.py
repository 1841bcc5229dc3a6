"""Calls are checked while they run, and none is recorded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from probe.collect.active_calls import ActiveCall
from probe.collect.sinks.sink import Needs, Sink, Step
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
        self._entered: dict[ActiveCall, Any] = {}
        """The checker's notes on calls that run, and (next) on those whose backward it waits for."""
        self._left: dict[ActiveCall, Any] = {}
        self._is_open = False
        self.steps: list[int] = []

    def needs(self) -> Needs:
        return Needs(calls=True, gradients=True)

    # --- the life of a step

    def begin_step(self, step: Step) -> bool:
        self._entered, self._left = {}, {}
        self._checker.begin_step(step.number, step.rank, self._folder(step))
        self._is_open = True
        self.steps.append(step.number)
        return True

    def resume_step(self, step: Step) -> None:
        self._checker.resume_step(step.rank, self._folder(step))

    def _folder(self, step: Step) -> str:
        return os.path.join(self._root, step_folder(step.number), step.process)

    def log_start(self) -> None:
        log.info(f"The calls of step {self.steps[-1]} are checked.")

    def log_stop(self) -> None:
        log.info("Collection stopped.")

    def end_step(self) -> None:
        self._is_open = False
        # A backward that has not run is none of the next step's.
        self._entered, self._left = {}, {}
        self._checker.end_step()

    def discard(self) -> None:
        self._is_open = False
        self.steps.pop()

    def forked(self, for_good: bool) -> None:
        self._is_open = False

    def failed(self, name: str, error: BaseException) -> bool:
        if not self._is_open:
            return False
        kind = f"{type(error).__name__}: {error}"
        log.warning(f"{name} could not be checked ({kind}); the training goes on.", once=f"check {kind}")
        return True

    # --- calls

    def enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if call.api is not None:
            entered = self._checker.enter(f"{call.base}.{call.number}", call.api, args, kwargs)
            if entered is not None:
                self._entered[call] = entered

    def leave(self, call: ActiveCall, output: Any) -> bool:
        entered = self._entered.pop(call, None)
        left = None if entered is None else self._checker.leave(entered, output)
        if left is None:
            return False
        self._left[call] = left
        return True

    def withdraw(self, call: ActiveCall) -> None:
        self._entered.pop(call, None)

    def backward(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        left = self._left.pop(call, None)
        if left is not None:
            self._checker.backward(left, grad_output)
