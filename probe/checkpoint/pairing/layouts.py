"""The ways in which one matrix holds several: query, key and value; gate and up; experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from probe.checkpoint.stored.tensors import Slice, Tensor, Transposed

Ranges = "list[tuple[int, int, int]]"
Heads = "tuple[int, int]"
_HEAD_SIZES = (128, 64, 256, 96, 80, 32, 16, 8, 4)
"""Rows of a head in models that are in use, and in small ones for tests."""
_MOST_GROUPS = 512
_SPLITS = (2, 4, 8, 16)
"""Tensor-parallel ranks whose halves may follow each other in a file that was merged without regard to them."""


def heads_of(config: Mapping[str, Any], given: tuple[int, int] | None) -> tuple[int, int] | None:
    """Attention heads, and groups of them that share keys and values, as a configuration says."""
    if given is not None:
        return given
    heads = _first(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    if heads is None:
        return None
    if config.get("group_query_attention") is False:
        return heads, heads
    groups = _first(
        config, "num_key_value_heads", "num_query_groups", "n_query_groups", "n_kv_heads", "multi_query_group_num"
    )
    return heads, groups if groups and heads % groups == 0 else heads


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if type(value := config.get(name)) is int and value > 0), None)


def qkv_parts(
    fused: Tensor, which: str, sizes: tuple[int, int], heads: tuple[int, int] | None
) -> Iterator[tuple[str, Tensor]]:
    """The rows of query, key or value in a matrix of all three, for each layout there is.

    Args:
        which: ``q``, ``k`` or ``v``.
        sizes: the rows of the query, and of the key.
        heads: those that the configuration has, whose layouts come first.
    """
    for turned, words in _turned(fused):
        if turned.row_count != sizes[0] + 2 * sizes[1]:
            continue
        for name, ranges in _qkv_ranges(sizes, heads):
            part = Slice(turned, ranges[which])
            text = _rows(ranges[which], "qkv") if name == "" else f"{name} of qkv"
            yield _joined_words(text, words), part


def _qkv_ranges(
    sizes: tuple[int, int], heads: tuple[int, int] | None
) -> Iterator[tuple[str, dict[str, list[tuple[int, int, int]]]]]:
    query, key = sizes
    blocks = {"q": [(0, query, 1)], "k": [(query, query + key, 1)], "v": [(query + key, query + 2 * key, 1)]}
    known = [heads[1]] if heads is not None and key % heads[1] == 0 else []
    if not known:
        yield "", blocks
    for groups in [*known, *(each for each in _divisors(key) if each not in known)]:
        yield "" if groups == 1 else f"heads interleaved in {groups} groups", interleaved(query, key, groups)
        if groups in known:
            yield "", blocks
    for groups in _divisors(key):
        # Before release 2 of its checkpoints, Megatron had the three beside each other for each element of a head.
        if query == key:
            yield (
                f"elements interleaved in {groups} heads",
                {part: [(index, 3 * query, 3)] for index, part in enumerate("qkv")},
            )
            return


def interleaved(query: int, key: int, groups: int) -> dict[str, list[tuple[int, int, int]]]:
    """The rows of each part where each group has its queries, a key and a value."""
    queries, keys = query // groups, key // groups
    step = queries + 2 * keys
    found: dict[str, list[tuple[int, int, int]]] = {"q": [], "k": [], "v": []}
    for group in range(groups):
        begin = group * step
        found["q"].append((begin, begin + queries, 1))
        found["k"].append((begin + queries, begin + queries + keys, 1))
        found["v"].append((begin + queries + keys, begin + step, 1))
    return found


def qkv_orders(fused: Tensor, heads: tuple[int, int] | None) -> Iterator[tuple[str, Tensor]]:
    """A matrix of all three with its rows in other orders: interleaved by groups, or one after the other."""
    rows = fused.row_count
    ratios = [heads[0] // heads[1]] if heads is not None else []
    for ratio in [*ratios, *(each for each in (1, 2, 3, 4, 5, 6, 7, 8, 16) if each not in ratios)]:
        if rows % (ratio + 2):
            continue
        key = rows // (ratio + 2)
        known = [heads[1]] if heads is not None and key % heads[1] == 0 else []
        for groups in known or _divisors(key):
            apart = interleaved(ratio * key, key, groups)
            yield f"heads interleaved in {groups} groups", Slice(fused, [*apart["q"], *apart["k"], *apart["v"]])
            yield (
                f"heads interleaved in {groups} groups on the other side",
                Slice(fused, _grouped(ratio * key, key, groups)),
            )
        if known:
            return


def _grouped(query: int, key: int, groups: int) -> list[tuple[int, int, int]]:
    queries, keys = query // groups, key // groups
    found = []
    for group in range(groups):
        found.append((group * queries, (group + 1) * queries, 1))
        found.append((query + group * keys, query + (group + 1) * keys, 1))
        found.append((query + key + group * keys, query + key + (group + 1) * keys, 1))
    return found


def rotary_orders(tensor: Tensor, heads: tuple[int, int] | None) -> Iterator[tuple[str, Tensor]]:
    """A query or a key with its rows in the order of the other way of rotating them.

    Llama's own files have the two rows that are rotated beside each other, Transformers in two halves of a head.
    """
    rows = tensor.row_count
    sizes = [rows // each for each in heads or () if rows % each == 0]
    for size in dict.fromkeys([*sizes, *(each for each in _HEAD_SIZES if rows % each == 0)]):
        if size % 2:
            continue
        begins = range(0, rows, size)
        yield (
            f"rotary halves of heads of {size} as pairs on the other side",
            Slice(tensor, [(begin + part, begin + size, 2) for begin in begins for part in (0, 1)]),
        )
        half = size // 2
        yield (
            f"rotary pairs of heads of {size} as halves on the other side",
            Slice(
                tensor,
                [(begin + index, begin + index + half + 1, half) for begin in begins for index in range(half)],
            ),
        )


def gate_parts(fused: Tensor, which: str) -> Iterator[tuple[str, Tensor]]:
    """The rows of the gate or of what it is multiplied with, for each layout of a matrix of both."""
    index = 0 if which == "gate" else 1
    for turned, words in _turned(fused):
        rows = turned.row_count
        if rows % 2:
            continue
        half = rows // 2
        ranges = [(index * half, (index + 1) * half, 1)]
        yield _joined_words(_rows(ranges, "gate_up"), words), Slice(turned, ranges)
        other = [((1 - index) * half, (2 - index) * half, 1)]
        yield _joined_words(f"{_rows(other, 'gate_up')}, in the other order", words), Slice(turned, other)
        yield _joined_words("every second row of gate_up", words), Slice(turned, [(index, rows, 2)])
        for ranks in _SPLITS:
            if half % ranks == 0:
                part = half // ranks
                pieces = [((2 * rank + index) * part, (2 * rank + index + 1) * part, 1) for rank in range(ranks)]
                yield _joined_words(f"gate_up as {ranks} ranks hold it", words), Slice(turned, pieces)


def gate_orders(fused: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A matrix of gate and up with its rows in other orders."""
    rows = fused.row_count
    if rows % 2:
        return
    half = rows // 2
    yield "gate and up in the other order", Slice(fused, [(half, rows, 1), (0, half, 1)])
    yield "gate and up interleaved", Slice(fused, [(0, rows, 2), (1, rows, 2)])
    for ranks in _SPLITS:
        if half % ranks == 0:
            part = half // ranks
            gates = [(2 * rank * part, (2 * rank + 1) * part, 1) for rank in range(ranks)]
            ups = [((2 * rank + 1) * part, (2 * rank + 2) * part, 1) for rank in range(ranks)]
            yield f"gate_up as {ranks} ranks hold it", Slice(fused, [*gates, *ups])


def turned_readings(tensor: Tensor) -> list[tuple[str, Tensor]]:
    """A tensor of two or more dimensions with the last two exchanged."""
    return [("transposed", Transposed(tensor))] if len(tensor.shape) > 1 else []


def _turned(fused: Tensor) -> Iterator[tuple[Tensor, str]]:
    yield fused, ""
    if len(fused.shape) == 2:
        yield Transposed(fused), "transposed"


def _divisors(number: int) -> Sequence[int]:
    return [each for each in range(1, min(number, _MOST_GROUPS) + 1) if number % each == 0]


def _rows(ranges: Sequence[tuple[int, int, int]], of: str) -> str:
    return f"rows {ranges[0][0]} to {ranges[0][1] - 1} of {of}"


def _joined_words(*words: str) -> str:
    return ", ".join(word for word in words if word)
