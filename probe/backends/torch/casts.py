"""Casts to float8 dtypes, which no hook on a module shows: a tensor is cast, often cast back, and then multiplied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable

import torch

from probe.backends.torch.guards import guarded, passed_over
from probe.backends.torch.hooks.function_mode import FunctionMode
from probe.backends.torch.hooks.torch_script import script_guard
from probe.backends.torch.originals import functions, own
from probe.backends.torch.tensors.statistics import EIGHT_BIT_FLOAT
from probe.common.interfaces import Logs

_CASTS = frozenset((own.to, own.type))
_PRODUCTS = frozenset(
    getattr(functions, name)
    for name in ("_scaled_mm", "_scaled_mm_v2", "_scaled_grouped_mm")
    if hasattr(functions, name)
)


class CastWatch:
    """Tells of casts to float8 dtypes, and of products of them, among the calls that pass a function mode.

    Args:
        mode: The mode of the hooks on APIs. Without these the watch puts it in place itself.
        logs: Told of a failure of the tool.
    """

    def __init__(self, mode: FunctionMode, logs: Logs) -> None:
        self._mode = mode
        self._logs = logs
        self._brings_mode = False
        self.note: Callable[[str], None] | None = None
        """Called with the name of each dtype; ``None`` if nothing is watched."""

    def attach(self, note: Callable[[str], None], has_mode: bool) -> None:
        """Tell `note` until `remove`; `has_mode` is true if the mode is in place."""
        self.note, self._brings_mode = note, not has_mode
        if not has_mode:
            self._mode.install()
            script_guard.install(self, self._suspended, self._logs)

    def remove(self) -> None:
        """Tell nothing more, and take the mode away if it was put in place here."""
        self.note = None
        if self._brings_mode:
            script_guard.remove(self)
            self._mode.remove()
            self._brings_mode = False

    @contextmanager
    def _suspended(self, _module: Any) -> Iterator[None]:
        self._mode.remove()
        try:
            yield
        finally:
            self._mode.install()

    @passed_over
    def see(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Look at a call before it runs."""
        if function in _CASTS or function in _PRODUCTS:
            guarded(self._logs, "casts to float8", self._tell, function, args, kwargs)

    def _tell(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # A cast begins with the tensor itself, whose dtype may be any.
        seen = (*(args if function in _PRODUCTS else args[1:]), *kwargs.values())
        for each in seen:
            dtype = each.dtype if isinstance(each, torch.Tensor) else each
            if isinstance(dtype, torch.dtype) and dtype in EIGHT_BIT_FLOAT and self.note is not None:
                self.note(str(dtype).removeprefix("torch."))
