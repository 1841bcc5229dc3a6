"""The layout of a checkpoint: one for all parameters of a kind, found by values, and fine only if something says so.

Equal bits in another order prove nothing: each permutation of rows is one. So each parameter says which reading fits,
the most frequent one is the layout, and parameters that need another are different. So are all if names, formats and
configurations give no reason for two layouts.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from probe.checkpoint.fingerprints.entry import Fingerprinted, NotHeldError, facing, rests_on_fingerprint, rows_in
from probe.checkpoint.fingerprints.judging import measure
from probe.checkpoint.pairing.layouts import INTERLEAVED
from probe.checkpoint.pairing.pairs import Pair, Reading
from probe.checkpoint.report import FINE
from probe.checkpoint.sampling import LARGE, SMALL, apart, positions_of_sample, sample
from probe.checkpoint.scheme import layer_of
from probe.checkpoint.stored import Array, Slice, Tensor, Transposed
from probe.common.numerics.rounding import decoded

_FAR = 0.5
"""A reading whose sample differs by half of its length is of other values; two independent ones differ by 1.4 times."""
_SAME = 0.02
"""Rounding to bfloat16 changes numbers by at most 1 in 256, and so does a sample."""
_DIGITS = re.compile(r"\d+")
_UNSAID = "and nothing says that the two have different layouts"
_CONV1D = re.compile(r"\.(attn|crossattention|mlp)\.(c_attn|c_proj|c_fc|q_attn)\.weight$")
"""Linear layers that GPT-2 of Transformers stores transposed, and its copies do not."""


def settle(pairs: Sequence[Pair], declared: bool, rotary: tuple[str, str] | None = None) -> None:
    """Choose the reading of each pair.

    Args:
        declared: True if names of another family, formats or configurations say that the two have different layouts.
        rotary: ``pairs`` and ``halves``, for the two sides, if both say how their rows are rotated and differ in it.
    """
    votes: dict[str, Counter[object]] = defaultdict(Counter)
    fits: dict[int, Reading] = {}
    # The value is never rotated, so it shows best in which order the rows of all three are.
    for pair in sorted(pairs, key=lambda pair: not (pair.group == "qkv" and ".v." in pair.key)):
        if pair.one is None or pair.other is None or not pair.readings:
            continue
        found = _fitting(pair, votes)
        if found is not None:
            fits[id(pair)] = found
            if rotary is not None:
                pair.wrong = _unpermuted(pair, found, *rotary)
            for kind, form in _forms(pair, found, _turns(pair)):
                # A wrong order is no layout, however many have it.
                votes[kind][form] += kind != "rotary" or not pair.wrong
    usual = {kind: _usual(counter, declared) for kind, counter in votes.items() if any(counter.values())}
    seen: dict[str, set[tuple[bool, str]]] = defaultdict(set)
    for pair in pairs:
        if id(pair) in fits:
            seen[_DIGITS.sub("#", pair.key)].add((fits[id(pair)].turned, fits[id(pair)].order))
    for pair in pairs:
        pair.declared = declared
        if pair.readings and pair.one is not None and pair.other is not None:
            alike = len(seen[_DIGITS.sub("#", pair.key)]) == 1
            _choose(pair, fits.get(id(pair)), usual, declared, alike)


def _unpermuted(pair: Pair, found: Reading, mine: str, its: str) -> str:
    """The fault of a query or key whose rows are not in the order that both sides declare; empty if they are."""
    begin = f"rotary {mine} of heads of "
    if pair.group != "rotary" or found.turned or found.order.startswith(begin):
        return ""
    assert pair.one is not None
    is_told = rests_on_fingerprint(pair.one.tensor) or any(rests_on_fingerprint(each.tensor) for each in pair.readings)
    most = SMALL if is_told else LARGE
    own = sample(pair.one.tensor, most)
    # Rows that are alike fit both orders.
    if any(
        _far_from(own, pair.one.tensor, each.tensor, most) < _SAME
        for each in pair.readings
        if each.order.startswith(begin) and not each.turned and each.tensor.shape == pair.one.tensor.shape
    ):
        return ""
    files = {"pairs": "params.json", "halves": "config.json"}
    said = f"its names and {files[mine]} declare rotary {mine}, the golden's names and {files[its]} {its}"
    if found.order:
        return f"is permuted the wrong way, since {said}"
    return f"has the golden's row order, but {said}: the permutation was left out"


def _forms(pair: Pair, reading: Reading, turns: str) -> list[tuple[str, object]]:
    """Kinds of layout that a reading belongs to, and what it says of them; `turns` is that of `_turns`."""
    order, _, rotated = reading.order.partition("; ")
    found: list[tuple[str, object]] = [(turns, reading.turned)]
    if pair.group == "rotary":
        return [*found, ("rotary", order)]
    if pair.group:
        found.append((f"{pair.group} {_whole(pair)}", order))
    if pair.group == "qkv" and ".v." not in pair.key and not _whole(pair):
        found.append(("rotary", rotated))
    return found


def _whole(pair: Pair) -> bool:
    """True if both sides have the parameter as one."""
    return pair.one is not None and pair.other is not None and not pair.one.part and not pair.other.part


def _turns(pair: Pair) -> str:
    """The parameters that are transposed together: all linear layers, all stacks, or those of one name."""
    assert pair.one is not None
    inside = layer_of(pair.key) is not None
    dimensions = max(len(each.shape) for each in pair.tensors)
    if pair.group.startswith("stack"):
        return "stack"
    return "linear" if inside and dimensions == 2 else _DIGITS.sub("#", pair.key)


def _fitting(pair: Pair, votes: dict[str, Counter[object]]) -> Reading | None:
    """The reading that fits; ``None`` if none does, or values that are all alike fit each."""
    fixed = pair.other.tensor if pair.of_first else pair.one.tensor  # type: ignore[union-attr]
    tells = not rests_on_fingerprint(fixed)
    there = [
        each
        for each in pair.readings
        if each.tensor.shape == fixed.shape and (tells or not _is_of_fingerprint_rows(each.tensor))
    ]
    is_told = any(rests_on_fingerprint(each) for each in (fixed, *(reading.tensor for reading in there)))
    most = SMALL if is_told else LARGE
    own = sample(fixed, most)
    if not own.size or np.all(own == own[0]):
        return None

    turns = _turns(pair)

    def likely(reading: Reading) -> int:
        return -sum(votes[kind][form] for kind, form in _forms(pair, reading, turns))

    plain = _first_plain(pair)
    best, least = None, _FAR
    for reading in sorted(there, key=likely):
        far = _far_from(own, fixed, reading.tensor, most)
        reading.tensor.release()
        # Another order of rows that fits no better than the plain one is no explanation.
        if far < least / (1 if reading is plain else 2) or (reading is plain and far < 2 * least):
            best, least = reading, far
        if least < _SAME:
            if not is_told or not reading.order or (equal := _is_equal(fixed, reading.tensor)) is None or equal:
                break
            # So few rows may fit several orders; the digest is of one.
            least = 2 * _SAME
    fixed.release()
    return best


def _is_of_fingerprint_rows(view: Tensor) -> bool:
    """True of rows of a fingerprint, which cannot be compared with another fingerprint."""
    is_of_rows = False
    while isinstance(view, (Slice, Transposed)):
        is_of_rows = is_of_rows or isinstance(view, Slice)
        view = view.of
    return is_of_rows and isinstance(view, Fingerprinted)


def _is_equal(fixed: Tensor, reading: Tensor) -> bool | None:
    """True if a fingerprint and a reading are equal but for rounding; ``None`` if digests do not tell."""
    try:
        return measure(fixed, reading).verdict in FINE
    except NotHeldError:
        return None


def _far_from(own: Array, fixed: Tensor, reading: Tensor, most: tuple[int, int]) -> float:
    """The distance of the samples of a tensor, which is `own`, and a reading of its counterpart."""
    if not rests_on_fingerprint(reading):
        return apart(own, sample(reading, most))
    one, other = facing(fixed, reading)
    try:
        return apart(sample(one), sample(other))
    except NotHeldError:
        return _of_common_rows(fixed, reading)


def _of_common_rows(fixed: Tensor, reading: Tensor) -> float:
    """The distance of the sampled rows of a fingerprint that a reading has; infinite if there are none."""
    found = None if rests_on_fingerprint(fixed) else rows_in(reading)
    if found is None:
        return math.inf
    whole, rows = found
    turned = isinstance(whole, Transposed)
    held = whole.of if isinstance(whole, Transposed) else whole
    if not isinstance(held, Fingerprinted) or (turned and len(held.shape) != 2):
        return math.inf
    sampled, columns = positions_of_sample(held.shape)
    few = sample(held).reshape(len(sampled), len(columns), -1)
    if turned:
        sampled, columns, few = columns, sampled, few.swapaxes(0, 1)
    places = {int(row): at for at, row in enumerate(rows)}
    common = [(number, places[row]) for number, row in enumerate(sampled) if row in places]
    if not common:
        return math.inf
    own = few[[number for number, _ in common]]
    lines = [decoded(fixed.rows(at, at + 1).reshape(-1)[columns], fixed.dtype).reshape(-1) for _, at in common]
    return apart(own.reshape(-1), np.concatenate(lines).astype(np.float64))


def _first_plain(pair: Pair) -> Reading | None:
    return next((each for each in pair.readings if not each.turned and not each.order), None)


def _usual(votes: Counter[object], declared: bool) -> object:
    """The most frequent form; of several that are, the plain one, or another if the families are two."""
    most = max(votes.values())
    tied = [form for form, count in votes.items() if count == most]
    return min(tied, key=lambda form: (bool(form) != declared, -_size(form)))


def _size(form: object) -> int:
    """The last number in a form: heads are larger for a query than if a key has them counted wrongly."""
    numbers = _DIGITS.findall(str(form))
    return int(numbers[-1]) if numbers else 0


def _choose(pair: Pair, own: Reading | None, usual: dict[str, object], declared: bool, alike: bool) -> None:
    """Choose a reading; `alike`: all parameters of the same name are read as `own`."""
    shape = (pair.other if pair.of_first else pair.one).tensor.shape  # type: ignore[union-attr]
    there = [each for each in pair.readings if each.tensor.shape == shape]
    if not there:
        return
    settled = next((each for each in there if _is_usual(pair, each, usual)), None)
    pair.reading = own or settled or there[0]
    if own is None or pair.wrong:
        return
    odd = not _is_usual(pair, own, usual)
    # A matrix that is no square cannot be stored as the transposed others are.
    if odd and (settled is not None or own.turned or own.order):
        # What all of one name have may be a layout, or a conversion that left out this name.
        all_of_it = "unlike the other parameters" if declared else _UNSAID
        pair.wrong = _wrong(own, all_of_it if alike else "unlike the others of its kind")
    elif not _is_said(pair, own, usual, declared):
        pair.wrong = _wrong(own, _UNSAID)


def _is_usual(pair: Pair, reading: Reading, usual: dict[str, object]) -> bool:
    return all(usual.get(kind, form) == form for kind, form in _forms(pair, reading, _turns(pair)))


def _wrong(reading: Reading, reason: str) -> str:
    words = "is the golden one, transposed" if reading.turned and not reading.order else ""
    return ", ".join(filter(None, (words, reason)))


def _is_said(pair: Pair, reading: Reading, usual: dict[str, object], declared: bool) -> bool:
    """True if something says that the two sides have different layouts of this kind."""
    assert pair.one is not None and pair.other is not None
    for kind, form in _forms(pair, reading, _turns(pair)):
        if not form or kind == f"qkv {False}":
            # How many parameters there are is itself a layout that the names say.
            continue
        if kind.startswith(("gate_up", "stack gate_up")):
            if form != INTERLEAVED or (_whole(pair) and not declared):
                return False
        elif form is True and (kind == "stack" or (kind == "linear" and _CONV1D.search(pair.one.name))):
            continue
        elif form is True and kind != "linear" and not usual.get("linear") and len(reading.tensor.shape) == 2:
            # One matrix outside of layers, where those in layers are not transposed.
            return False
        elif not declared:
            return False
    return True
