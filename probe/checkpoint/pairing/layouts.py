"""The orders of rows in which a matrix holds several: query, key and value; gate and up; heads that are rotated."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from probe.checkpoint.pairing.pairs import Reading
from probe.checkpoint.report import Checkpoint
from probe.checkpoint.stored import Slice, Tensor, Transposed

Ranges = list[tuple[int, int, int]]
Orders = Iterable[tuple[str, str, Ranges]]
"""Order, words, and the rows."""
_HEAD_SIZES = (128, 64, 256, 96, 80, 32, 16, 8, 4)
"""Rows of a head in models that are in use, and in small ones for tests."""
_MOST_GROUPS = 512
"""Groups of heads that are tried; a guess beyond any known model."""
SWAPPED, INTERLEAVED = "up before gate", "rows of gate and up interleaved"
_META = re.compile(r"layers\.\d+\.attention\.w[qk]\.weight$")
_TRANSFORMERS = re.compile(r"model\.layers\.\d+\.self_attn\.[qk]_proj\.weight$")
_CONVERTED = ("llama", "mistral", "mixtral")
"""Model types of Transformers whose weights come from files with Meta's names, and are rotated in halves."""
ROTARY_FORM = re.compile(r"(rotary|rope|neox).*(interleav|style|form|layout|neox|half|pair)|is_neox_style")
"""A key of a configuration that says how rows of queries and keys are rotated."""
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


def rotary_of(content: Checkpoint) -> str | None:
    """The rows that are rotated together, ``pairs`` or ``halves``, if names and configuration are sure of it."""
    config, heads = content.config, heads_of(content.config, None)
    if heads is None or any(ROTARY_FORM.search(key.lower()) for key in config):
        return None
    if any(".q_norm." in name for name in content.weights):
        # Some write names like Meta's for models that are rotated in halves.
        return None
    # Heads of two rows have one order.
    rows = [
        tensor.row_count for name, tensor in content.weights.items() if _META.match(name) or _TRANSFORMERS.match(name)
    ]
    if not rows or max(rows) <= 2 * heads[0]:
        return None
    if any(map(_META.match, content.weights)) and "model_type" not in config and {"dim", "n_heads"} <= set(config):
        return "pairs"
    if any(map(_TRANSFORMERS.match, content.weights)) and config.get("model_type") in _CONVERTED:
        return "halves"
    return None


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    return next((value for name in names if type(value := config.get(name)) is int and value > 0), None)


def readings_of(tensor: Tensor, orders: Callable[[Tensor], Orders]) -> list[Reading]:
    """A parameter with its rows in each order, and the same of its transposed."""
    found = []
    for turned in (False, True) if len(tensor.shape) == 2 else (False,):
        of = Transposed(tensor) if turned else tensor
        for order, words, ranges in orders(of):
            text = ", ".join(filter(None, (words, "transposed" if turned else "")))
            found.append(Reading(text, Slice(of, ranges), turned, order))
    return found


def plain_readings(tensor: Tensor) -> list[Reading]:
    """A parameter as it is stored, and with its last two dimensions exchanged."""
    turned = [Reading("transposed", Transposed(tensor), True)] if len(tensor.shape) > 1 else []
    return [Reading("", tensor), *turned]


def whole_readings(tensor: Tensor, orders: Callable[[Tensor], Orders]) -> list[Reading]:
    """A parameter as it is stored, transposed, and with its rows in other orders."""
    found = plain_readings(tensor) + readings_of(tensor, orders)
    if len(tensor.shape) == 2:
        # Rows that are in another order before both are transposed.
        for order, words, ranges in orders(tensor):
            found.append(Reading(f"{words}, transposed", Transposed(Slice(tensor, ranges)), True, order))
    return found


def qkv_parts(which: str, sizes: tuple[int, int], heads: tuple[int, int] | None) -> Callable[[Tensor], Orders]:
    """The rows of query, key or value in a matrix of all three, for each layout there is.

    Args:
        which: ``q``, ``k`` or ``v``.
        sizes: the rows of the query, and of the key.
        heads: those that the configuration has, whose layouts come first.
    """

    def orders(fused: Tensor) -> Iterator[tuple[str, str, Ranges]]:
        if fused.row_count == sizes[0] + 2 * sizes[1]:
            for order, ranges in _qkv_ranges(sizes, heads):
                rows = ranges[which]
                yield order, f"{order} of qkv" if order else f"rows {rows[0][0]} to {rows[0][1] - 1} of qkv", rows

    return orders


def _qkv_ranges(sizes: tuple[int, int], heads: tuple[int, int] | None) -> Iterator[tuple[str, dict[str, Ranges]]]:
    query, key = sizes
    yield "", {"q": [(0, query, 1)], "k": [(query, query + key, 1)], "v": [(query + key, query + 2 * key, 1)]}
    known = [heads[1]] if heads is not None and key % heads[1] == 0 else []
    for groups in [*known, *(each for each in _divisors(key) if each not in known)]:
        if groups > 1:
            yield f"heads interleaved in {groups} groups", interleaved(query, key, groups)
    if query == key:
        # Before release 2 of its checkpoints, Megatron had the three beside each other for each element of a head.
        yield "elements interleaved", {part: [(index, 3 * query, 3)] for index, part in enumerate("qkv")}


@lru_cache(maxsize=256)
def interleaved(query: int, key: int, groups: int) -> dict[str, Ranges]:
    """The rows of each part where each group has its queries, a key and a value; all layers share them."""
    queries, keys = query // groups, key // groups
    step = queries + 2 * keys
    found: dict[str, Ranges] = {"q": [], "k": [], "v": []}
    for group in range(groups):
        begin = group * step
        found["q"].append((begin, begin + queries, 1))
        found["k"].append((begin + queries, begin + queries + keys, 1))
        found["v"].append((begin + queries + keys, begin + step, 1))
    return found


def qkv_orders(heads: tuple[int, int] | None) -> Callable[[Tensor], Orders]:
    """A matrix of all three with its rows in other orders: interleaved by groups, or one after the other."""

    def orders(fused: Tensor) -> Iterator[tuple[str, str, Ranges]]:
        ratios = [heads[0] // heads[1]] if heads is not None else []
        for ratio in [*ratios, *(each for each in (1, 2, 3, 4, 5, 6, 7, 8, 16) if each not in ratios)]:
            if fused.row_count % (ratio + 2):
                continue
            key = fused.row_count // (ratio + 2)
            known = [heads[1]] if heads is not None and key % heads[1] == 0 else []
            for groups in known or _divisors(key)[1:]:
                apart = interleaved(ratio * key, key, groups)
                words = f"heads interleaved in {groups} groups"
                yield words, words, [*apart["q"], *apart["k"], *apart["v"]]
                words += " on the other side"
                yield words, words, _grouped(ratio * key, key, groups)
            if known:
                return

    return orders


def _grouped(query: int, key: int, groups: int) -> Ranges:
    queries, keys = query // groups, key // groups
    found: Ranges = []
    for group in range(groups):
        found.append((group * queries, (group + 1) * queries, 1))
        found.append((query + group * keys, query + (group + 1) * keys, 1))
        found.append((query + key + group * keys, query + key + (group + 1) * keys, 1))
    return found


def rotary_orders(heads: tuple[int, int] | None, of_first: bool = False) -> Callable[[Tensor], Orders]:
    """A query or a key with its rows in the order of the other way of rotating them.

    Llama's own files have the two rows that are rotated beside each other, Transformers in two halves of a head.
    """

    def orders(tensor: Tensor) -> Iterator[tuple[str, str, Ranges]]:
        rows = tensor.row_count
        sizes = [rows // each for each in heads or () if rows % each == 0]
        for size in dict.fromkeys([*sizes, *(each for each in _HEAD_SIZES if rows % each == 0)]):
            if size % 2 or size < 4:
                # Two rows have one order.
                continue
            to_halves, to_pairs = _rotated(rows, size)
            for mine, its, ranges in (("halves", "pairs", to_halves), ("pairs", "halves", to_pairs)):
                mine, its = (its, mine) if of_first else (mine, its)
                words = f"rotary {mine} of heads of {size} as {its} on the other side"
                yield words, words, ranges

    return orders


@lru_cache(maxsize=64)
def _rotated(rows: int, size: int) -> tuple[Ranges, Ranges]:
    """The rows in the order of two halves of each head, from neighbours, and the way back; all layers share them."""
    begins, half = range(0, rows, size), size // 2
    to_halves = [(begin + part, begin + size, 2) for begin in begins for part in (0, 1)]
    to_pairs = [(at, at + half + 1, half) for begin in begins for at in range(begin, begin + half)]
    return to_halves, to_pairs


def gate_parts(which: str) -> Callable[[Tensor], Orders]:
    """The rows of the gate or of what it is multiplied with, for each layout of a matrix of both."""
    index = 0 if which == "gate" else 1

    def orders(fused: Tensor) -> Iterator[tuple[str, str, Ranges]]:
        if fused.row_count % 2 == 0:
            half = fused.row_count // 2
            yield (
                "",
                f"rows {index * half} to {(index + 1) * half - 1} of gate_up",
                [(index * half, (index + 1) * half, 1)],
            )
            for order, _, ranges in gate_orders(fused):
                if order == SWAPPED:
                    # Then the gate holds what it is multiplied with.
                    continue
                yield order, f"{order} of gate_up", _part(ranges, index * half, half)

    return orders


def _part(ranges: Ranges, begin: int, count: int) -> Ranges:
    """Ranges of some rows of those that other ranges select; those begin and end with one of them."""
    found, at = [], 0
    for each in ranges:
        if begin <= at < begin + count:
            found.append(each)
        at += len(range(*each))
    return found


def gate_orders(fused: Tensor) -> Iterator[tuple[str, str, Ranges]]:
    """A matrix of gate and up with its rows in other orders, from which the gate comes first."""
    rows = fused.row_count
    if rows % 2:
        return
    half = rows // 2
    yield SWAPPED, SWAPPED, [(half, rows, 1), (0, half, 1)]
    yield INTERLEAVED, INTERLEAVED, [(0, rows, 2), (1, rows, 2)]
    for ranks in _SPLITS:
        if half % ranks == 0:
            part = half // ranks
            gates = [(2 * rank * part, (2 * rank + 1) * part, 1) for rank in range(ranks)]
            ups = [((2 * rank + 1) * part, (2 * rank + 2) * part, 1) for rank in range(ranks)]
            words = f"gate and up as {ranks} ranks hold them"
            yield words, words, [*gates, *ups]


def _divisors(number: int) -> Sequence[int]:
    return [each for each in range(1, min(number, _MOST_GROUPS) + 1) if number % each == 0]
