"""Pairs of parameters that belong together: by a user's file, by name, by parts of one, and by values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from probe.checkpoint.pairing import layouts
from probe.checkpoint.pairing.layouts import gate_parts, plain_readings, qkv_parts, readings_of, rotary_orders
from probe.checkpoint.pairing.pairs import Pair, Reading, Side
from probe.checkpoint.pairing.proposals import propose
from probe.checkpoint.pairing.settling import settle
from probe.checkpoint.report import Checkpoint, CheckpointOptions
from probe.checkpoint.scheme import in_scheme, unwrapped
from probe.checkpoint.stored import Slice, Tensor, joined
from probe.common import log
from probe.common.align.name_mapping import load_names

_QKV = re.compile(r"^(?P<path>.*attention\.)qkv\.(?P<kind>.+)$")
_FC1 = re.compile(r"^(?P<path>.*(?:mlp|experts\.\d+|shared)\.)fc1\.(?P<kind>.+)$")
_STACK = re.compile(r"^(?P<path>.*experts\.)(?P<part>fc1|fc2|gate|up)\.(?P<kind>weight|bias)$")


class Split(NamedTuple):
    """A part of a parameter: which, and the ways to read it."""

    side: Side
    counterpart: Side | None
    """``None`` if the other side lacks this part alone."""
    readings: list[Reading]
    group: str = ""


def splits(
    fused: Mapping[str, Side], others: Mapping[str, Side], heads: tuple[int, int] | None, of_first: bool
) -> Iterator[tuple[Side, list[Split]]]:
    """The parameters of one side whose parts the other has, and the parts.

    Args:
        fused: what is left of one side, by names in the scheme.
        others: what is left of the other.
        of_first: True if `fused` is the first side.
    """
    for side in fused.values():
        found = list(_parts(side, others, heads, of_first))
        if any(split.counterpart is not None for split in found):
            yield side, found


def _parts(side: Side, others: Mapping[str, Side], heads: tuple[int, int] | None, of_first: bool) -> Iterator[Split]:
    qkv, fc1, stack = _QKV.match(side.key), _FC1.match(side.key), _STACK.match(side.key)
    if qkv is not None:
        keys = {which: f"{qkv['path']}{which}.{qkv['kind']}" for which in "qkv"}
        if keys["q"] not in others or keys["k"] not in others:
            return
        sizes = others[keys["q"]].tensor.row_count, others[keys["k"]].tensor.row_count
        for which, key in keys.items():
            readings = readings_of(side.tensor, qkv_parts(which, sizes, heads)) if key in others else []
            if which != "v":
                readings += [
                    Reading(f"{words}, {rotated}", Slice(tensor, ranges), turned, f"{order}; {form}")
                    for words, tensor, turned, order in readings
                    for form, rotated, ranges in rotary_orders(heads, of_first)(tensor)
                ]
            yield _split(side, key, others.get(key), readings, which, "qkv")
    elif fc1 is not None:
        keys = {which: f"{fc1['path']}{which}.{fc1['kind']}" for which in ("gate", "up")}
        only = others.get(keys["up"])
        if only is not None and keys["gate"] not in others and only.tensor.shape == side.tensor.shape:
            yield Split(side, only, plain_readings(side.tensor))
        elif only is not None or keys["gate"] in others:
            for which, key in keys.items():
                readings = readings_of(side.tensor, gate_parts(which)) if key in others else []
                yield _split(side, key, others.get(key), readings, which, "gate_up")
    elif stack is not None and len(side.tensor.shape) > 1:
        for number in range(side.tensor.shape[0]):
            key = f"{stack['path']}{number}.{stack['part']}.{stack['kind']}"
            one = Side(side.name, key, side.tensor.element(number), f"expert {number} of {side.name}")
            words = f"expert {number} of the stack"
            if key in others:
                parts = [Split(one, others[key], plain_readings(one.tensor))]
            else:
                parts = list(_parts(one, others, heads, of_first)) or [Split(one, None, [])]
            for split in parts:
                readings = [each._replace(words=f"{words}, {each.words}".rstrip(", ")) for each in split.readings]
                yield split._replace(readings=readings, group=f"stack {split.group}")


def _split(side: Side, key: str, other: Side | None, readings: list[Reading], which: str, group: str) -> Split:
    return Split(Side(side.name, key, side.tensor, f"{which} of {side.name}"), other, readings, group)


# --- matching


_ROTATED = ("attention.q.weight", "attention.k.weight", "attention.q.bias", "attention.k.bias")
"""Parameters whose rows are rotated in pairs, which are neighbours for some and halves of a head for others."""


def match(one: Checkpoint, other: Checkpoint, options: CheckpointOptions) -> list[Pair]:
    """The pairs of the weights of two checkpoints, each in its layout, and what is left without a counterpart.

    Raises:
        FileCheckException, MsprobeException: the file of names cannot be read.
    """
    left, right = _sides(one.weights), _sides(other.weights)
    found = _mapped(left, right, options.names)
    found += _by_name(left, right, lambda side: side.name)
    found += _by_name(left, right, lambda side: unwrapped(side.name))
    found += _by_name(left, right, lambda side: side.key)
    found += _by_ending(left, right)
    families = 2 * sum(map(_is_one_name, found)) < len(found)
    heads = layouts.heads_of(one.config, options.heads) or layouts.heads_of(other.config, options.heads)
    found += _by_parts(left, right, heads, True)
    found += _by_parts(right, left, heads, False)
    for pair in found:
        _join(pair, one, other)
        _add_readings(pair, heads)
    proposed = _take(left, right, propose(left, right))
    mine, its = layouts.rotary_of(one), layouts.rotary_of(other)
    rotary = (mine, its) if mine is not None and its is not None and mine != its else None
    settle([*found, *proposed], families or len(proposed) > len(found) or _declared(one, other), rotary)
    found += proposed + [Pair(side, None) for side in left]
    return found + [Pair(None, side) for side in right]


def _is_one_name(pair: Pair) -> bool:
    """True if two names differ by nothing but what stands in front of them, or ``.weight``."""
    assert pair.one is not None and pair.other is not None
    names = [unwrapped(side.name).removesuffix(".weight") for side in (pair.one, pair.other)]
    return names[0].endswith(names[1]) or names[1].endswith(names[0])


def _declared(one: Checkpoint, other: Checkpoint) -> bool:
    """True if formats or configurations say that two checkpoints may be stored in two layouts."""
    if one.container != other.container:
        return True
    types = one.config.get("model_type"), other.config.get("model_type")
    if None not in types and types[0] != types[1]:
        return True
    forms = [
        {
            key: value
            for key, value in {**side.settings, **side.config}.items()
            if layouts.ROTARY_FORM.search(key.lower())
        }
        for side in (one, other)
    ]
    return forms[0] != forms[1]


def _join(pair: Pair, one: Checkpoint, other: Checkpoint) -> None:
    """Join the parts that ranks hold along the dimension that gives the shape of the counterpart."""
    if pair.one is None or pair.other is None or pair.readings:
        return
    for side, content, wanted in ((pair.one, one, pair.other), (pair.other, other, pair.one)):
        if side.tensor.shape == wanted.tensor.shape:
            continue
        other_way = content.joined_otherwise.get(side.name)
        if other_way is not None and other_way.shape == wanted.tensor.shape:
            side.tensor = other_way
            break
        pieces = content.pieces.get(side.name)
        if pieces is None:
            continue
        for axis in range(len(pieces[0].shape)):
            if any(len(each.shape) <= axis for each in pieces):
                continue
            whole = joined(pieces, axis)
            if whole.shape == wanted.tensor.shape:
                side.tensor = whole
                content.replicas = [each for each in content.replicas if each[0] != side.name]
                break


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
    names = {side.key for side in left}, {side.key for side in right}
    counts = [(count, prefix, "") for prefix, count in _prefixes(names[0], names[1]).items()]
    counts += ((count, "", prefix) for prefix, count in _prefixes(names[1], names[0]).items())
    best = max(counts, default=(0, "", ""))
    if not best[0]:
        return []
    ones = {side.key[len(best[1]) :]: side for side in left if side.key.startswith(best[1])}
    others = {side.key[len(best[2]) :]: side for side in right if side.key.startswith(best[2])}
    return _take(left, right, [Pair(side, others[key]) for key, side in ones.items() if key in others])


def _prefixes(names: set[str], others: set[str]) -> Counter[str]:
    """The number of names that are one of the others without a prefix of up to three words, by prefix."""
    found: Counter[str] = Counter()
    for name in names:
        rest, prefix = name, ""
        for _ in range(3):
            word, dot, rest = rest.partition(".")
            prefix += word + dot
            found[prefix] += bool(dot) and rest in others
    return found


def _by_parts(fused: list[Side], others: list[Side], heads: tuple[int, int] | None, of_first: bool) -> list[Pair]:
    """Pairs of the parts of parameters that one side has as one."""
    by_key = {side.key: side for side in others}
    pairs: list[Pair] = []
    used: list[Side] = []
    for side, parts in splits({each.key: each for each in fused}, by_key, heads, of_first):
        used.append(side)
        for part, counterpart, readings, group in parts:
            one, other = (part, counterpart) if of_first else (counterpart, part)
            pairs.append(Pair(one, other, readings if counterpart else (), of_first, group))
            if counterpart is not None:
                used.append(counterpart)
    _remove(fused, used)
    _remove(others, used)
    return pairs


def _add_readings(pair: Pair, heads: tuple[int, int] | None) -> None:
    """Other ways to read the second side, for a pair that is compared as a whole."""
    if pair.readings or pair.one is None or pair.other is None:
        return
    other = pair.other.tensor
    if ".qkv." in pair.key:
        pair.group, pair.readings = "qkv", layouts.whole_readings(other, layouts.qkv_orders(heads))
    elif ".fc1." in pair.key:
        pair.group, pair.readings = "gate_up", layouts.whole_readings(other, layouts.gate_orders)
    elif pair.key.endswith(_ROTATED):
        pair.group, pair.readings = "rotary", layouts.whole_readings(other, layouts.rotary_orders(heads))
    else:
        pair.readings = layouts.plain_readings(other)
