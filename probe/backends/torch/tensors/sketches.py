"""Sketches of tensors by torch: on the host where the compiled pass does not make them, and on devices.

`probe.common.numerics.sketch` is the definition. On a device nothing is read: about ten operations are queued for each
tensor, whatever its size, none of which adds in an undefined order, and the sums of all are fetched together. Signs are
made once on the host and kept on each device, a byte for each element of the largest tensor so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from probe.backends.shared import reduction
from probe.backends.torch.originals import functions, own
from probe.backends.torch.tensors.storage import bytes_of
from probe.common.numerics import sketch as definition
from probe.common.numerics.sketch import LANES, LIMIT, MARKS, SHIFTED_ROWS

_PERIOD = SHIFTED_ROWS * LANES
"""Elements after which lanes begin again; signs do not."""
_MOST_SIGNS = _PERIOD << 8
"""Elements that are sketched at once on a device, 67 million."""
_KINDS = {getattr(torch, name): kind for name, kind in reduction.KINDS.items() if hasattr(torch, name)}


def packed(tensor: torch.Tensor) -> bytes:
    """The packed sketch of a dense tensor on the host, of any dtype."""
    if not own.numel(tensor):
        return definition.NOTHING
    plain = own.resolve_neg(own.resolve_conj(own.detach(tensor)))
    if plain.dtype.is_complex:
        plain = functions.view_as_real(plain)
    if plain.dtype is torch.bool:
        plain = own.view(plain, torch.uint8)
    elif plain.dtype not in _KINDS:
        plain = own.to(plain, _wider(plain.dtype))
    if reduction.reduce is not None:
        kind = _KINDS[plain.dtype]
        made = reduction.reduce(own.data_ptr(plain), plain.shape, own.stride(plain), kind, False, True)[4]
        assert made is not None
        return made
    # Lent, and not by torch's own way: after that it would refuse to resize the memory, as FSDP2 does all the time.
    wider = _wider(plain.dtype)
    lent = bytes_of(own.to(plain, wider)).view(np.float32 if wider is torch.float32 else np.float64)
    return definition.sketch(lent).packed()


def _wider(dtype: torch.dtype) -> torch.dtype:
    """A dtype that numpy has and that holds all values of `dtype`; of uint64 and int64 the 53 highest bits."""
    return torch.float32 if dtype.is_floating_point and dtype is not torch.float64 else torch.float64


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """64 sums, the number of excluded elements and eight marks, still being computed; shape ``[73]``, float32.

    Args:
        tensor: A tensor with at least one element.
    """
    plain = own.detach(tensor)
    if plain.dtype.is_complex:
        plain = functions.view_as_real(own.resolve_conj(plain))
    flat = own.to(own.reshape(plain, -1), torch.float32)
    total: Any = None
    for start in range(0, own.numel(flat), _MOST_SIGNS):
        part = own.narrow(flat, 0, start, min(_MOST_SIGNS, own.numel(flat) - start))
        made = _part(part, start // LANES)
        total = made if total is None else functions.add(total, made)
    return total  # type: ignore[no-any-return]


def _part(part: torch.Tensor, first_row: int) -> torch.Tensor:
    kept = functions.lt(functions.abs(part), LIMIT)
    both = functions.stack((functions.where(kept, part, 0.0), functions.where(kept, 0.0, 1.0)))
    size = own.numel(part)
    signed = functions.mul(both, own.narrow(_signs(part.device, first_row, size), 0, 0, size))
    period = min(_PERIOD, -(-size // LANES) * LANES)
    signed = functions.constant_pad_nd(signed, (0, -size % period))
    # Rows with the same shift come together first, then the columns are turned into lanes.
    rows = own.reshape(signed, (2, -1, period))
    summed = own.reshape(own.sum(rows, 1), (2, -1))
    order = own.narrow(_order(part.device), 0, 0, period)
    lanes = own.sum(own.reshape(functions.index_select(summed, 1, order), (2, -1, LANES)), 1)
    marks = own.sum(own.reshape(own.__getitem__(lanes, 1), (-1, MARKS)), 0)
    count = own.sum(own.__getitem__(both, 1))
    made: torch.Tensor = functions.cat((own.__getitem__(lanes, 0), own.reshape(count, 1), marks))
    return made


_kept_signs: dict[tuple[torch.device, int], torch.Tensor] = {}
_kept_orders: dict[torch.device, torch.Tensor] = {}


def _signs(device: torch.device, first_row: int, size: int) -> torch.Tensor:
    """At least `size` signs from `first_row` on, in float32 products of which nothing is rounded."""
    known = _kept_signs.get((device, first_row))
    if known is None or own.numel(known) < size:
        rows = 1 << (-(-size // LANES) - 1).bit_length()
        made = functions.from_numpy(definition.signs(first_row, rows).reshape(-1))
        known = _kept_signs[device, first_row] = own.to(made, device)
    return known


def _order(device: torch.device) -> torch.Tensor:
    """The index of the element that comes to each lane of each row of a period."""
    known = _kept_orders.get(device)
    if known is None:
        rows = np.arange(SHIFTED_ROWS)[:, None]
        order = rows * LANES + (np.arange(LANES) ^ definition.shifts(0, SHIFTED_ROWS)[:, None])
        known = _kept_orders[device] = own.to(functions.from_numpy(order.reshape(-1)), device)
    return known


def fetched(sums: Sequence[torch.Tensor]) -> list[bytes]:
    """The packed sketches of what `on_device` made, with one transfer from each device."""
    found: list[bytes] = [b""] * len(sums)
    groups: dict[torch.device, list[int]] = {}
    for i, each in enumerate(sums):
        groups.setdefault(each.device, []).append(i)
    for members in groups.values():
        rows = own.numpy(own.cpu(functions.stack([sums[i] for i in members])))
        for i, row in zip(members, rows):
            count = int(row[LANES])
            whole = definition.Sketch(row[:LANES], count, row[LANES + 1 :] if count else None)
            found[i] = whole.packed()
    return found
