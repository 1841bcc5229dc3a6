"""Sentences on the layers of two models: which are identical, where the first difference is, which are exchanged."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from probe.checkpoint.names.scheme import layer_of
from probe.checkpoint.report import CLOSE, FINE, IDENTICAL, ROUNDING, Parameter
from probe.shards.split import numbers

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
        found += _of_stack(stack.rstrip("."), layers)
    bad = [each for each in outside if not each.is_fine]
    if outside:
        whole = f"all {len(outside)} parameters" if len(outside) > 1 else "the only parameter"
        shown = f"first difference {bad[0].shown}" if bad else f"{whole} {_state(outside)}"
        found.append(f"outside of layers: {shown}")
    return found


def _of_stack(stack: str, layers: dict[int, list[Parameter]]) -> list[str]:
    by_state: dict[str, list[int]] = defaultdict(list)
    for number in sorted(layers):
        by_state[_state(layers[number])].append(number)
    prefix = f"{stack}: " if stack else ""
    order = sorted(by_state, key=lambda state: by_state[state][0])
    text = ", ".join(
        f"layer{'s' if len(by_state[state]) > 1 else ''} {numbers(by_state[state])} {state}" for state in order
    )
    first = next((each for number in sorted(layers) for each in layers[number] if not each.is_fine), None)
    if first is not None:
        text += f"; first difference {_module(first.shown)}"
    return [f"{prefix}{text}", *_moved(layers, prefix)]


def _module(name: str) -> str:
    """The module that has a parameter."""
    path, dot, _ = name.rpartition(".")
    return path if dot else name


def _state(parameters: Sequence[Parameter]) -> str:
    worst = [each for each in parameters if not each.is_fine]
    if worst:
        return CLOSE if all(each.verdict == CLOSE for each in worst) else "different"
    return ROUNDING if any(each.verdict == ROUNDING for each in parameters) else IDENTICAL


def _moved(layers: dict[int, list[Parameter]], prefix: str) -> list[str]:
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
