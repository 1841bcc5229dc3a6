"""Parts of a fingerprint: query, key and value, or gate and up, of which the other side has one each.

A fingerprint has no digest of any rows. If the other side has values, they are put together in the layout of the whole
and compared with it. If that differs, the digests before some rows and the sample say which part does, as far as they
reach. Digests of two fingerprints are joined by arithmetic, where parts follow each other in whole rows of 64.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from probe.checkpoint.fingerprints.entry import (
    Entry,
    Fingerprinted,
    Reordered,
    Rounded,
    entry_of,
    is_whole,
    rests_on_fingerprint,
    rows_in,
    rows_of_cuts,
)
from probe.checkpoint.fingerprints.judging import by_digests, judged
from probe.checkpoint.fingerprints.telling import equal_parts, has_same_range
from probe.checkpoint.measuring import Measured
from probe.checkpoint.pairing.pairs import Pair
from probe.checkpoint.report import DIFFERENT, FINE, IDENTICAL, ROUNDING, UNKNOWN
from probe.checkpoint.sampling import positions_of_sample
from probe.checkpoint.stored import Array, Slice, Tensor, Transposed, joined
from probe.common.numerics import digests
from probe.common.numerics.digests import NOT_KNOWN, ROW, VALUE, Digested
from probe.common.numerics.formats import format_of

_UNTOLD = "a fingerprint does not tell; compare with the checkpoint itself"
_NO_ORDER = "not proven"
"""The order of parts that have the numbers of the whole, in a layout that digests do not prove."""
_IN_ORDER = "the parts follow each other as "
"""The begin of an order in which digests prove the parts, and which no layout that is known has."""
_MOST_PARTS = 4
"""Parts of which every order is tried: query, key and value are three, and five have 120 orders."""
_MOST_CHOICES = 125
"""Choices of one tensor for each part, that are tried in every order: five steps for each of three parts. In six
orders, these are 750 sums of five digests, measured at 4 ms where none fits."""


class _Part(NamedTuple):
    pair: Pair
    rows: Array
    """The rows of the whole that it has, in its order."""
    counterpart: Tensor
    is_first: bool
    """True if the whole is on the first side."""


def verdicts_of_parts(pairs: Sequence[Pair]) -> dict[int, Measured]:
    """The verdicts on pairs of which one side is a part of a fingerprint, by the `id` of the pair."""
    groups: dict[tuple[int, bool], tuple[Tensor, list[_Part]]] = {}
    for pair in pairs:
        if pair.one is None or pair.other is None or pair.reading is None:
            continue
        for is_first, (view, counterpart) in enumerate((pair.tensors[::-1], pair.tensors)):
            found = rows_in(view)
            whole, rows = found if found is not None else (view, np.arange(0))
            if found is not None and is_read_from(whole) and len(rows) < whole.row_count:
                key = id(held_in(whole)), whole is not held_in(whole)
                groups.setdefault(key, (whole, []))[1].append(_Part(pair, rows, counterpart, bool(is_first)))
    verdicts: dict[int, Measured] = {}
    layouts: dict[str, list[tuple[str, Sequence[_Part]]]] = {}
    for whole, parts in groups.values():
        if isinstance(whole, Fingerprinted) and all(isinstance(part.counterpart, Fingerprinted) for part in parts):
            told, order = _against_fingerprints(whole, parts)
            verdicts.update(zip((id(part.pair) for part in parts), told))
            if order is not None:
                moved = [part for part, each in zip(parts, told) if each.verdict not in FINE]
                of_order = moved if order.startswith(_IN_ORDER) else parts
                layouts.setdefault(parts[0].pair.group, []).append((order, of_order))
        else:
            verdicts.update(zip((id(part.pair) for part in parts), _judged(whole, parts)))
    for of_group in layouts.values():
        verdicts.update(_unlike_the_others(of_group))
    return verdicts


def _unlike_the_others(layouts: Sequence[tuple[str, Sequence[_Part]]]) -> Iterator[tuple[int, Measured]]:
    """The verdicts on the parts of those that are in another layout than most of their kind."""
    orders = [order for order, _ in layouts]
    known = [order for order in orders if not order.startswith(_IN_ORDER)]
    usual, _ = Counter(known or orders).most_common(1)[0]
    for order, parts in layouts:
        for part in parts if order not in (usual, _NO_ORDER) else ():
            if usual == _NO_ORDER:
                yield id(part.pair), Measured(UNKNOWN, f"in a layout that {_UNTOLD}", *[None] * 7)
            else:
                words = f"{order}, unlike" if order.startswith(_IN_ORDER) else "unlike"
                yield id(part.pair), Measured(DIFFERENT, f"{words} the others of its kind", *[None] * 7)


def is_read_from(whole: Tensor) -> bool:
    """True of a fingerprint, and of one that is read transposed."""
    return isinstance(whole, Fingerprinted) or (isinstance(whole, Transposed) and isinstance(whole.of, Fingerprinted))


def held_in(whole: Tensor) -> Tensor:
    """The fingerprint that is read as it is, or transposed."""
    return whole.of if isinstance(whole, Transposed) else whole


def _judged(whole: Tensor, parts: Sequence[_Part]) -> Iterator[Measured]:
    if any(part.counterpart.shape != (len(part.rows), *whole.row_shape) for part in parts):
        return (Measured(DIFFERENT, "its parts have other sizes", *[None] * 7) for _ in parts)
    rows = np.concatenate([part.rows for part in parts])
    is_all = np.array_equal(np.sort(rows), np.arange(whole.row_count))
    have_values = not any(rests_on_fingerprint(part.counterpart) for part in parts)
    if is_all and have_values and len({part.counterpart.dtype for part in parts}) == 1:
        return _against_values(whole, parts, rows)
    if not isinstance(whole, Fingerprinted):
        return (Measured(UNKNOWN, _UNTOLD, *[None] * 7) for _ in parts)
    return (_by_cuts(whole, part) for part in parts)


def _against_values(whole: Tensor, parts: Sequence[_Part], rows: Array) -> Iterator[Measured]:
    """The parts of the other side put together as the whole has them."""
    back = np.empty_like(rows)
    back[rows] = np.arange(len(rows))
    other: Tensor = Reordered(joined([part.counterpart for part in parts], 0), back)
    turned = not isinstance(whole, Fingerprinted)
    held, other = held_in(whole), Transposed(other) if turned else other
    sides = (held, other) if parts[0].is_first else (other, held)
    found = judged(entry_of(sides[0]), entry_of(sides[1]), *sides)
    if found.verdict != DIFFERENT:
        return iter([found] * len(parts))
    return _located(whole, other, parts, found)


def _located(whole: Tensor, other: Tensor, parts: Sequence[_Part], found: Measured) -> Iterator[Measured]:
    """The parts that differ, by the ranges of rows whose digests are held, and by the sampled rows."""
    rounded = _is_shorter(whole.dtype, other.dtype)
    held, its = entry_of(held_in(whole)), entry_of(Rounded(other, whole.dtype) if rounded else other)
    # Of a transposed one, no digest is of rows.
    turned = not isinstance(whole, Fingerprinted)
    ranges = [(0, whole.row_count, False)] if turned else list(equal_parts(held, its))
    apart = _sampled_rows_that_differ(held, its, turned)
    same = np.zeros(whole.row_count, bool)
    for first, last, equal in ranges:
        same[first:last] = equal
    verdicts: list[str] = []
    for part in parts:
        if same[part.rows].all():
            verdicts.append(IDENTICAL)
            continue
        mine = np.zeros(whole.row_count, bool)
        mine[part.rows] = True
        # A range that differs and belongs to this part alone.
        surely = any(not equal and mine[first:last].all() for first, last, equal in ranges)
        verdicts.append(DIFFERENT if surely or mine[apart].any() else UNKNOWN)
    if verdicts.count(UNKNOWN) == 1 and DIFFERENT not in verdicts:
        verdicts[verdicts.index(UNKNOWN)] = DIFFERENT
    alone = verdicts.count(DIFFERENT) == 1 and UNKNOWN not in verdicts
    for part, verdict in zip(parts, verdicts):
        if verdict == IDENTICAL and rounded:
            side = " on the first side" if part.is_first else ""
            yield Measured(ROUNDING, f"rounded to {whole.dtype}{side}", *[None] * 7)
        elif verdict == IDENTICAL:
            yield _equal_values(whole.dtype, part.counterpart.dtype)
        elif verdict == UNKNOWN:
            yield Measured(UNKNOWN, _UNTOLD, *[None] * 7)
        else:
            l2 = found.l2 if alone else None
            norm = entry_of(part.counterpart).told.norm
            relative = l2 / norm if l2 is not None and norm else None
            yield Measured(DIFFERENT, found.how, None, None, None, None, l2, relative, None)


def _equal_values(dtype: str, other: str) -> Measured:
    if dtype == other:
        return Measured(IDENTICAL)
    return Measured(ROUNDING, f"{dtype} and {other} storage of the same values")


def _is_shorter(dtype: str, other: str) -> bool:
    """True if numbers of the other dtype are rounded to the first one."""
    short, long = format_of(dtype), format_of(other)
    return short is not None and long is not None and 0 < short.digits < long.digits and not long.is_complex


def _sampled_rows_that_differ(held: Entry, other: Entry, turned: bool) -> Array:
    """The numbers of the sampled rows, or columns of what is transposed, that differ."""
    rows, columns = positions_of_sample(held.shape)
    apart = (held.sample != other.sample).reshape(len(rows), len(columns), -1).any(2)
    found: Array = np.array(columns)[apart.any(0)] if turned else np.array(rows)[apart.any(1)]
    return found


# --- two fingerprints


def _against_fingerprints(whole: Fingerprinted, parts: Sequence[_Part]) -> tuple[list[Measured], str | None]:
    """The verdicts in the layout that digests prove, of those that there may be, and the order of this layout.

    The order is `_NO_ORDER` if there is a layout and none is proven, and ``None`` if the numbers are others.
    """
    numbers = sum(entry_of(part.counterpart).told.elements for part in parts) % (1 << 64)
    same = numbers == whole.entry.told.elements
    how = f"its parts have the same numbers, in a layout that {_UNTOLD}" if same else _UNTOLD
    untold = Measured(UNKNOWN, how, *[None] * 7)
    for order, each in _layouts(parts) if is_all_of(whole, parts) else ():
        found = _in_layout(whole, each)
        if any(measured.verdict in FINE for measured in found):
            for part in parts:
                part.pair.reading = next(reading for reading in part.pair.readings if reading.order == order)
            return [untold if same and measured.verdict == DIFFERENT else measured for measured in found], order
    in_order = _in_other_order(whole, parts) if is_all_of(whole, parts) else None
    if in_order is not None:
        return in_order
    if same:
        return [untold] * len(parts), _NO_ORDER
    if whole.dtype != parts[0].counterpart.dtype:
        return [untold] * len(parts), None
    differs = Measured(DIFFERENT, "it or another part, in a layout that no digest proves", *[None] * 7)
    return [differs] * len(parts), None


def _in_other_order(whole: Fingerprinted, parts: Sequence[_Part]) -> tuple[list[Measured], str] | None:
    """The verdicts on parts that make the whole one after the other in an order of no layout, and this order."""
    expected = sorted(range(len(parts)), key=lambda at: int(parts[at].rows[0]))
    found = chosen_parts(whole.entry, [[entry_of(parts[at].counterpart)] for at in expected])
    measured = None if found is None else _by_joined(whole, parts[0], found.told)
    if found is None or measured is None:
        return None
    order = [expected[place] for place in found.order]
    words = _IN_ORDER + ", ".join(parts[at].pair.key.split(".")[-2] for at in order)
    told = [Measured(UNKNOWN, words, *[None] * 7)] * len(parts)
    row = 0
    for at in order:
        if row == int(parts[at].rows[0]) and _follows(parts[at]):
            told[at] = measured
        row += parts[at].counterpart.row_count
    return told, words


class Chosen(NamedTuple):
    """The parts of which a whole consists."""

    order: tuple[int, ...]
    """For each place in the whole, the number of the part that is there."""
    choice: tuple[int, ...]
    """For each part, the number of its fingerprint."""
    told: Digested
    """The digests of these parts, one after the other."""


def chosen_parts(whole: Entry, candidates: Sequence[Sequence[Entry]]) -> Chosen | None:
    """The parts of which a whole consists, one after the other, each of several that it may be.

    Args:
        candidates: for each part, in the order in which they are expected, its fingerprints, the likeliest first.

    Returns: ``None`` if no choice has the digest of the whole, or its values rounded, or a part does not end with a row
        of 64 elements.
    """
    if len(candidates) > _MOST_PARTS:
        return None
    choices = sorted(product(*(range(len(each)) for each in candidates)), key=lambda choice: (sum(choice), choice))
    for order in permutations(range(len(candidates))):
        terms = _terms([candidates[part] for part in order])
        for choice in choices[:_MOST_CHOICES]:
            entries = [candidates[part][choice[part]] for part in order]
            if terms is not None and not _may_be(whole, terms, [choice[part] for part in order]):
                continue
            told = joined_digests(entries)
            if told is None:
                break
            if by_digests(whole.dtype, entries[0].dtype, whole.told, told) is not None:
                return Chosen(order, choice, told)
    return None


_Terms = Sequence[Sequence[Sequence[int]]]
"""By place and candidate, what it adds to the digests of the whole that are known of all of them."""


def _terms(candidates: Sequence[Sequence[Entry]]) -> _Terms | None:
    """The terms of candidates for parts one after the other; ``None`` if they have several sizes, or no whole rows."""
    known = [
        which
        for which in range(digests.COUNT)
        if all(each.told.digests[which] != NOT_KNOWN for of_part in candidates for each in of_part)
    ]
    found, before = [], 0
    for of_part in candidates:
        sizes = {math.prod(each.shape) for each in of_part}
        if len(sizes) != 1 or before % ROW:
            return None
        row = before // ROW
        found.append([[digests.term_at(each.told.digests[which], row) for which in known] for each in of_part])
        before += sizes.pop()
    return found


def _may_be(whole: Entry, terms: _Terms, choice: Sequence[int]) -> bool:
    """True if a digest of the chosen candidates is one of the whole: a sum, where to join all of them takes longer."""
    chosen = [of_part[which] for of_part, which in zip(terms, choice)]
    return any(sum(of_digest) % digests.PRIME in whole.told.digests for of_digest in zip(*chosen))


def is_all_of(whole: Fingerprinted, parts: Sequence[_Part]) -> bool:
    """True if the parts are all rows of the whole, in one dtype."""
    rows = sum(part.counterpart.row_count for part in parts)
    return rows == whole.row_count and len({part.counterpart.dtype for part in parts}) == 1


def _layouts(parts: Sequence[_Part]) -> Iterator[tuple[str, Sequence[_Part]]]:
    """The parts with their rows in each order that all of them may have."""
    of_each = [
        {reading.order: reading.tensor for reading in part.pair.readings if isinstance(reading.tensor, Slice)}
        for part in parts
    ]
    for order in of_each[0]:
        if all(order in views for views in of_each):
            # Most are proven in the first one.
            found = [rows_in(views[order]) for views in of_each]
            yield order, [part._replace(rows=each[1]) for part, each in zip(parts, found) if each is not None]


def _in_layout(whole: Fingerprinted, parts: Sequence[_Part]) -> list[Measured]:
    ordered = sorted(parts, key=lambda part: int(part.rows[0]))
    told = joined_digests([entry_of(part.counterpart) for part in ordered]) if all(map(_follows, ordered)) else None
    found = None if told is None else _by_joined(whole, parts[0], told)
    if found is not None:
        return [found] * len(parts)
    return [_by_cuts(whole, part) for part in parts]


def _by_joined(whole: Fingerprinted, part: _Part, told: Digested) -> Measured | None:
    """The verdict that the digests of all parts prove, of which one is given for its dtype and its side."""
    if part.is_first:
        return by_digests(whole.dtype, part.counterpart.dtype, whole.entry.told, told)
    return by_digests(part.counterpart.dtype, whole.dtype, told, whole.entry.told)


def _follows(part: _Part) -> bool:
    """True if the rows of a part follow each other in the whole."""
    return np.array_equal(part.rows, np.arange(part.rows[0], part.rows[0] + len(part.rows)))


def joined_digests(entries: Sequence[Entry]) -> Digested | None:
    """Digests and statistics of tensors one after the other; ``None`` if one but the last has no whole rows of 64.

    Lanes and signs of a sketch are those of other elements there.
    """
    sizes = [math.prod(each.shape) for each in entries]
    found = []
    for which in range(digests.COUNT):
        of_each = [each.told.digests[which] for each in entries]
        one = NOT_KNOWN if NOT_KNOWN in of_each else digests.joined(list(zip(of_each, sizes)))
        if one is None:
            return None
        found.append(one)
    told = [each.told for each in entries]
    return Digested(
        tuple(found), sum(each.elements for each in told) % (1 << 64), all(each.is_exact for each in told),
        sum(each.nonfinite for each in told), max(each.most for each in told), min(each.least for each in told),
        sum(each.mean * size for each, size in zip(told, sizes)) / max(sum(sizes), 1),
        math.sqrt(sum(each.norm**2 for each in told)), told[0].sketch,
    )  # fmt: skip


def _by_cuts(whole: Fingerprinted, part: _Part) -> Measured:
    """A part compared by the digests before some rows of both sides, run of rows by run."""
    if not is_whole(part.counterpart):
        return Measured(UNKNOWN, _UNTOLD, *[None] * 7)
    mine, its = _prefixes(whole.entry), _prefixes(entry_of(part.counterpart))
    width, at, unknown = math.prod(whole.row_shape), 0, False
    for first, last in _runs(part.rows):
        left = _between(mine, first, last, width)
        right = _between(its, at, at + last - first, width)
        if left is None or right is None:
            unknown = True
        elif left != right:
            return Measured(DIFFERENT, "", *[None] * 7)
        at += last - first
    if unknown:
        return Measured(UNKNOWN, _UNTOLD, *[None] * 7)
    return _equal_values(whole.dtype, part.counterpart.dtype)


def _between(prefixes: Mapping[int, int], first: int, last: int, width: int) -> int | None:
    """The digest of rows of `width` elements; ``None`` if one of those before them is not held."""
    before, after = prefixes.get(first), prefixes.get(last)
    return None if before is None or after is None else digests.part_between(before, after, first * width // ROW)


def _prefixes(entry: Entry) -> Mapping[int, int]:
    """The digest of the values before a row, by its number."""
    rows = entry.shape[0] if entry.shape else 1
    known = {row: cut for row, cut in zip(rows_of_cuts(entry.shape), entry.cuts) if cut != NOT_KNOWN}
    return {0: 0, **known, rows: entry.told.digests[VALUE]}


def _runs(rows: Array) -> Iterator[tuple[int, int]]:
    """Rows that follow each other: the first, and the one behind the last."""
    ends = np.flatnonzero(np.diff(rows) != 1)
    yield from zip(rows[[0, *(ends + 1)]].tolist(), (rows[[*ends, -1]] + 1).tolist())


def may_be_reordered(pair: Pair) -> bool:
    """True if both sides are fingerprints of the same numbers in another order, which may be that of their layouts."""
    one, other = pair.tensors
    if not isinstance(one, Fingerprinted) or not isinstance(other, Fingerprinted):
        return False
    alike = one.entry.told.elements == other.entry.told.elements or has_same_range(one.entry, other.entry)
    return pair.declared and bool(pair.group) and alike


# --- rows that one side has more


def first_rows(one: Tensor, other: Tensor) -> Measured:
    """The verdict on the first rows of a fingerprint that has more rows than its counterpart.

    Zeros at the end do not change a digest. Other rows are left out only where the digest of those before is held.
    """
    longer, shorter = (one, other) if one.shape[0] > other.shape[0] else (other, one)
    if not isinstance(longer, Fingerprinted) or not is_whole(shorter):
        return Measured(UNKNOWN, _UNTOLD, *[None] * 7)
    left, right = entry_of(one).told, entry_of(other).told
    found = by_digests(one.dtype, other.dtype, left, right)
    if found is not None:
        return found
    before = _prefixes(longer.entry).get(shorter.shape[0])
    if before is None:
        return Measured(UNKNOWN, _UNTOLD, *[None] * 7)
    if before == entry_of(shorter).told.digests[VALUE]:
        return _equal_values(one.dtype, other.dtype)
    return Measured(DIFFERENT, "", *[None] * 7)


def rest_is_zero(tensor: Fingerprinted, start: int) -> bool:
    """True if the rows from `start` on are zero, of a tensor whose first rows `first_rows` found to be equal."""
    before = _prefixes(tensor.entry).get(start)
    return before is None or before == tensor.entry.told.digests[VALUE]
