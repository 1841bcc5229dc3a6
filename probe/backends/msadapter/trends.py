"""Values of a running training with torch's API over MindSpore, for a monitor: the group `Trends`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

from probe.backends.mindspore.guards import guarded
from probe.backends.mindspore.trends import MindSporeTrends
from probe.backends.msadapter.hooks import MODULES
from probe.backends.shared.patching import Handles
from probe.common.interfaces import Handle, Logs


class MSAdapterTrends(MindSporeTrends):
    """Implements `probe.backends.protocol.Trends` for MSAdapter: torch's modules and optimizers."""

    def __init__(self) -> None:
        super().__init__(MODULES)

    def parameters(self, model: Any, frozen: bool = False) -> Iterable[tuple[str, Any]]:
        return [(name, each) for name, each in model.named_parameters() if frozen or each.requires_grad]

    def weights(self, model: Any) -> Iterable[tuple[str, Any]]:
        return model.state_dict(keep_vars=True).items()  # type: ignore[no-any-return]

    def is_optimizer(self, value: Any) -> bool:
        return False  # those of torch know no names

    def gradient(self, parameter: Any, main: bool) -> Any:
        found = getattr(parameter, "main_grad", None) if main else None
        return parameter.grad if found is None else found

    def attach_optimizer(
        self, optimizer: Any, before: Callable[[], None], after: Callable[[], None], logs: Logs
    ) -> Handle:
        def enter(*_: Any) -> None:
            guarded(logs, "the step of the optimizer", self._begin, before)

        def leave(*_: Any) -> None:
            guarded(logs, "the step of the optimizer", after)

        return Handles([optimizer.register_step_pre_hook(enter), optimizer.register_step_post_hook(leave)])

    def _begin(self, before: Callable[[], None]) -> None:
        self._tell_ready()
        before()

    def optimizer_state(self, optimizer: Any, parameter: Any) -> Mapping[str, Any]:
        found = optimizer.state.get(parameter) if parameter in optimizer.state else None
        if not isinstance(found, Mapping):
            return {}
        return {name: value for name, value in found.items() if hasattr(value, "shape") and len(value.shape)}
