"""The items of a node as the drop-in database holds them: JSON of texts, an object for each item.

There are hundreds of thousands of them, so that the JSON is put together of parts: what many items share is written
once, and a number needs no escaping.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from probe.common.align.calls import Row
from probe.common.dump.frameworks import of_dump
from probe.common.dump.reading.items import OUTPUT, Item, shape_text
from probe.common.numerics.statistics import checksum
from probe.compare.result import Mode
from probe.compare.tables import DIFFERENCES, VALUES

_SMALLEST, _DECIMALS = 1e-4, 6
_NOTHING = '{"value":"null"}'
"""An item without data."""
_encode = msgspec.json.encode


def json_text(value: Any) -> str:
    """JSON without blanks."""
    return _encode(value).decode()


class ItemTexts:
    """Writes the items of the nodes of one comparison, or of one dump.

    Args:
        mode: what the dumps are compared by; empty where there is one dump.
        framework: which one the dump is from.
    """

    def __init__(self, mode: str, framework: str = "pytorch") -> None:
        self._mode = mode
        self._type = of_dump(framework).msprobe_tensor
        self._tensor_starts: dict[tuple[Any, ...], str] = {}

    def of_target(self, rows: Iterable[Row], is_pair: bool) -> tuple[str, str]:
        """The inputs and the outputs of a node of the target; of a pair, with what was measured."""
        inputs: list[str] = []
        outputs: list[str] = []
        for row in rows:
            if row.target is None:
                continue
            text = self._item(row.target)
            if is_pair and self._mode and row.target.dtype is not None:
                text = f"{text[:-1]},{self._measured(row)}}}"
            (outputs if row.target.state == OUTPUT else inputs).append(f"{json_text(row.target.name)}:{text}")
        return _object(inputs), _object(outputs)

    def of_golden(self, items: Iterable[Item]) -> tuple[str, str]:
        """The inputs and the outputs of a node of the golden run."""
        inputs: list[str] = []
        outputs: list[str] = []
        for item in items:
            (outputs if item.state == OUTPUT else inputs).append(f"{json_text(item.name)}:{self._item(item)}")
        return _object(inputs), _object(outputs)

    def _item(self, item: Item) -> str:
        if item.dtype is None:
            return _NOTHING
        if not item.is_tensor:
            return self._plain_item(item)
        key = item.dtype, item.shape
        start = self._tensor_starts.get(key)
        if start is None:
            shape = "null" if item.shape is None else shape_text(item.shape)
            start = f'{{"type":"{self._type}","dtype":{json_text(item.dtype)},"shape":"{shape}"'
            self._tensor_starts[key] = start
        data_name = '"-1"' if item.data_name is None else json_text(item.data_name)
        md5 = "" if item.md5 is None else f'"md5":{json_text(item.md5)},'
        return (
            f'{start},"Max":{_value(item.max)},"Min":{_value(item.min)},"Mean":{_value(item.mean)},'
            f'"Norm":{_value(item.norm)},"requires_grad":{_value(item.requires_grad)},{md5}"data_name":{data_name}}}'
        )

    def _plain_item(self, item: Item) -> str:
        dtype = item.dtype or ""
        # msProbe leaves the quotes of <class 'int'> out.
        kind = dtype[len("<class '") : -len("'>")] if dtype.startswith("<class '") else dtype
        statistic = _value(item.max)
        fields = (
            f'"type":{json_text(kind)},"value":{_value(item.value)},"data_name":"-1","requires_grad":"null",'
            f'"Max":{statistic},"Min":{statistic},"Mean":{statistic},"Norm":{statistic},'
            f'"dtype":{json_text(dtype.replace(chr(39), ""))},'
            f'"shape":"{"null" if item.shape is None else shape_text(item.shape)}"'
        )
        if self._mode == Mode.CHECKSUM.value:
            fields += f',"md5":{json_text(checksum(item))}'
        return f"{{{fields}}}"

    def _measured(self, row: Row) -> str:
        flag = "True" if row.golden is not None and row.requires_grad_consistent else "False"
        consistent, result = f'"Requires_grad Consistent":"{flag}",', f'"Result":"{row.result}",'
        tail = f'"Err_message":{_messages(row.messages)}'
        if self._mode == Mode.CHECKSUM.value:
            return f"{result}{consistent}{tail}"
        if self._mode == Mode.STATISTICS.value:
            metrics = _differences(row.golden, row.metrics) if row.golden is not None else _NO_DIFFERENCES
        else:
            metrics = "".join(f'"{name}":{_value(cell)},' for name, cell in zip(VALUES, row.metrics))
        return f"{metrics}{consistent}{result}{tail}"


def _object(members: Sequence[str]) -> str:
    return f"{{{','.join(members)}}}"


def _value(value: Any) -> str:
    """A statistic, a flag or a plain value as a text of JSON."""
    if type(value) is float:
        return f'"{value!r}"'
    return '"null"' if value is None else json_text(str(value))


def _differences(golden: Item, metrics: Sequence[Any]) -> str:
    a, b, c, d, e, f, g, h = metrics
    return (
        f'"Max diff":{_difference(a, golden.max)},"Min diff":{_difference(b, golden.min)},'
        f'"Mean diff":{_difference(c, golden.mean)},"L2norm diff":{_difference(d, golden.norm)},'
        f'"MaxRelativeErr":{_percent(e, golden.max)},'
        f'"MinRelativeErr":{_percent(f, golden.min)},"MeanRelativeErr":{_percent(g, golden.mean)},'
        f'"NormRelativeErr":{_percent(h, golden.norm)},'
    )


_NO_DIFFERENCES = "".join(f'"{name}":"N/A",' for name in DIFFERENCES)


def _difference(cell: Any, golden: Any) -> str:
    """The text of a difference; flags, texts and what is missing have none."""
    kind = type(golden)
    if kind is float:
        return '"0.0"' if type(cell) is int else _value(cell)
    if kind is not int:
        return '"N/A"'
    return f'"{int(cell)}"' if type(cell) in (int, float) and cell == int(cell) else _value(cell)


def _percent(cell: Any, golden: Any) -> str:
    """The text of a relative error; what is zero or no number has none."""
    if golden == 0 or type(golden) not in (int, float):
        return '"N/A"'
    if type(cell) is str:
        return _value(cell)
    exact = repr(float(cell))
    # Six decimals, but where these would be nothing, or more than there are.
    is_short = cell < _SMALLEST or len(exact.partition(".")[2]) < _DECIMALS
    return f'"{exact}%"' if is_short else f'"{cell:.6f}%"'


@lru_cache(maxsize=1024)
def _messages(messages: tuple[str, ...]) -> str:
    # With blanks, as the page shows this text.
    return json_text(json.dumps(messages))
