"""The choices of a call whose indices are on a device: queued with the statistics, and fetched with them."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import numpy as np
import torch

from probe.backends.protocol import Source
from probe.backends.shared.choices import has_margins
from probe.backends.torch.originals import functions, own
from probe.common.dump.choices import CHOICES, Choices, number_kept
from probe.common.interfaces import Entry


class Kept(NamedTuple):
    """Choices that are still being computed."""

    indices: torch.Tensor
    """int32, shape ``[kept, k]``."""
    made: int
    margins: Optional[torch.Tensor]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """float32, shape ``[kept]``."""


def kept_of(indices: torch.Tensor, source: Source | None) -> Kept:
    """The choices that a tensor of whole numbers is."""
    indices = own.detach(indices)
    takes_several = source is None or source.takes_several
    if takes_several and own.dim(indices):
        indices = own.movedim(indices, -1 if source is None or source.dim is None else source.dim, -1)
        k = indices.shape[-1]
    else:
        k = 1
    made = own.numel(indices) // k if k else 0
    kept = number_kept(k, made)
    # A copy: the program may write to what it has got.
    rows = own.to(own.narrow(own.reshape(indices, (made, k)), 0, 0, kept), torch.int32, copy=True)
    looks = source is not None and kept and has_margins(source, k, kept)
    return Kept(rows, made, _margins(source, k, kept) if source is not None and looks else None)


def _margins(source: Source, k: int, kept: int) -> torch.Tensor:
    values = own.detach(source.values)
    if source.dim is None and not source.takes_several:
        values = own.reshape(values, (1, -1))
    else:
        values = own.movedim(values, -1 if source.dim is None else source.dim, -1)
    among = own.to(own.narrow(own.reshape(values, (-1, values.shape[-1])), 0, 0, kept), torch.float32)
    best = functions.topk(among, k + 1, -1, source.largest)[0]
    difference = functions.sub(own.select(best, -1, k - 1), own.select(best, -1, k))
    return functions.abs(difference)  # type: ignore[no-any-return]


def fill(waiting: list[tuple[Entry, Kept]]) -> None:
    """Put the choices of several calls into their entries, with at most two transfers from each device."""
    devices: dict[Any, list[tuple[Entry, Kept]]] = {}
    for entry, kept in waiting:
        devices.setdefault(kept.indices.device, []).append((entry, kept))
    for members in devices.values():
        flat = own.numpy(own.cpu(functions.cat([own.reshape(kept.indices, (-1,)) for _, kept in members])))
        with_margins = [kept.margins for _, kept in members if kept.margins is not None]
        margins = own.numpy(own.cpu(functions.cat(with_margins))) if with_margins else np.zeros(0, np.float32)
        at = at_margin = 0
        for entry, kept in members:
            rows, k = kept.indices.shape
            mine = flat[at : at + rows * k].reshape(rows, k)
            its = None if kept.margins is None else margins[at_margin : at_margin + rows]
            entry[CHOICES] = Choices(mine, kept.made, its).packed()
            at, at_margin = at + rows * k, at_margin + (0 if its is None else rows)
