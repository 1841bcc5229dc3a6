"""Tensors of a checkpoint, of which a few rows are read at a time.

The elements are the bits of the file, in the types of `probe.common.numerics.rounding.word_type`. A tensor without
dimensions has one row of one element.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeAlias

from probe.common import files
from probe.common.errors import DumpFormatError, FileCheckException
from probe.common.numerics.rounding import word_type

_MOST_OPEN = 128
"""Files that are open at once; a process may have 1024 by default on Linux."""


class _Open:
    """Files that were opened, the longest unused of which is closed first."""

    def __init__(self) -> None:
        self._streams: OrderedDict[str, BinaryIO] = OrderedDict()
        self._lock = threading.Lock()

    def descriptor(self, path: str) -> int:
        # Several threads read; so many others are opened before one is closed that a thread has just asked for.
        with self._lock:
            stream = self._streams.get(path)
            if stream is None:
                while len(self._streams) >= _MOST_OPEN:
                    self._streams.popitem(last=False)[1].close()
                stream = self._streams[path] = files.open_for_reading(path, 0)
            self._streams.move_to_end(path)
            return stream.fileno()

    def close(self) -> None:
        while self._streams:
            self._streams.popitem()[1].close()


_open = _Open()


def close_all() -> None:
    """Close what was opened."""
    _open.close()


class File:
    """A file of a known size.

    Raises:
        FileCheckException: it cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.size = os.fstat(_open.descriptor(path)).st_size
        except OSError as error:
            raise FileCheckException(f"{path}: cannot be read: {error.strerror or error}.") from None

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from `offset` on.

        Raises:
            DumpFormatError: the file ends before them.
        """
        buffer = np.empty(size, np.uint8)
        self.read_into(offset, buffer.data)
        return buffer.tobytes()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes from `offset` on.

        Raises:
            DumpFormatError: the file ends before them.
            FileCheckException: it cannot be read.
        """
        done = 0
        try:
            descriptor = _open.descriptor(self.path)
            while done < len(buffer):
                count = os.preadv(descriptor, [buffer[done:]], offset + done)
                if count == 0:
                    raise DumpFormatError(
                        f"{self.path}: it ends at byte {offset + done}, and {len(buffer) - done} more are needed; "
                        "copy the file again."
                    )
                done += count
        except OSError as error:
            raise FileCheckException(f"{self.path}: cannot be read: {error.strerror or error}.") from None


# --- tensors


Array = NDArray[Any]
Shape: TypeAlias = "tuple[int, ...]"


class Tensor(ABC):
    """Elements of one dtype, somewhere."""

    def __init__(self, dtype: str, shape: Shape) -> None:
        self.dtype = dtype
        self.shape = shape
        self.origin = ""
        """Origin of the tensor, in words that follow "how"; empty if it lies in a file as it is."""
        self.entry: Any = None
        """The fingerprint of the tensor, once it was made; see `probe.checkpoint.fingerprints`."""

    @cached_property
    def words(self) -> np.dtype[Any]:
        """The type of numpy for the bits of an element."""
        found = word_type(self.dtype)
        assert found is not None, self.dtype
        return found

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.words.itemsize

    @property
    def row_count(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def row_shape(self) -> Shape:
        return self.shape[1:]

    @abstractmethod
    def rows(self, start: int, stop: int) -> Array:
        """The bits of these rows; the first dimension of the result counts them."""

    def read(self) -> Array:
        """The bits of all elements."""
        return self.rows(0, self.row_count).reshape(self.shape)

    def element(self, index: int, origin: str = "") -> Tensor:
        """One tensor of a stack, read alone where it lies alone."""
        return Element(self, index, origin)

    def release(self) -> None:  # noqa: B027 (most hold nothing)
        """Forget what was read."""

    @property
    def key(self) -> object:
        """Key that two tensors share if they are the same bytes of a file; ``None`` if that is not known."""
        return None


class Stored(Tensor):
    """Elements in a file, one after the other or with strides.

    Args:
        file: the file.
        offset: the byte at which the first element begins.
        strides: in elements; ``None`` if rows follow each other.
        big: True if the most significant byte of an element is the first.
    """

    def __init__(
        self, file: File, offset: int, dtype: str, shape: Shape, strides: Shape | None = None, big: bool = False
    ) -> None:
        super().__init__(dtype, shape)
        self.file, self.offset, self.big = file, offset, big
        self.strides = None if strides is None or strides == _contiguous(shape) else strides
        if offset < 0 or offset + self._span * self.words.itemsize > file.size:
            raise DumpFormatError(
                f"{file.path}: a tensor of shape {list(shape)} and dtype {dtype} needs "
                f"{self._span * self.words.itemsize} bytes at byte {offset}, and the file has {file.size}; it is "
                "cut off, or its header is wrong: copy the file again."
            )

    @property
    def _span(self) -> int:
        """The elements between the first and the last, both included."""
        if not self.size:
            return 0
        if self.strides is None:
            return self.size
        return 1 + sum((length - 1) * stride for length, stride in zip(self.shape, self.strides))

    @property
    def key(self) -> object:
        return (self.file.path, self.offset, self.dtype, self.shape, self.strides)

    def element(self, index: int, origin: str = "") -> Tensor:
        if self.strides is not None:
            return Element(self, index, origin)
        size = math.prod(self.row_shape) * self.words.itemsize
        found = Stored(self.file, self.offset + index * size, self.dtype, self.row_shape, big=self.big)
        found.origin = origin
        return found

    def rows(self, start: int, stop: int) -> Array:
        if self.strides is not None:
            return self._strided(start, stop)
        width = math.prod(self.row_shape)
        return self._elements(start * width, (stop - start) * width).reshape(stop - start, *self.row_shape)

    def _strided(self, start: int, stop: int) -> Array:
        assert self.strides is not None
        step = self.strides[0] if self.strides else 1
        shape = (stop - start, *self.row_shape)
        if 0 in shape:
            return np.empty(shape, self.words)
        strides = (step, *self.strides[1:])
        span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides))
        line = self._elements(start * step, span)
        size = self.words.itemsize
        return np.lib.stride_tricks.as_strided(line, shape, [stride * size for stride in strides], writeable=False)

    def _elements(self, first: int, count: int) -> Array:
        found = np.empty(count, self.words)
        if count:
            self.file.read_into(self.offset + first * self.words.itemsize, found.view(np.uint8).data)
        return found.byteswap() if self.big else found


class InMemory(Tensor):
    """A tensor that is small, or cannot be read in parts."""

    def __init__(self, values: Array, dtype: str = "") -> None:
        super().__init__(dtype or str(values.dtype), values.shape)
        self._values = values

    def rows(self, start: int, stop: int) -> Array:
        return self._values.reshape(self.row_count, *self.row_shape)[start:stop]


class Regions(Tensor):
    """A tensor whose parts lie in several places: shards of ranks, chunks of a distributed checkpoint.

    Args:
        parts: for each part the index of its first element, and the part; together they cover everything once.
    """

    def __init__(self, parts: Sequence[tuple[Shape, Tensor]], shape: Shape, origin: str = "") -> None:
        super().__init__(parts[0][1].dtype, shape)
        self.parts = list(parts)
        self.origin = origin

    def rows(self, start: int, stop: int) -> Array:
        if not self.shape:
            return self.parts[0][1].rows(0, 1)
        found = np.empty((stop - start, *self.row_shape), self.words)
        for at, part in self.parts:
            first, last = max(start, at[0]), min(stop, at[0] + part.shape[0])
            if first < last:
                inside = tuple(slice(begin, begin + length) for begin, length in zip(at[1:], part.shape[1:]))
                found[(slice(first - start, last - start), *inside)] = part.rows(first - at[0], last - at[0])
        return found

    def release(self) -> None:
        for _, part in self.parts:
            part.release()


def joined(parts: Sequence[Tensor], axis: int, origin: str = "") -> Tensor:
    """Parts one after the other along an axis."""
    if len(parts) == 1:
        return parts[0]
    places, begin = [], 0
    for part in parts:
        places.append((tuple(begin if each == axis else 0 for each in range(len(part.shape))), part))
        begin += part.shape[axis]
    shape = tuple(begin if each == axis else length for each, length in enumerate(parts[0].shape))
    return Regions(places, shape, origin)


class Segments(Tensor):
    """Elements that lie one after the other in several vectors, as flattened parameters do.

    Args:
        parts: vectors.
    """

    def __init__(self, parts: Sequence[Tensor], shape: Shape, origin: str = "") -> None:
        super().__init__(parts[0].dtype, shape)
        self.parts = list(parts)
        self.origin = origin
        assert sum(part.size for part in parts) == self.size

    def rows(self, start: int, stop: int) -> Array:
        width = math.prod(self.row_shape)
        first, last = start * width, stop * width
        found = np.empty(last - first, self.words)
        begin = 0
        for part in self.parts:
            low, high = max(first, begin), min(last, begin + part.size)
            if low < high:
                found[low - first : high - first] = part.rows(low - begin, high - begin)
            begin += part.size
        return found.reshape(stop - start, *self.row_shape)


class Slice(Tensor):
    """Rows of another tensor, in ranges one after the other.

    Args:
        ranges: first row, the row behind the last, and the step.
    """

    def __init__(self, of: Tensor, ranges: Sequence[tuple[int, int, int]], origin: str = "") -> None:
        self._lengths = [len(range(*each)) for each in ranges]
        super().__init__(of.dtype, (sum(self._lengths), *of.row_shape))
        self.of, self.ranges = of, list(ranges)
        self.origin = origin or of.origin

    def rows(self, start: int, stop: int) -> Array:
        found, begin = [], 0
        for (first, _, step), length in zip(self.ranges, self._lengths):
            low, high = max(start, begin) - begin, min(stop, begin + length) - begin
            if low < high:
                rows = self.of.rows(first + low * step, first + (high - 1) * step + 1)
                found.append(rows[::step])
            begin += length
        if not found:
            return np.empty((0, *self.row_shape), self.words)
        only: Array = found[0] if len(found) == 1 else np.concatenate(found)
        return only

    def release(self) -> None:
        self.of.release()


class Element(Tensor):
    """One tensor of a stack, such as an expert or a layer."""

    def __init__(self, of: Tensor, index: int, origin: str = "") -> None:
        super().__init__(of.dtype, of.row_shape)
        self.of, self._index = of, index
        self.origin = origin

    def rows(self, start: int, stop: int) -> Array:
        whole = self.of.rows(self._index, self._index + 1)[0]
        rows: Array = whole.reshape(self.row_count, *self.row_shape)[start:stop]
        return rows

    def release(self) -> None:
        self.of.release()


def stacked(parts: Sequence[Tensor], origin: str = "") -> Tensor:
    """Tensors of one shape as one with a dimension more."""
    shape = (len(parts), *parts[0].shape)
    return Regions(
        [((index, *(0 for _ in part.shape)), Reshaped(part, (1, *part.shape))) for index, part in enumerate(parts)],
        shape,
        origin,
    )


class Reshaped(Tensor):
    """A stored tensor under another shape; only what is asked for as a whole, or row by row, stays cheap."""

    def __init__(self, of: Tensor, shape: Shape, origin: str = "") -> None:
        super().__init__(of.dtype, shape)
        self.of = of
        self.origin = origin or of.origin
        assert self.size == of.size

    def rows(self, start: int, stop: int) -> Array:
        width, inner = math.prod(self.row_shape), max(math.prod(self.of.row_shape), 1)
        first, last = start * width, stop * width
        low, high = first // inner, -(-last // inner)
        line = self.of.rows(low, high).reshape(-1)
        return line[first - low * inner : last - low * inner].reshape(stop - start, *self.row_shape)

    def release(self) -> None:
        self.of.release()


class Transposed(Tensor):
    """A tensor with its last two dimensions exchanged; it is read as a whole, once."""

    def __init__(self, of: Tensor, origin: str = "transposed") -> None:
        super().__init__(of.dtype, (*of.shape[:-2], of.shape[-1], of.shape[-2]))
        self.of = of
        self._held: Array | None = None
        self.origin = origin

    def rows(self, start: int, stop: int) -> Array:
        if len(self.shape) > 2:
            return self.of.rows(start, stop).swapaxes(-1, -2)
        if self._held is None:
            self._held = self.of.read()
        return np.ascontiguousarray(self._held[:, start:stop].T)

    def release(self) -> None:
        self._held = None
        self.of.release()


def _contiguous(shape: Shape) -> Shape:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
