"""The arguments of ``start``, their checks, and what is said of a rank that is not wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probe.backends.protocol import FrameworkAdapter
from probe.common.config.fields import numbers_text
from probe.common.errors import MsprobeException


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
