"""The state of torch's random numbers before a call, and its return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

import torch

from probe.backends.torch.guards import unobserved
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has


@cache
def _draws(base: str) -> bool:
    return has(base, Trait.DRAWS, Trait.DROPS, Trait.DRAWS_INSIDE)


def random_state(base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The state from which the call `base` is about to draw, bytes on the host; ``None`` of a call that draws nothing.

    It is that of the default generator of the device of the first tensor, or of the argument ``device``. Reading it
    changes nothing.
    """
    if not _draws(base) or kwargs.get("generator") is not None:
        return None
    found: torch.Tensor | None = unobserved(_state, args, kwargs)
    return found


def _devices(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.device]:
    if kwargs.get("device") is not None:
        yield torch.device(kwargs["device"])
    yield from (value.device for value in chain(args, kwargs.values()) if isinstance(value, torch.Tensor))


def _state(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    device = next(_devices(args, kwargs), torch.device("cpu"))
    if device.type == "cpu":
        return torch.default_generator.get_state()
    module = getattr(torch, device.type, None)
    # While a graph of calls is captured there is no state that could be read.
    if module is None or not hasattr(module, "get_rng_state") or _is_capturing(module):
        return None
    found: torch.Tensor = module.get_rng_state(device)
    return found


def _is_capturing(module: Any) -> bool:
    asked = getattr(module, "is_current_stream_capturing", None)
    return asked is not None and bool(asked())
