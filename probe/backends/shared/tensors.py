"""The entries of tensors, as far as backends share them.

Statistics in one pass, checksums, counts of NaN, ``.npy`` files.
"""

from __future__ import annotations

import functools
import io
import math
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np
from typing_extensions import TypeAlias

from probe.common.interfaces import Entry, TensorFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

Bytes = np.ndarray[Any, Any]
"""One dimension, uint8."""

NO_BYTES_CRC32 = "00000000"
NO_BYTES_XOR = "0x" + "0" * 16


def crc32_of(data: Any) -> int:
    """CRC-32 (ISO 3309, that of zlib) of anything that has bytes."""
    return _fastest_crc32()(data)


@functools.cache
def _fastest_crc32() -> Callable[[Any], int]:
    """The function, imported at its first call: statistics need none."""
    try:
        # The same CRC-32 at 42 GB/s instead of 3 (100 KB in the cache, AMD EPYC); of the extra "fast".
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32
    found: Callable[[Any], int] = crc32
    return found


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


# --- nonfinite


COUNT, LARGEST, SMALLEST = "Nonfinite", "Finite Max", "Finite Min"


def shows(entry: Entry) -> bool:
    """True if the statistics of floating-point numbers in host memory show that something is not finite.

    There a NaN among the elements makes Max and Min NaN. On a device it need not.
    """
    largest, smallest = entry["Max"], entry["Min"]
    return type(largest) is float and not (-math.inf < smallest and largest < math.inf)


def counted(array: np.ndarray[Any, Any]) -> tuple[int, float, float]:
    """The number of elements that are not finite, and the extremes of the others: infinities if there are none."""
    finite = array[np.isfinite(array)]
    if not finite.size:
        return array.size, -math.inf, math.inf
    return array.size - finite.size, float(finite.max()), float(finite.min())


def add(entry: Entry, count: int, largest: float, smallest: float) -> None:
    """Put the three values behind the statistics of `entry`; the extremes are infinite where nothing is finite."""
    keys = list(entry)
    behind = {key: entry.pop(key) for key in keys[keys.index("Norm") + 1 :]}
    entry[COUNT] = int(count)
    entry[LARGEST] = largest if math.isfinite(largest) else None
    entry[SMALLEST] = smallest if math.isfinite(smallest) else None
    entry.update(behind)


def only_finite(describe: Callable[[Any], Entry | None]) -> Callable[[Any], Entry | None]:
    """`describe` for those tensors only whose elements are finite; for any other one it answers ``None``."""

    def describe_finite(value: Any) -> Entry | None:
        entry = describe(value)
        return None if entry is None or shows(entry) else entry

    return describe_finite


# --- npy file


def npy_file(array: np.ndarray[Any, Any]) -> TensorFile:
    """The file of a C-contiguous array of numbers or texts; it shares the memory of `array`.

    Raises:
        ValueError: an array of Python objects.
    """
    if array.dtype.hasobject:
        raise ValueError("an array of objects can only be saved as a pickle, and reading one runs what it says.")
    data = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    return TensorFile(".npy", _head(array.dtype, array.shape), data, b"", crc32_of(data))


@functools.lru_cache(maxsize=1024)
def _head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


# --- reduction


Reduced: TypeAlias = tuple[float, float, float, float, Optional[bytes]]
reduce: Callable[[int, tuple[int, ...], tuple[int, ...], int, bool, bool], Reduced] | None
"""Greatest, least, mean, norm, and the packed sketch or ``None``; the first two of integers are integers."""
KINDS: dict[str, int]
"""The kinds of elements, by the names that numpy and torch have for them."""

try:
    from probe.backends.shared import _reduction
except ImportError:
    reduce, KINDS = None, {}
else:
    reduce, KINDS = _reduction.reduce, _reduction.KINDS


# --- rounding


def rounded_to_odd(values: NDArray[Any]) -> NDArray[Any]:
    """`values`, float64, in a float32 that rounds to a shorter type as they do themselves.

    What is between two float32 becomes the one whose last bit is set: no tie of the second rounding, and on the right
    side of each (S. Boldo and G. Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Transactions on Computers 57, 2008).
    """
    with np.errstate(all="ignore"):
        single = values.astype(np.float32)
        bits = single.view(np.int32)
        between = (single != values) & (bits & 1 == 0) & ~np.isnan(values)
        bits[between] += np.where(np.abs(single) < np.abs(values), 1, -1).astype(np.int32)[between]
    return single
