"""Records of the usual form are read the quick way, and give what the way for all forms gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import probe
from probe.common.dump.reading import flattening
from probe.common.dump.reading.items import Item
from probe.common.dump.reading.records import usual_items
from probe.common.errors import DumpFormatError

CASES = Path(__file__).parents[3] / "compare" / "cases"

numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
marked = st.sampled_from(["\0NaN", "\0Infinity", "\0-Infinity"])
texts = st.text(max_size=5)
anything = st.recursive(numbers | marked | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=3)
shapes = st.lists(st.integers(0, 5), max_size=3)
# What stands where it usually does, and now and then something that never should.
tensors = st.fixed_dictionaries(
    {"type": st.just("torch.Tensor"), "dtype": st.sampled_from(["torch.float32", "Int8"]), "shape": shapes | anything},
    optional={
        **dict.fromkeys(("Max", "Min", "Mean", "Norm"), numbers | marked),
        "requires_grad": st.booleans(),
        "md5": texts | st.integers(),
        "data_name": texts,
        "value": numbers,
        "Nonfinite": numbers | texts,
        "Finite Max": numbers | marked | st.lists(numbers, max_size=1),
        "Finite Min": numbers,
        "new": anything,
    },
)
values = st.fixed_dictionaries(
    {"type": st.sampled_from(["int", "str", "torch.Size", "slice", "ellipsis", "torch.ProcessGroup"])},
    optional={"value": anything, "format": anything, "group_ranks": anything, "Max": numbers, "dtype": st.none()},
)
operations = st.fixed_dictionaries(
    {"type": st.just("torch.distributed.P2POp"), "tensor": tensors | anything}, optional={"op": texts, "peer": numbers}
)
entries = st.recursive(
    st.none() | tensors | values | operations,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
sequences = st.lists(entries | anything, max_size=3)
mappings = st.dictionaries(st.sampled_from(["dim", "src", "weight", "type", "é"]), entries, max_size=2)
fields = st.fixed_dictionaries(
    {},
    optional={
        "input_args": sequences | st.none(),
        "input": sequences,
        "input_kwargs": mappings,
        "parameters": mappings,
        "output": sequences | entries,
        "new": anything,
        "waited_after": texts | anything,
        "parameters_grad": mappings,
    },
)
gradients = st.dictionaries(texts, sequences | entries, max_size=2)
names = st.sampled_from(
    ["Torch.relu.0.forward", "Module.fc.Linear.parameters_grad.0", "Module.parameters_grad", "x.0.debug"]
)


def flattened(name: str, raw: bytes) -> list[Item] | str:
    try:
        return flattening.flatten(name, msgspec.json.decode(raw))
    except DumpFormatError as error:
        return str(error)


def quickly(name: str, raw: bytes) -> list[Item] | str | None:
    try:
        return usual_items(name, msgspec.Raw(raw))
    except DumpFormatError as error:
        return str(error)


@given(names, fields | gradients)
def test_the_quick_way_gives_the_same_items_or_leaves_the_record_to_the_other(name: str, content: Any) -> None:
    raw = json.dumps(content).encode()
    found = quickly(name, raw)
    # Their texts, because NaN is not the same as itself.
    assert found is None or repr(found) == repr(flattened(name, raw))


@pytest.mark.parametrize("case", ["identical_stat", "md5", "multi_rank/target/step0/rank0"])
def test_recorded_records_are_nearly_all_of_the_usual_form(case: str) -> None:
    folder = CASES / case
    dump = probe.read(folder if (folder / "dump.json").exists() else folder / "target")
    plain = json.loads(Path(dump.path).read_text())["data"]
    quick = [usual_items(name, msgspec.Raw(json.dumps(plain[name]).encode())) for name in plain]
    assert sum(items is not None for items in quick) >= 0.9 * len(plain)


@pytest.mark.parametrize("raw", [b"[1]", b"null", b'{"output": 3}', b'{"output": [{"type": "int"]}', b"\xff"])
def test_damaged_records_are_left_to_the_way_that_says_what_is_wrong(raw: bytes) -> None:
    assert quickly("Torch.relu.0.forward", raw) is None
