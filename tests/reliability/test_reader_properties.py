"""Whatever bytes stand in a file, its reader answers or raises one of our errors, which names the file.

The journal and config.json have tests of this kind beside their own, in tests/common. `fuzz_readers.py` goes further.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hostile import files as hostile
from hostile.damage import CHANGES, answered, changed
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.api.commands.show_text import Wanted, dump_as_json, dump_lines
from probe.common.align import layers as rules
from probe.common.align import name_mapping
from probe.common.dump.reading.tensor_reading import read_tensor
from probe.compare import merged_tables, tensor_rows

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def everything(path: str) -> int:
    dump = probe.read(path)
    for record in dump:
        for item in dump.items(record):
            dump.tensor_path(item)
    shown = [line.text for line in dump_lines(dump, Wanted(items=True))]
    assert shown and json.dumps(dump_as_json(dump, Wanted()), allow_nan=False) and dump._repr_html_()
    dump.where("Max > 1 or nan or 2 in shape or value == 1 or 'a' in dtype")
    return len(dump)


GOOD = hostile.dump_of("a.npy").encode()


def test_the_good_files_are_read() -> None:
    assert answered("dump.json", GOOD, everything) == 1
    assert answered("mapping.yaml", b"a: b", name_mapping.load_names) == {"a": "b"}
    assert answered("tensor.npy", NPY[0], read_tensor).shape == (2, 3)


@given(st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_file_in_the_place_of_a_dump(content: bytes) -> None:
    answered("dump.json", content, everything)


@given(CHANGES)
def test_a_damaged_dump(changes: list[tuple[int, bytes, int]]) -> None:
    answered("dump.json", changed(GOOD.replace(b"1.0", b"NaN", 1), changes), everything)


@given(
    JSON, st.sampled_from(["input_args", "input_kwargs", "output", "parameters", "weight", *hostile.tensor_entry("a")])
)
def test_any_value_in_a_record_and_in_the_entry_of_a_tensor(value: Any, key: str) -> None:
    entry = hostile.tensor_entry("a")
    record = {**json.loads(GOOD)["data"]["Torch.relu.0.forward"], "output": [entry], key: value}
    if key in entry:
        record = {"output": [{**entry, key: value}]}
    answered("dump.json", json.dumps({"data": {"Torch.relu.0.forward": record}}).encode(), everything)


@given(JSON | st.dictionaries(st.text(max_size=3), st.lists(JSON, max_size=2), max_size=3))
def test_any_json_beside_a_dump(value: Any) -> None:
    content = json.dumps(value).encode()
    answered("stack.json", content, lambda path: probe.read(os.path.dirname(path)).stacks, dump=b'{"data": {}}')
    answered("construct.json", content, lambda path: probe.read(os.path.dirname(path)).tree, dump=b'{"data": {}}')


MAPPINGS = [
    name_mapping.load_names, name_mapping.load_api_entries, rules.load_rules,
    tensor_rows.load_post_processing, merged_tables.load_choice,
]  # fmt: skip
YAML_PARTS = st.sampled_from(
    ["a", ": ", "\n", "- ", "  ", "&a ", "*a", "<<", "[", "]", "{", "}", ", ", "!!int ", "!!python/name:os", "'", '"',
     "ms_api", "pt_api", "api", "TopLayer", "right_matmul", "? ", "|", ">", "#", "---", "1", "0x", "2024-13-01", "\\u",
     "~", ".inf", "%", "@", "\t", "ms_args", "pt_args"]
)  # fmt: skip


@pytest.mark.parametrize("read", MAPPINGS, ids=lambda read: str(read.__name__))
@given(
    st.lists(YAML_PARTS, max_size=25).map("".join).map(str.encode)
    | st.binary(max_size=40)
    # JSON is YAML too.
    | JSON.map(lambda value: json.dumps(value).encode())
)
def test_any_mapping(read: Callable[[str], Any], content: bytes) -> None:
    answered("mapping.yaml", content, read)


def npy(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


NPY = [npy(np.arange(6.0).reshape(2, 3)), npy(np.array(["a", "bc"])), npy(np.zeros((0, 3), np.int8))]


@given(st.sampled_from(NPY), CHANGES)
def test_a_damaged_npy_file(content: bytes, changes: list[tuple[int, bytes, int]]) -> None:
    content = changed(content, changes)
    values = answered("tensor.npy", content, read_tensor)
    assert values is None or values.nbytes <= len(content)


DTYPES = st.sampled_from(["<f8", ">i4", "|b1", "<c16", "|O", "|V3", "|V0", "<U2", "<M8[s]", "<f99", "x", "", "|S0"])


@given(DTYPES, st.lists(st.integers(-2, 2**70), max_size=3).map(tuple), st.binary(max_size=40), st.integers(0, 4))
def test_any_header_of_an_npy_file(dtype: str, shape: tuple[int, ...], data: bytes, version: int) -> None:
    content = hostile.npy(dtype, repr(shape), data, version=version)
    values = answered("tensor.npy", content, read_tensor)
    assert values is None or values.nbytes <= len(data)
