"""The hooks of a session: which are attached between ``start`` and ``stop``, and how they are removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

from probe.backends.protocol import FrameworkAdapter
from probe.collect.collector import Collector
from probe.common import log
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException
from probe.common.interfaces import Handle, ModuleName
from probe.common.recursion_limit import RaisedRecursionLimit


class AttachedHooks:
    """Attaches what reports to a collector.

    Args:
        adapter: The framework.
        collector: Gets the calls.
    """

    def __init__(self, adapter: FrameworkAdapter, collector: Collector) -> None:
        self._adapter = adapter
        self._collector = collector
        self._until_stop: list[Handle] = []
        self._modules: Handle | None = None
        """The one of `_until_stop` that belongs to the modules of the models."""
        self._dumped: list[Handle] = []
        """Hooks of modules that are recorded until `module_dump_end`."""
        self._gradients: list[Handle] = []
        """Hooks of gradients, which may arrive until the step ends."""
        self._custom: dict[tuple[int, str], Handle] = {}
        """By owner and attribute, those of functions that the user has registered."""
        self._modules_logged = False

    @property
    def are_attached(self) -> bool:
        """True if there are hooks that `stop` removes, or has failed to remove."""
        return bool(self._until_stop)

    # --- between start and stop

    def attach(
        self,
        models: Any,
        token_range: Sequence[int] | None,
        level: str,
        note_cast: Callable[[str], None] | None = None,
    ) -> None:
        """Attach what a level needs.

        Args:
            models: The models.
            token_range: The first and the last pass that are collected. ``None`` for all: then the caller begins.
            level: The level.
            note_cast: Called with each float8 dtype that a tensor is cast to, at a level that records modules.
        """
        hooks, collector, handles = self._adapter.hooks, self._collector, self._until_stop
        handles.append(RaisedRecursionLimit())
        collector.hold(models)
        if token_range is not None:
            # Before the hooks on modules: a pass has begun when the model that is one layer is recorded.
            handles.append(self._attach_passes(models, token_range[0], token_range[1]))
        if level in ("L0", "mix"):
            if not self._modules_logged:
                self._modules_logged = True
                log.info("Hooks for modules are in place between start and stop only.")
            self._attach_modules(models)
        if level == "mix":
            handles.append(hooks.attach_optimizer_hooks(collector))
        if level in ("L1", "mix"):
            handles.append(hooks.attach_apis(models, collector, collector.takes_everything))
        casts = hooks.attach_casts(collector, note_cast) if note_cast and level in ("L0", "mix") else None
        if casts is not None:
            handles.append(casts)

    def add(self, handles: list[Handle]) -> None:
        """Remove further hooks at `stop`."""
        self._until_stop += handles

    def extend(self, models: Any) -> None:
        """Attach hooks to the modules of further models; `models` are those from before and these."""
        if self._modules is not None:
            self._modules.remove()
            self._until_stop.remove(self._modules)
            self._attach_modules(models)
            self._collector.hold(models)

    def _attach_modules(self, models: Any) -> None:
        handles = self._adapter.hooks.attach_modules(models, self._collector)
        self._modules = handles.forward
        self._until_stop.append(handles.forward)
        self._gradients.append(handles.gradients)

    def _attach_passes(self, models: Any, first: int, last: int) -> Handle:
        passed = 0

        def begin() -> None:
            # Calls after a wanted pass, such as sampling, belong to it.
            if passed == first:
                self._collector.collecting = True
            elif passed > last:
                self._collector.collecting = False

        def end() -> None:
            nonlocal passed
            passed += 1

        return self._adapter.hooks.attach_passes(models, begin, end)

    def detach(self) -> None:
        """Take no further calls; gradients of those before are still taken."""
        attempt = self._collector.attempt
        # While the collector still knows which backwards are inside of which.
        attempt(self._adapter.hooks.finish_backward)
        self._modules = None
        self._collector.collecting = False
        attempt(self.module_dump_end)
        attempt(self._collector.leave_all)
        attempt(self._remove, self._until_stop)

    # --- until the step ends

    def add_gradients(self, handles: list[Handle]) -> None:
        """Keep hooks on gradients until the step ends."""
        self._gradients += handles

    def remove_gradients(self) -> None:
        """Take no further gradients: the step is over."""
        self._remove(self._gradients)

    # --- single modules and functions

    def module_dump(self, module: Any, name: ModuleName) -> None:
        """Record one module under `name`, and no functions."""
        handles = self._adapter.hooks.attach_module(module, name, self._collector)
        self._dumped.append(handles.forward)
        self._gradients.append(handles.gradients)
        self._collector.apis_hidden = True

    def module_dump_end(self) -> None:
        """Record functions again, and the module no longer."""
        self._collector.apis_hidden = False
        self._collector.attempt(self._remove, self._dumped)

    def register(self, owner: Any, api: Any, prefix: Any) -> None:
        """Record calls of ``owner.api`` as ``prefix.api``, or under the name of `owner`.

        Raises:
            MsprobeException: an argument is wrong, or the function cannot be replaced.
        """
        if not isinstance(api, str) or not callable(getattr(owner, api, None)):
            raise MsprobeException(f"register_custom_api: {_title(owner)} has no callable {api!r}.")
        if prefix is not None and (not isinstance(prefix, str) or not prefix):
            raise MsprobeException(f"register_custom_api: api_prefix is {prefix!r}; allowed: a text or None.")
        if (id(owner), api) in self._custom:
            log.warning(f"{_title(owner)}.{api} is registered already.")
            return
        prefix = prefix or getattr(owner, "__name__", "Custom")
        try:
            handle = self._adapter.hooks.attach_custom_api(owner, api, prefix, self._collector)
        except (AttributeError, TypeError) as error:
            text = f"register_custom_api: {_title(owner)}.{api} cannot be replaced ({error})."
            raise MsprobeException(text) from error
        self._custom[id(owner), api] = handle

    def restore(self, owner: Any, api: Any) -> None:
        """Undo `register`.

        Raises:
            MsprobeException: it was not registered.
        """
        if (id(owner), api) not in self._custom:
            raise MsprobeException(f"restore_custom_api: {_title(owner)}.{api} was not registered.")
        self._restore((id(owner), api))

    def remove_all(self) -> None:
        """Put everything back."""
        attempt = self._collector.attempt
        attempt(self._remove, self._gradients)
        for key in reversed(list(self._custom)):
            attempt(self._restore, key)

    def _restore(self, key: tuple[int, str]) -> None:
        # Forgotten only afterwards: what could not be put back can be tried again.
        self._custom[key].remove()
        del self._custom[key]

    def _remove(self, handles: list[Handle]) -> None:
        """Remove the last one first; what fails stays in the list, and is tried again when a step ends or begins."""
        for at in range(len(handles) - 1, -1, -1):
            remove = handles[at].remove
            try:
                remove()
            except Exception as error:
                self._collector.failed(remove.__qualname__, error)
            else:
                del handles[at]


def _title(owner: Any) -> str:
    """The name of a module or class in messages, or the class of an object."""
    return str(getattr(owner, "__name__", type(owner).__name__))


# --- start arguments


def check_start(adapter: FrameworkAdapter, level: str, model: Any, token_range: Any, rank_id: Any) -> None:
    """Refuse what a user may have got wrong.

    Raises:
        MsprobeException: in one sentence, with what is allowed.
    """
    if rank_id is not None and (type(rank_id) is not int or rank_id < 0):
        raise MsprobeException(f"start: rank_id is {rank_id!r}; allowed: an integer from 0.")
    needs_model = level in ("L0", "mix")
    if needs_model or token_range is not None:
        _check_model(adapter, model, f'level "{level}"' if needs_model else "token_range")
    if token_range is not None:
        fine = isinstance(token_range, (list, tuple)) and len(token_range) == 2
        fine = fine and all(type(bound) is int and bound >= 0 for bound in token_range)
        if not fine or token_range[0] > token_range[1]:
            raise MsprobeException(f"start: token_range is {token_range!r}; allowed: [first, last], first <= last.")


def _check_model(adapter: FrameworkAdapter, model: Any, needed_by: str) -> None:
    models = model if isinstance(model, (list, tuple)) else [model]
    models = list(model.values()) if isinstance(model, dict) else models
    if models and all(map(adapter.hooks.is_module, models)):
        return
    several = "a list or tuple that is empty or holds something else"
    given = several if isinstance(model, (list, tuple)) else f"of type {type(model).__name__}"
    given = "missing" if model is None else given
    raise MsprobeException(f"start: model is {given}; {needed_by} needs a module, or a list or tuple of modules.")


def unwanted_rank_text(rank: int | None, wanted: Sequence[int]) -> str:
    """The reason why nothing is collected from a process whose rank is not among those `wanted`."""
    ranks = numbers_text(wanted)
    if rank is not None:
        return f'rank {rank} is not in "rank", which is {ranks}: nothing is collected here.'
    return (
        f'this process has no rank, and "rank" is {ranks}: nothing is collected here. Leave "rank" out, or give it one '
        f"with start(rank_id={wanted[0]})."
    )
