"""Checksums of a tensor's bytes in row-major order, as they stand in ``md5`` of a record."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

try:
    # The same CRC-32 at 42 GB/s instead of 3 (100 KB in the cache, AMD EPYC); of the extra "fast".
    from isal.isal_zlib import crc32 as _crc32
except ImportError:
    from zlib import crc32 as _crc32

crc32_of: Callable[[Any], int] = _crc32
"""CRC-32 (ISO 3309, that of zlib) of anything that has bytes."""

Bytes = np.ndarray[Any, Any]
"""One dimension, uint8."""

NO_BYTES_CRC32 = "00000000"
NO_BYTES_XOR = "0x" + "0" * 16


def crc32(data: Bytes) -> str:
    """CRC-32 as eight hexadecimal digits."""
    return f"{crc32_of(data.data):08x}" if data.size else NO_BYTES_CRC32


def xor(data: Bytes) -> str:
    """Exclusive or of all 8-byte little-endian words, the last one padded with zeros, as ``0x`` and 16 digits."""
    if not data.size:
        return NO_BYTES_XOR
    whole = data.size // 8 * 8
    words = data[:whole].view("<u8") if whole else np.zeros(0, dtype="<u8")
    value = int(np.bitwise_xor.reduce(words)) if words.size else 0
    value ^= int.from_bytes(data[whole:].tobytes(), "little")
    return f"0x{value:016x}"
