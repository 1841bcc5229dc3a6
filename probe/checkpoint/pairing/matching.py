"""Pairs of parameters that belong together: by a user's file, by name, by parts of one, and by values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from probe.checkpoint.content import Checkpoint
from probe.checkpoint.names.scheme import in_scheme, unwrapped
from probe.checkpoint.options import CheckpointOptions
from probe.checkpoint.pairing import layouts
from probe.checkpoint.pairing.pairs import Pair, Side
from probe.checkpoint.pairing.proposals import propose
from probe.checkpoint.pairing.splitting import Split, splits
from probe.checkpoint.stored.tensors import Tensor, Transposed
from probe.common import log
from probe.common.align.mapping_files import load_names

_ROTATED = ("attention.q.weight", "attention.k.weight", "attention.q.bias", "attention.k.bias")
"""Parameters whose rows are rotated in pairs, which are neighbours for some and halves of a head for others."""


def match(one: Checkpoint, other: Checkpoint, options: CheckpointOptions) -> list[Pair]:
    """The pairs of the weights of two checkpoints, and what is left without a counterpart.

    Raises:
        FileCheckException, MsprobeException: the file of names cannot be read.
    """
    left, right = _sides(one.weights), _sides(other.weights)
    found = _mapped(left, right, options.names)
    found += _by_name(left, right, lambda side: side.name)
    found += _by_name(left, right, lambda side: unwrapped(side.name))
    found += _by_name(left, right, lambda side: side.key)
    found += _by_ending(left, right)
    heads = layouts.heads_of(one.config, options.heads) or layouts.heads_of(other.config, options.heads)
    found += _by_parts(left, right, heads, False)
    found += _by_parts(right, left, heads, True)
    for pair in found:
        _add_readings(pair, heads)
    found += _proposed(left, right)
    found += [Pair(side, None) for side in left] + [Pair(None, side) for side in right]
    return found


def _sides(weights: Mapping[str, Tensor]) -> list[Side]:
    keys = in_scheme(list(weights))
    return [Side(name, keys[name], tensor) for name, tensor in weights.items()]


def _remove(sides: list[Side], gone: Sequence[Side]) -> None:
    ids = {id(side) for side in gone}
    sides[:] = [side for side in sides if id(side) not in ids]


def _take(left: list[Side], right: list[Side], pairs: list[Pair]) -> list[Pair]:
    _remove(left, [pair.one for pair in pairs if pair.one is not None])
    _remove(right, [pair.other for pair in pairs if pair.other is not None])
    return pairs


def _mapped(left: list[Side], right: list[Side], path: str | None) -> list[Pair]:
    """Pairs of a file in which the user names them; what it names and is not there is said."""
    if path is None:
        return []
    ones, others = {side.name: side for side in left}, {side.name: side for side in right}
    names = load_names(path)
    unused = [name for name, to in names.items() if name not in ones or to not in others]
    if unused:
        log.warning(
            f"{path}: {len(unused)} of {len(names)} pairs have a name that its checkpoint lacks, such as "
            f"{unused[0]}: {names[unused[0]]}. These pairs have no effect."
        )
    pairs = [
        Pair(ones[name], others[to], how=["paired by --map"])
        for name, to in names.items()
        if name in ones and to in others
    ]
    return _take(left, right, pairs)


def _by_name(left: list[Side], right: list[Side], key: Callable[[Side], str]) -> list[Pair]:
    others = {key(side): side for side in right}
    pairs = []
    for side in left:
        other = others.pop(key(side), None)
        if other is not None:
            pairs.append(Pair(side, other))
    return _take(left, right, pairs)


def _by_ending(left: list[Side], right: list[Side]) -> list[Pair]:
    """Pairs whose names differ by what stands in front of all of them: ``model.``, ``transformer.`` and the like."""
    best: tuple[int, str, str] = (0, "", "")
    names = {side.key for side in left}, {side.key for side in right}
    for prefix in _prefixes(names[0]):
        count = sum(key[len(prefix) :] in names[1] for key in names[0] if key.startswith(prefix))
        best = max(best, (count, prefix, ""))
    for prefix in _prefixes(names[1]):
        count = sum(key[len(prefix) :] in names[0] for key in names[1] if key.startswith(prefix))
        best = max(best, (count, "", prefix))
    if not best[0]:
        return []
    ones = {side.key[len(best[1]) :]: side for side in left if side.key.startswith(best[1])}
    others = {side.key[len(best[2]) :]: side for side in right if side.key.startswith(best[2])}
    return _take(left, right, [Pair(side, others[key]) for key, side in ones.items() if key in others])


def _prefixes(names: set[str]) -> set[str]:
    found: set[str] = set()
    for name in names:
        parts = name.split(".")
        found.update(".".join(parts[:count]) + "." for count in (1, 2, 3) if len(parts) > count)
    return found


def _by_parts(fused: list[Side], others: list[Side], heads: tuple[int, int] | None, swapped: bool) -> list[Pair]:
    """Pairs of the parts of parameters that one side has as one."""
    by_key = {side.key: side for side in others}
    pairs: list[Pair] = []
    used: list[Side] = []
    for side, parts in splits({each.key: each for each in fused}, by_key, heads):
        used.append(side)
        for split in parts:
            pairs.append(_pair_of(split, swapped))
            if split.counterpart is not None:
                used.append(split.counterpart)
    _remove(fused, used)
    _remove(others, used)
    return pairs


def _pair_of(split: Split, swapped: bool) -> Pair:
    readings = () if split.counterpart is None else split.readings
    if swapped:
        return Pair(split.counterpart, split.side, other_readings=readings)
    return Pair(split.side, split.counterpart, readings=readings)


def _add_readings(pair: Pair, heads: tuple[int, int] | None) -> None:
    """Other ways to read the second side, for a pair that is compared as a whole."""
    if pair.readings or pair.other_readings or pair.one is None or pair.other is None:
        return
    other = pair.other.tensor
    readings = [("", other), *layouts.turned_readings(other)]
    if ".qkv." in pair.key:
        readings += _both_ways(other, lambda each: layouts.qkv_orders(each, heads))
    elif ".fc1." in pair.key:
        readings += _both_ways(other, layouts.gate_orders)
    elif pair.key.endswith(_ROTATED):
        readings += layouts.rotary_orders(other, heads)
    pair.other_readings = readings


def _both_ways(tensor: Tensor, orders: Callable[[Tensor], Iterable[tuple[str, Tensor]]]) -> list[tuple[str, Tensor]]:
    """Other orders of the rows of a matrix, and of its columns where the other side has it transposed."""
    found = list(orders(tensor))
    if len(tensor.shape) == 2:
        found += [(f"transposed, {words}", Transposed(each)) for words, each in orders(tensor)]
        found += [(f"transposed, {words}", each) for words, each in orders(Transposed(tensor))]
    return found


def _proposed(left: list[Side], right: list[Side]) -> list[Pair]:
    pairs = []
    for proposal in propose(left, right):
        if proposal.by_order:
            words = "paired by shape and order (values fit several)"
        else:
            words = f"paired by values (confidence {proposal.confidence:.2f})"
        other = proposal.other.tensor
        readings = [("", other), *layouts.turned_readings(other)]
        pairs.append(Pair(proposal.one, proposal.other, other_readings=readings, how=[words]))
    return _take(left, right, pairs)
