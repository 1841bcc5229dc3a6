"""Sentences on parameters and layers that differ.

What one holds instead, what was done to it, where the first difference is.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from probe.checkpoint.fingerprints.entry import Fingerprinted, is_whole
from probe.checkpoint.fingerprints.judging import measure
from probe.checkpoint.fingerprints.telling import changes
from probe.checkpoint.measuring import Seen, is_complex
from probe.checkpoint.pairing.pairs import Pair
from probe.checkpoint.report import CLOSE, DIFFERENT, FINE, IDENTICAL, MISSING, ROUNDING, UNKNOWN, Parameter
from probe.checkpoint.sampling import SLACK, Samples, apart, sample
from probe.checkpoint.scheme import Layer, layer_of
from probe.checkpoint.stored import Array, Shape, Tensor
from probe.common.numerics.formats import format_of
from probe.common.numerics.rounding import decoded
from probe.common.ranges import ranges

_NEAR = 0.07
"""The distance below which a sample may be of the same parameter; rounding to eight bits changes it by 1 in 16."""
_MOST = 2000
"""Parameters of one shape among which another is looked for. A guess: their samples take 2 MB."""
_LARGEST = 1 << 28
"""Bytes of a parameter that is looked at as a whole."""
_MOST_TOLD = 50
"""Parameters that are read as a whole, once more; a text shows 20."""
_BEGIN = 8
"""Numbers at the beginning of a row that are compared before the whole row; a guess."""
_SUFFIX = re.compile(r"\.(weight|gamma)$")


class _Held:
    """A parameter of one side, as it is compared."""

    def __init__(self, pair: Pair, tensor: Tensor, name: str) -> None:
        self.tensor, self.key, self.name = tensor, pair.key, name
        # Where the names of both sides do not say it.
        self.stored = f" (`{pair.other.name}`)" if pair.how and pair.other is not None else ""
        self.layer = layer_of(pair.key)


class _Golden:
    """The parameters of one shape of the second side, all real or all complex."""

    def __init__(self) -> None:
        self.members: list[_Held] = []
        self._samples: Samples | None = None

    def near(self, own: Array, key: str, most: float) -> list[tuple[float, _Held]]:
        """The parameters but that of `key` whose samples are at most so far away, with their distances."""
        if not self.members:
            return []
        if self._samples is None:
            samples = []
            for each in self.members[:_MOST]:
                samples.append(sample(each.tensor))
                each.tensor.release()
            self._samples = Samples(samples)
        rows = self._samples.rows
        found = []
        for index in np.flatnonzero(~(self._samples.about(own) > most + SLACK)).tolist():
            if self.members[index].key != key and (far := apart(rows[index], own)) <= most:
                found.append((far, self.members[index]))
        return found


def explain(rows: Sequence[tuple[Parameter, Pair]]) -> None:
    """Add to each row that differs, or that the second side lacks, what it holds instead."""
    golden: dict[tuple[Shape, bool], _Golden] = defaultdict(_Golden)
    labels = _labels([pair for _, pair in rows])
    for _, pair in rows:
        if pair.other is not None:
            tensor = pair.tensors[1] if pair.one is not None else pair.other.tensor
            if not is_whole(tensor):
                continue
            golden[tensor.shape, is_complex(tensor)].members.append(_Held(pair, tensor, labels[id(pair)]))
    told = 0
    for row, pair in rows:
        if pair.one is None or row.harmless or pair.wrong or row.verdict not in (DIFFERENT, MISSING):
            continue
        if row.verdict == DIFFERENT and row.numbers.get("max_abs") == 0:
            continue
        one = pair.tensors[0] if pair.other is not None else pair.one.tensor
        if not is_whole(one):
            continue
        words = _held(one, pair, golden[one.shape, is_complex(one)], row)
        if not words and pair.other is not None and told < _MOST_TOLD:
            told += 1
            other = pair.tensors[1]
            words = "; ".join(_done(one, other, pair.key, pair.seen))
            words = words or _tied(pair, golden[other.shape, is_complex(other)])
        row.how = "; ".join(filter(None, (row.how, words)))


def _labels(pairs: Sequence[Pair]) -> dict[int, str]:
    """A short name for each parameter: the last of its words that no other of its layer has."""
    found: dict[int, str] = {}
    seen: dict[object, Counter[str]] = defaultdict(Counter)
    for pair in pairs:
        # The side that has the parameter alone has the better name for it.
        side = pair.other if pair.other is not None and not pair.other.part else pair.one or pair.other
        assert side is not None
        layer, key = layer_of(side.name), layer_of(pair.key)
        name = _SUFFIX.sub("", layer.part if layer is not None and key is not None else side.name)
        found[id(pair)] = name
        seen[key and (key.stack, key.number)][_last(name)] += 1
    for pair in pairs:
        name, key = found[id(pair)], layer_of(pair.key)
        if seen[key and (key.stack, key.number)][_last(name)] == 1:
            found[id(pair)] = _last(name)
    return found


def _last(name: str) -> str:
    """The last word, with ``.bias`` if it ends so."""
    words = name.split(".")
    return ".".join(words[-2:]) if words[-1] == "bias" else words[-1]


def _held(one: Tensor, pair: Pair, golden: _Golden, row: Parameter) -> str:
    """The parameter of the second side that the first one holds instead of its own."""
    own = sample(one)
    if not own.size or not np.isfinite(own).all() or np.all(own == own[0]):
        return ""
    numbers = row.numbers.get("relative_l2", math.inf)
    near = min(_NEAR, numbers if numbers == numbers else math.inf)
    layer = layer_of(pair.key)
    found = [(far, each) for far, each in golden.near(own, pair.key, near) if far < near]

    def unlikely(each: tuple[float, _Held]) -> tuple[bool, bool, float]:
        there = each[1].layer
        same = layer is not None and there is not None and there.number == layer.number
        return not same, not (layer and there and there.part == layer.part), each[0]

    for _, each in sorted(found, key=unlikely)[:4]:
        measured = measure(one, each.tensor)
        if measured.verdict in FINE:
            return "; ".join(filter(None, (_place(each, layer), measured.how)))
    return ""


def _place(each: _Held, mine: Layer | None) -> str:
    there = each.layer
    if there is None:
        return f"holds the golden `{each.name}`"
    if mine is not None and there.part == mine.part:
        return f"layer {there.number} of the other side{each.stored}"
    same = mine is not None and (mine.stack, mine.number) == (there.stack, there.number)
    return f"holds the golden `{each.name}` of {'the same layer' if same else f'layer {there.number}'}"


def _tied(pair: Pair, golden: _Golden) -> str:
    """Another golden parameter that is the golden one, too."""
    other = pair.tensors[1]
    if len(other.shape) < 2 or not is_whole(other):
        return ""
    for _, each in golden.near(sample(other), pair.key, 0):
        if measure(each.tensor, other).verdict in FINE:
            return f"the golden one is the golden `{each.name}`, too (tied)"
    return ""


def _done(one: Tensor, other: Tensor, key: str, seen: Seen | None) -> Iterator[str]:
    """A change of all numbers of a parameter, or of the order of its rows; read again only if `seen` leaves it open."""
    if one.shape != other.shape or max(one.nbytes, other.nbytes) > _LARGEST or not one.size:
        return
    if any(is_complex(each) or format_of(each.dtype) is None for each in (one, other)):
        return
    if not is_whole(one) or not is_whole(other):
        return
    if isinstance(one, Fingerprinted) or isinstance(other, Fingerprinted):
        yield from changes(one, other)
        return
    if seen is not None and not seen.has_zeros_alone:
        if seen.is_multiple and seen.factor:
            yield f"{seen.factor:.6g} times the golden"
            return
        if not seen.may_be_moved and (len(one.shape) < 2 or 2 * seen.other_rows > one.shape[0]):
            return
    left, right = ((decoded(each.read().reshape(-1), each.dtype)).reshape(each.shape) for each in (one, other))
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        bad = ~np.isfinite(left), ~np.isfinite(right)
        if not np.array_equal(np.where(bad[0], left, 0), np.where(bad[1], right, 0), equal_nan=True):
            count, golden = (int(each.sum()) for each in bad)
            verb = "is" if count == 1 else "are"
            yield f"{count} of {left.size} values {verb} NaN or infinite (golden: {golden})"
            return
        # Both have them at the same places, so they are no difference.
        left, right = np.where(bad[0], 0, left), np.where(bad[1], 0, right)
        if bad[0].all():
            return
    for values, words in ((left, "all values are zero"), (right, "all golden values are zero")):
        if not values.any():
            yield words
            return
    for turned in (False, True) if left.ndim == 2 else (False,):
        moved = _moved(left.T if turned else left, right.T if turned else right)
        if moved is not None:
            noun = "expert" if ".experts." in key and left.ndim == 3 else "column" if turned else "row"
            yield _order(moved, noun)
            return
    if left.ndim > 1:
        differ = np.flatnonzero((left != right).reshape(len(left), -1).any(1))
        if 0 < differ.size <= len(left) // 2:
            verb = "differs" if differ.size == 1 else "differ"
            yield f"{differ.size} of {len(left)} rows {verb}, first row {int(differ[0])}"


def _moved(left: Array, right: Array) -> Array | None:
    """For each row the one of the other side that has the same numbers, if they are the same rows."""
    if left.ndim < 1 or len(left) < 2:
        return None
    # Nearly all are other rows, which their beginnings tell.
    begins, others = (
        {row.tobytes() for row in (each if each.ndim == 2 else each.reshape(len(each), -1))[:, :_BEGIN]}
        for each in (left, right)
    )
    if begins != others:
        return None
    where: dict[bytes, list[int]] = defaultdict(list)
    for at, row in enumerate(np.ascontiguousarray(right)):
        where[row.tobytes()].append(at)
    found = []
    for at, row in enumerate(np.ascontiguousarray(left)):
        places = where.get(row.tobytes())
        if not places:
            return None
        found.append(places.pop(places.index(at) if at in places else 0))
    return np.array(found)


def _order(moved: Array, noun: str) -> str:
    """The order of rows in words."""
    count, places = len(moved), np.arange(len(moved))
    away = np.flatnonzero(moved != places)
    shift = int((places[0] - moved[0]) % count)
    if np.array_equal(moved, (places - shift) % count) and count > 2:
        shift = shift if shift <= count // 2 else shift - count
        half = ", so that its halves are swapped" if 2 * shift == count else ""
        return f"{noun}s are rolled by {shift}{half}"
    if len(away) == 2:
        return f"{noun}s {away[0]} and {away[1]} are exchanged"
    if np.array_equal(moved, places[::-1]):
        return f"{noun}s are in reverse order"
    return f"{noun}s in another order: {noun} {away[0]} is the golden {noun} {moved[away[0]]}"


# --- layers


_ELSEWHERE = re.compile(r"(?:^|; )layer (\d+) of the other side")


def summarise(parameters: Sequence[Parameter]) -> list[str]:
    """Sentences on the layers of each stack, and on the parameters outside of layers."""
    stacks: dict[str, dict[int, list[Parameter]]] = defaultdict(lambda: defaultdict(list))
    outside = []
    for each in parameters:
        layer = layer_of(each.key)
        if layer is None:
            outside.append(each)
        else:
            stacks[layer.stack][layer.number].append(each)
    found = []
    for stack, layers in stacks.items():
        found += _stack_sentences(stack.rstrip("."), layers)
    bad = [each for each in outside if not each.is_fine]
    if outside:
        whole = f"all {len(outside)} parameters" if len(outside) > 1 else "1 parameter,"
        shown = _first_of(bad) if bad else f"{whole} {_state(outside)}"
        found.append(f"outside of layers: {shown}")
    return found


def _stack_sentences(stack: str, layers: dict[int, list[Parameter]]) -> list[str]:
    by_state: dict[str, list[int]] = defaultdict(list)
    for number in sorted(layers):
        by_state[_state(layers[number])].append(number)
    prefix = f"{stack}: " if stack else ""
    order = sorted(by_state, key=lambda state: by_state[state][0])
    text = ", ".join(
        f"layer{'s' if len(by_state[state]) > 1 else ''} {ranges(by_state[state])} {state}" for state in order
    )
    bad = [each for number in sorted(layers) for each in layers[number] if not each.is_fine]
    if bad:
        text += f"; {_first_of(bad, _module)}"
    return [f"{prefix}{text}", *_moved_layers(layers, prefix)]


def _first_of(bad: Sequence[Parameter], named: Callable[[str], str] = str) -> str:
    """The first parameter that differs, or else the first that cannot be told, in words."""
    differs = next((each for each in bad if each.verdict != UNKNOWN), None)
    if differs is not None:
        return f"first difference {named(differs.shown)}"
    return f"the first that cannot be told is {named(bad[0].shown)}"


def _module(name: str) -> str:
    """The module that has a parameter."""
    path, dot, _ = name.rpartition(".")
    return path if dot else name


def _state(parameters: Sequence[Parameter]) -> str:
    worst = [each for each in parameters if not each.is_fine]
    if worst:
        verdicts = {each.verdict for each in worst}
        return verdicts.pop() if verdicts in ({CLOSE}, {UNKNOWN}) else DIFFERENT
    return ROUNDING if any(each.verdict == ROUNDING for each in parameters) else IDENTICAL


def _moved_layers(layers: dict[int, list[Parameter]], prefix: str) -> list[str]:
    """Layers that are others of the second side as a whole."""
    moved: dict[int, int] = {}
    for number, parameters in layers.items():
        bad = [each for each in parameters if each.verdict not in FINE and not each.harmless]
        places = {int(found[1]) if (found := _ELSEWHERE.search(each.how)) else -1 for each in bad}
        if bad and len(places) == 1 and -1 not in places:
            moved[number] = places.pop()
    said = []
    for number, place in sorted(moved.items()):
        if moved.get(place) == number and number < place:
            said.append(f"{prefix}layers {number} and {place} are exchanged")
        elif moved.get(place) != number:
            said.append(f"{prefix}layer {number} is layer {place} of the other side")
    return said
