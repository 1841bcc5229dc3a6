"""Parts of both monitors: an adapter, a recorder of steps, and the receivers of steps."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from probe.backends import loader
from probe.backends.protocol import FrameworkAdapter
from probe.common import log
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException, failure_text
from probe.common.files import make_folder
from probe.common.log import ErrorLog
from probe.common.report.trends import TrendStep


class Receivers:
    """Hands each step to all that take steps; a failure of one is logged and reaches neither the others nor the
    training.

    Args:
        folder: The folder whose log gets failures; they are shown only as long as there is none.
    """

    def __init__(self, folder: str = "") -> None:
        self.set_folder(folder)
        self._receivers: list[Callable[[TrendStep], None]] = []

    def set_folder(self, folder: str) -> None:
        """Write failures to the log of `folder`, too. The steps are those of this process from now on."""
        self._folder, self._errors = folder, ErrorLog(folder)
        self._process = os.getpid()

    def add(self, receive: Callable[[TrendStep], None]) -> None:
        """Hand further steps to `receive`."""
        self._receivers.append(receive)

    def receive(self, step: TrendStep) -> None:
        """One step. Those of a process that was forked would be written among those of the one that it came from."""
        if os.getpid() != self._process:
            text = "monitor: this process was forked from the one that is monitored; its steps are not written."
            log.warning(text, once=f"monitor fork {os.getpid()}")
            return
        for each in self._receivers:
            self.attempt(getattr(each, "__qualname__", "the monitor"), each, step)

    def attempt(self, about: str, function: Callable[..., Any], *args: Any) -> None:
        """Call `function(*args)`; a failure is logged and does not reach the training."""
        try:
            function(*args)
        except Exception as error:
            self.failed(about, error)

    def failed(self, about: Any, error: BaseException) -> None:
        """Log a failure of the tool, once for each place."""
        name = about if isinstance(about, str) else str(getattr(about, "base", "the monitor"))
        slug = f"monitor {type(error).__name__} {name}"
        log.warning(f"monitor: {name}: {failure_text(error)}; the training goes on.", once=slug)
        if self._folder:
            with contextlib.suppress(MsprobeException):  # it was logged
                make_folder(self._folder)
                self._errors.add(name, error)


def adapter_for(backend: str) -> FrameworkAdapter:
    """An adapter for one monitor alone: it has one listener, and the debugger of the process has its own."""
    shared = loader.serve(backend)
    return type(shared)()


class AtExit:
    """Calls a function at the end of the process, unless it was called before; not in a process that was forked."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self._process = os.getpid()
        atexit.register(self._run)

    def _run(self) -> None:
        if os.getpid() == self._process:
            self._close()

    def cancel(self) -> None:
        """It was closed."""
        atexit.unregister(self._run)

    @property
    def is_of_this_process(self) -> bool:
        """False in a process that was forked."""
        return os.getpid() == self._process


def as_models(model: Any) -> list[Any]:
    """The chunks of a model, which is one or several."""
    return list(model) if isinstance(model, (list, tuple)) else [model]


def check_models(models: Sequence[Any], adapter: FrameworkAdapter, call: str) -> None:
    """Refuse what is no model.

    Raises:
        MsprobeException: something of `models` is no module.
    """
    for each in models:
        if not adapter.hooks.is_module(each):
            raise MsprobeException(f"{call}: model is a {type(each).__name__}; allowed: a module or a list of modules.")
    if not models:
        raise MsprobeException(f"{call}: model is an empty list; allowed: a module or a list of modules.")


def is_left_out(rank: int | None, wanted: Sequence[int], key: str) -> bool:
    """True, and said, if `key` of a configuration names ranks, and `rank` is not one of them.

    Args:
        rank: ``None`` in a training of a single process, which counts as rank 0.
        wanted: The ranks that are monitored; empty for all.
    """
    if not wanted or (rank or 0) in wanted:
        return False
    text = f"rank {rank or 0} is not monitored; {key} has {numbers_text(wanted)}."
    if rank is None:
        log.warning(f"{text} This training has a single process, so nothing is written.")
    else:
        log.info(text)
    return True
