"""The collector of task ``free_benchmark``: it counts and chooses calls as ever, and has them checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from probe.backends.protocol import FrameworkAdapter
from probe.collect.active_calls import ActiveCall
from probe.collect.collector import Collector
from probe.common import log
from probe.common.config.config import Config
from probe.common.interfaces import CallChecker


class CheckedStep:
    """Stands where the folder of a step stands else: nothing is recorded."""

    def has_records(self) -> bool:
        return True

    def log_error(self, name: str, error: BaseException, report: bool = True) -> None:
        kind = f"{type(error).__name__}: {error}"
        log.warning(f"{name} could not be checked ({kind}); the training goes on.", once=f"check {kind}")

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class CheckingCollector(Collector):
    """Hands the wanted calls to a checker.

    Args:
        config: The validated configuration.
        adapter: The framework.
        ended: As for `Collector`; nothing ends it here.
        checker: Checks the calls.
    """

    def __init__(
        self, config: Config, adapter: FrameworkAdapter, ended: Callable[[], None], checker: CallChecker
    ) -> None:
        self._checker = checker
        self._entered: dict[ActiveCall, Any] = {}
        self._left: dict[ActiveCall, Any] = {}
        super().__init__(config, adapter, ended)

    def begin_checks(self, step: int, rank: int | None, folder: str) -> None:
        """Check calls of step number `step` from now on, with all counters at zero."""
        self._reset()
        self._entered, self._left = {}, {}
        self._checker.begin_step(step, rank, folder)
        self.folder = CheckedStep()

    def end_step(self) -> None:
        was_open = self.folder is not None
        super().end_step()
        if was_open:
            # A backward that has not run is none of the next step's.
            self._entered, self._left = {}, {}
            self._checker.end_step()

    def _enter(self, call: ActiveCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        assert call.api is not None
        entered = self._checker.enter(f"{call.base}.{call.number}", call.api, args, kwargs)
        if entered is not None:
            self._entered[call] = entered

    def _leave_api(self, call: ActiveCall, output: Any) -> bool:
        if not self._selection.everything:
            self._selection.end(call.name)
        entered = self._entered.pop(call, None)
        left = None if entered is None else self._checker.leave(entered, output)
        if left is None:
            return False
        self._left[call] = left
        return True

    def _fail(self, call: ActiveCall) -> None:
        self._entered.pop(call, None)
        super()._fail(call)

    def cancel_api(self, call: ActiveCall) -> None:
        self._entered.pop(call, None)
        super().cancel_api(call)

    def suspend_api(self, call: ActiveCall) -> None:
        self._entered.pop(call, None)
        super().suspend_api(call)

    def backward_api(self, call: ActiveCall, grad_output: Sequence[Any], grad_input: Sequence[Any]) -> None:
        left = self._left.pop(call, None)
        if left is None:
            return
        try:
            self._checker.backward(left, grad_output)
        except Exception as error:
            self.failed(call, error)
