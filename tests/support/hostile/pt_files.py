"""`.pt` files that no `torch.save` has written, by what they ask for."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import Counter, OrderedDict
from typing import Any

import torch
from hostile.files import Executes, zipped


class _Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> Any:
        return self._reduced


class _Storage:
    def __init__(self, elements: int) -> None:
        self.name = ("storage", torch.FloatStorage, "0", "cpu", elements)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.name if isinstance(value, _Storage) else None


def _pickled(value: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=2).dump(value)
    return stream.getvalue()


def _tensor(size: tuple[int, ...], strides: tuple[int, ...], elements: int = 4, offset: int = 0) -> Any:
    arguments = (_Storage(elements), offset, size, strides, False, OrderedDict())
    return _Call(torch._utils._rebuild_tensor_v2, *arguments)


def archive(
    value: Any, data: bytes = bytes(16), compression: int = zipfile.ZIP_STORED, more: tuple[str, ...] = ()
) -> bytes:
    content = value if isinstance(value, bytes) else _pickled(value)
    entries = [("data.pkl", content), ("byteorder", b"little"), ("version", b"3\n"), ("data/0", data)]
    entries += [(name, b"x") for name in more]
    return zipped(*((f"archive/{name}", entry) for name, entry in entries), compression=compression)


GOOD = archive(_tensor((4,), (1,)))

PT = {
    "empty": b"",
    "executes": archive(Executes()),
    "executes_outside_an_archive": pickle.dumps(Executes(), protocol=2),
    "cut_off": GOOD[:-30],
    "cut_off_early": GOOD[:40],
    "goes_on_after_its_end": GOOD + b"x" * 10,
    "begins_later": b"PK\3\4" + b"x" * 100 + GOOD,
    "no_pickle": archive(b""),
    "a_list": archive([1, 2]),
    "compressed": archive(_tensor((10**8,), (1,), 10**8), bytes(4 * 10**8), zipfile.ZIP_DEFLATED),
    "repeats_an_element": archive(_tensor((10**6, 10**6), (0, 0))),
    "repeats_an_element_less_often": archive(_tensor((10**4, 10**4), (0, 0))),
    "more_elements_than_its_storage": archive(_tensor((100,), (1,))),
    "a_storage_larger_than_its_data": archive(_tensor((4,), (1,), 10**12)),
    "a_storage_smaller_than_its_data": archive(_tensor((4,), (1,), 1)),
    "begins_before_its_storage": archive(_tensor((4,), (1,), offset=-4)),
    "negative_length": archive(_tensor((-4,), (1,))),
    "huge_stride": archive(_tensor((4,), (2**62,))),
    "asks_for_bytes": archive(_Call(bytearray, 4 * 10**9)),
    "asks_for_a_tensor": archive(_Call(torch.Tensor, 10**9)),
    "asks_for_a_counter": archive(_Call(Counter, "abc")),
    "asks_for_no_storage": archive(
        _Call(torch._utils._rebuild_meta_tensor_no_storage, torch.float32, (10**6, 10**6), (1, 1), False)
    ),
    "deep": archive(b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b"."),
    "long_integer": archive(b"\x80\x02\x8b" + (0x7FFFFFFF).to_bytes(4, "little") + b"\0."),
    "far_memo": archive(b"\x80\x02Kr" + (0x7FFFFFFF).to_bytes(4, "little") + b"."),
    "by_names_on_the_stack": archive(b"\x80\x04\x8c\x02os\x8c\x06system\x93."),
    "program": archive(_tensor((4,), (1,)), more=("constants.pkl",)),
    "two_pickles": archive(_tensor((4,), (1,)), more=("DATA.PKL",)),
    "many_entries": archive(_tensor((4,), (1,)), more=tuple(f"x{number}" for number in range(2000))),
}
"""Files that hold no tensor, whatever they say."""
