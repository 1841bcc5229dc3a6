"""The data of a page: JSON, compressed, as text that stands in HTML."""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode
# No name, no time, no system: the same data is the same bytes wherever it is packed.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
_LEVEL = 6
"""zlib's own default, between speed and size."""


def packed(data: Any) -> bytes:
    """Values as base64 of gzip of JSON.

    Example:
        >>> packed([1])[:12]
        b'H4sIAAAAAAAA'
    """
    return packed_text(as_json(data))


def packed_text(text: bytes, level: int = _LEVEL) -> bytes:
    """Bytes as base64 of gzip, which are the same wherever that is done."""
    deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(text) + deflate.flush()
    end = struct.pack("<LL", zlib.crc32(text), len(text) & 0xFFFFFFFF)
    return binascii.b2a_base64(_GZIP_HEADER + body + end, newline=False)


def as_json(value: Any) -> bytes:
    """Values as JSON; half a character, which a name may hold that came from broken bytes, is shown as unknown."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(without_surrogates(value))


def without_surrogates(value: Any) -> Any:
    """A value with texts that can be written."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}
    return [without_surrogates(each) for each in value] if isinstance(value, (list, tuple)) else value
