"""One scheme for the names of all families, in which parameters of two checkpoints are looked for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from probe.common.data_files import load_yaml

_LAYER = re.compile(r"^(?P<path>(?:.*?\.)?)(?:layers|layer|h|blocks|block|resblocks)\.(?P<number>\d+)\.(?P<rest>.+)$")
_NUMBERED = re.compile(
    r"^(?P<path>(?:.*?[./])?(?:[A-Za-z_]+[./]|[A-Za-z]*(?:blk|block|layer)s?_?))(?P<number>\d+)[./](?P<rest>(?!\d+[./]).+)$"
)
"""Layers under a name that nobody knows."""
_KINDS = (".weight", ".bias", ".gamma", ".beta")
_STACKS = ("encoder", "decoder")
_ORDER = ("embed", "position", "encoder", "layers", "decoder")


class Rules(NamedTuple):
    """The rules that apply to a checkpoint."""

    family: str
    layer: Sequence[tuple[re.Pattern[str], str]]
    model: Sequence[tuple[re.Pattern[str], str]]


NONE = Rules("none", (), ())


@cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = load_yaml(os.path.join(os.path.dirname(os.path.abspath(__file__)), "families.yaml"))
    return found


def _compiled(pairs: Iterable[Sequence[str]]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in pairs]


def is_computed(name: str) -> bool:
    """True of a buffer that follows from the configuration and is not trained."""
    return re.search(_tables()["computed"], name) is not None


def unwrapped(name: str) -> str:
    """The name without those of modules that wrap a model: DDP, FSDP, `torch.compile`, checkpointing."""
    for pattern in _tables()["wrappers"]:
        name = re.sub(pattern, "", name)
    return name


def rules_for(names: Iterable[str]) -> Rules:
    """The rules of the family that the names are from."""
    text = "\n".join(names)
    tables = _tables()
    for family in tables["families"]:
        if all(re.search(pattern, text) for pattern in family["when"]):
            layer = [*family.get("layer", ()), *tables["layer"]]
            return Rules(family["family"], _compiled(layer), _compiled([*family.get("model", ()), *tables["model"]]))
    raise AssertionError("the last family has no condition")


def in_scheme(names: Sequence[str]) -> dict[str, str]:
    """The name in the scheme for each name of a checkpoint.

    Example:
        >>> in_scheme(["model.layers.0.self_attn.q_proj.weight"])
        {'model.layers.0.self_attn.q_proj.weight': 'layers.0.attention.q.weight'}
    """
    rules = rules_for(names)
    plain = {name: unwrapped(name) for name in names}
    stacks = {match["path"] for name in plain.values() if (match := _LAYER.match(name))}
    found: dict[str, str] = {}
    used: set[str] = set()
    for name, bare in plain.items():
        key = _named(bare, rules, stacks)
        if key == _named(bare, NONE, stacks) and not bare.endswith(_KINDS):
            # Some leave out ``.weight``.
            key = _named(f"{bare}.weight", rules, stacks)
        # Two of one name would be a guess.
        found[name] = bare if key in used else key
        used.add(key)
    return found


def _named(name: str, rules: Rules, stacks: set[str]) -> str:
    match = _LAYER.match(name)
    if match is None:
        return _replaced(name, rules.model, first=True)
    rest = _replaced(match["rest"], rules.layer, first=False)
    return f"{_stack(match['path'], stacks)}layers.{match['number']}.{rest}"


def _replaced(name: str, pairs: Sequence[tuple[re.Pattern[str], str]], first: bool) -> str:
    for pattern, replacement in pairs:
        found = pattern.sub(replacement, name)
        if found != name and first:
            return found
        name = found
    return name


def _stack(path: str, stacks: set[str]) -> str:
    """Part of a name that tells one stack of layers from the others; empty if there is only one."""
    if len(stacks) < 2:
        return ""
    words = path.rstrip(".").split(".")
    others = [other.rstrip(".").split(".") for other in stacks]
    while len(words) > 1 and all(words[0] == other[0] for other in others if other):
        words, others = words[1:], [other[1:] for other in others]
    return f"{'.'.join(words)}." if words != [""] else ""


class Layer(NamedTuple):
    """The layer that a name in the scheme is in."""

    stack: str
    number: int
    part: str


def layer_of(key: str) -> Layer | None:
    """The layer of a name in the scheme; ``None`` outside of layers."""
    match = _LAYER.match(key) or _NUMBERED.match(key)
    return None if match is None else Layer(match["path"], int(match["number"]), match["rest"])


def is_known(key: str) -> bool:
    """True if a name has a layer, or a part of a model that the scheme knows."""
    return _LAYER.match(key) is not None or key.partition(".")[0] in ("embed", "position", "norm", "head")


def order_of(key: str) -> tuple[int, str, int]:
    """The position in the order of a model: embedding, layers, what follows them."""
    layer = layer_of(key)
    if layer is not None:
        return 2 + (layer.stack.startswith(_STACKS[1])), layer.stack, layer.number
    first = key.partition(".")[0]
    if first in ("embed", "position", "embedding", "embeddings", "shared"):
        return 0, "", 0
    return {"norm": 6, "head": 7}.get(first, 5), "", 0
