"""Checksums: those of the dump, and those of plain values, which are made here."""

from __future__ import annotations

import zlib

from probe.common.dump.reading.records import Item


def checksum(item: Item | None) -> str:
    """The checksum of an item, eight or more hexadecimal digits; ``N/A`` where there is none."""
    if item is None:
        return "N/A"
    if item.md5 is not None:
        return item.md5
    if item.value is None:
        return "N/A"
    if isinstance(item.value, str) and item.dtype is not None and not item.dtype.startswith("<"):
        # Ranks and groups are shown as they are.
        return item.value
    return f"{zlib.crc32(str(item.value).encode('utf-8', 'surrogatepass')):08x}"
