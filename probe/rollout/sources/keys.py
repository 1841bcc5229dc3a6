"""The key of a source."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.errors import MsprobeException


def one_of(key: str, known: Sequence[str], where: str) -> str:
    """The key itself, or the only one there is.

    Raises:
        MsprobeException: the source lacks it, or has several and none is given.
    """
    if key in known:
        return key
    if not key and len(known) == 1:
        return known[0]
    has = ", ".join(known) or "none"
    if key:
        raise MsprobeException(f'{where} has no key "{key}"; it has: {has}.')
    raise MsprobeException(f"{where} has several keys; write {where}:KEY with one of: {has}.")
