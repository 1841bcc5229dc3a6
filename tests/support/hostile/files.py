"""Files that somebody sends who means harm, or that a disk has damaged, by reader.

Every one asks for something: to execute code, to take memory, to recurse, to wait for ever. Code would make the file
`CANARY` in the current folder.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from typing import Any

CANARY = "canary"
COMMAND = f"touch {CANARY}"


class Executes:
    """A value whose pickle runs a command when it is read."""

    def __reduce__(self) -> Any:
        return os.system, (COMMAND,)


def npy(descr: object, shape: str, data: bytes = b"", header: str | None = None, version: int = 1) -> bytes:
    """A file with any header, true or not."""
    text = header or f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}"
    body = text.encode() + b"\n"
    return b"\x93NUMPY" + bytes((version, 0)) + len(body).to_bytes(2 if version == 1 else 4, "little") + body + data


def zipped(*entries: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    # The quickest level: a bomb is as good a bomb.
    with zipfile.ZipFile(stream, "w", compression, compresslevel=1) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


def _levels(line: str, count: int) -> str:
    """Lines `a` to the `count`-th letter after it; each names the one before ten times."""
    letters = [chr(ord("a") + number) for number in range(count + 1)]
    return "".join(f"{b}: &{b} {line.format(','.join([f'*{a}'] * 10))}\n" for a, b in zip(letters, letters[1:]))


YAML = {
    "executes": f"!!python/object/apply:os.system ['{COMMAND}']",
    "executes_inside": f"a: !!python/object/apply:subprocess.check_output [[touch, {CANARY}]]",
    "names_python": "a: !!python/name:os.system ''",
    "laughs": "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + _levels("[{}]", 12),
    "laughs_as_key": "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + _levels("[{}]", 7) + "? *g\n: x",
    "merges": "a: &a {x: y}\n" + _levels("{{<<: [{}]}}", 12),
    "repeats_a_long_text": f"a: &a {'x' * 100_000}\nb: [{','.join(['*a'] * 1000)}]",
    "deep_list": "[" * 100_000,
    "deep_map": "{a: " * 50_000,
    "deep_block": "- " * 50_000 + "a",
    "holds_itself": "&a [*a]",
    "names_nothing": "api: [*x]",
    "no_integer": "a: !!int abc",
    "no_float": "a: !!float x",
    "no_date": "a: 2024-99-99",
    "no_digits": "!!int ",
    "no_boolean": "!!bool x",
    "no_timestamp": "!!timestamp x",
    "no_binary": "a: !!binary '%%%'",
    "long_integer": "a: " + "9" * 10_000,
    "long_hexadecimal": "a: 0x" + "f" * 100_000,
    "long_sexagesimal": "a: 1" + ":59" * 5_000,
    "nul": "a\0b",
    "not_utf8": "a: b".encode("utf-16"),
    "list_as_key": "? [a]\n: b",
    "two_documents": "a: b\n---\nc: d",
    "half_a_surrogate": 'a: "\\ud800"\nb: [',
}
"""Mapping files; none is what any of the readers expects."""
OBJECTS = {"no_binary"}
"""Those that are YAML and hold an object."""

NPY = {
    "empty": b"",
    "pickle": pickle.dumps(Executes()),
    "pickle_inside": npy("|O", "(1,)", pickle.dumps(Executes())),
    "huge": npy("<f8", "(1000000000000,)"),
    "huge_beyond_64_bits": npy("<f8", "(10000000000000000000000,)"),
    "huge_with_some": npy("<f8", "(500000000,)", b"\0" * 100),
    "huge_of_nothing": npy("|V0", "(100000000000,)"),
    "huge_text": npy("<U100000000", "(3,)"),
    "huge_header": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "negative": npy("<f8", "(-1,)", b"\0" * 64),
    "flag_as_length": npy("<f8", "(True,)", b"\0" * 8),
    "text_as_shape": npy("<f8", "'a'"),
    "record": npy([("a", "<f8")], "(1,)", b"\0" * 8),
    "deep_header": npy("", "", header="-" * 9000 + "1"),
    "deep_brackets": npy("", "", header="(" * 9000),
    "no_dictionary": npy("", "", header="[1]"),
    "no_keys": npy("", "", header="{}"),
    "version_9": npy("<f8", "(1,)", b"\0" * 8, version=9),
    "cut_off": npy("<f8", "(100,)", b"\0" * 10),
    "archive": zipped(("a.npy", npy("<f8", "(1,)", b"\0" * 8))),
    "bomb": zipped(("a.npy", npy("<f8", "(50000000,)", b"\0" * 400_000_000)), compression=zipfile.ZIP_DEFLATED),
}
"""Files that hold no array of numbers, whatever they say."""

DUMP = {
    "empty": "",
    "blank": " \n",
    "cut_off": '{"task": "tensor", "data": {"Torch.a.0.forward": {"out',
    "no_object": "[]",
    "no_data": "{}",
    "data_is_a_list": '{"data": []}',
    "task_is_a_list": '{"task": [], "data": {}}',
    "deep": '{"data": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    "deep_with_nan": '{"data": {"a": ["Infinity ]NaN,", NaN, ' + "[" * 3000 + "]" * 3000 + "]}}",
    "not_utf8": b'{"data": {"\xff": {}}}',
    "half_a_surrogate": '{"data": {"\\ud800": {}}}',
    "nul": '{"data": {}}\0',
    "two": '{"data": {}} {"data": {}}',
    "pickle": pickle.dumps(Executes()),
}
"""dump.json, damaged as a whole."""

RECORD = {
    "long_integer": '{"output": [' + "9" * 6000 + "]}",
    "long_integer_and_nan": '{"output": [NaN, "NaN,", ' + "9" * 6000 + "]}",
    "beyond_floats": '{"output": [1e999]}',
    "deep": '{"output": ' + "[" * 700 + "]" * 700 + "}",
    "list": "[1]",
    "text": '"text"',
    "output_is_a_number": '{"output": 5}',
    "data_name_is_a_list": '{"output": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], '
    '"Max": 1, "Min": 1, "Mean": 1, "Norm": 1, "requires_grad": false, "data_name": ["x"]}]}',
}
"""One record of dump.json."""

STACKS: dict[str, Any] = {
    "names_are_lists": {"0": [[[1]], ["x"]]},
    "names_are_objects": {"0": [[{}], ["x"]]},
    "lines_are_numbers": {"0": [["a"], [5]]},
    "entry_is_a_number": {"0": 5},
    "is_a_list": [],
    "is_none": None,
}
TREES: dict[str, Any] = {
    "parent_is_a_list": {"a": []},
    "parent_is_a_number": {"a": 1},
    "is_a_list": [],
    "is_none": None,
}


def tensor_entry(data_name: str) -> dict[str, Any]:
    return {
        "type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0, "Min": 1.0, "Mean": 1.0,
        "Norm": 1.0, "requires_grad": False, "data_name": data_name,
    }  # fmt: skip


def dump_of(data_name: str) -> str:
    """A dump.json whose one tensor lies in the file `data_name`."""
    data = {"Torch.relu.0.forward": {"input_args": [], "input_kwargs": {}, "output": [tensor_entry(data_name)]}}
    return json.dumps({"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data})
