"""Lists of the functions that are recorded, as a backend's ``api_list.yaml`` writes them down, and their risk classes.

A list holds families: ``prefix`` is the first part of a record's name, ``names`` are looked up on the owner that the
backend gives for the family. What the installed framework does not have is left out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable

from probe.common.interfaces import ApiName

_RISK_LEVELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "risk_levels.yaml")


@dataclass(frozen=True)
class P2POp:
    """A receive of a batch before the call, which alone fills its tensor."""

    op: Any
    peer: Any
    group: Any
    tag: Any
    tensor: None = None


def _without_received(argument: Any) -> Any:
    """The sends and receives of a batch as they are before the call."""
    if not isinstance(argument, (list, tuple)):
        return argument
    return [
        P2POp(each.op, each.peer, each.group, each.tag) if "recv" in _operation(each) else each for each in argument
    ]


def _operation(value: Any) -> str:
    """``isend`` or ``irecv`` of an operation of a batch, which is given as a function or by its name."""
    operation = getattr(value, "op", "") if type(value).__name__ == "P2POp" else ""
    return str(getattr(operation, "__name__", operation))


@dataclass(frozen=True)
class Watched:
    """A function and where it is found."""

    owner: Any
    attribute: str
    function: Any
    name: ApiName


def load(path: str) -> Any:
    """The content of a yaml file."""
    import yaml  # at the first call: a program that records modules alone makes its debugger without it

    with open(path, encoding="utf-8") as stream:
        return yaml.load(stream, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def watched(path: str, owners: Mapping[str, Any], in_place: Collection[str] = ()) -> dict[str, list[Watched]]:
    """Every function of the list at `path` that exists, by family.

    Args:
        path: The yaml file.
        owners: Where the names of each family are looked up; a family without an owner is left out.
        in_place: Families of collectives that write their result into an argument, called as in torch.distributed.
    """
    families: dict[str, list[Watched]] = {}
    for family, content in load(path).items():
        if family not in owners:
            continue
        found = families[family] = []
        for dotted in content["names"]:
            *parts, attribute = dotted.split(".")
            owner = functools.reduce(lambda at, part: getattr(at, part, None), parts, owners[family])
            function = getattr(owner, attribute, None)
            if function is not None:
                name = _name(content["prefix"], attribute, family in in_place)
                found.append(Watched(owner, attribute, function, name))
    return families


def full_name(owner: Any, attribute: str) -> str:
    """A function by its module or class: ``torch.linalg.svd``, ``torch.Tensor.add``."""
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{attribute}"
    return f"{getattr(owner, '__name__', type(owner).__name__)}.{attribute}"


def told_apart(
    families: Mapping[str, list[Watched]], is_removed: Callable[[Watched], bool] = lambda each: False
) -> dict[str, list[Watched]]:
    """The functions, each with names of its own: its full name as well, where another one has its name in records.

    The name stands for the function with the shortest full name: of ``torch.svd`` and ``torch.linalg.svd``, which
    are both recorded as ``Torch.svd``, for the first.

    Args:
        families: All functions that are recorded.
        is_removed: True of a function that is only a message by now. No name stands for it.
    """
    first: dict[str, Watched] = {}
    everything = (each for functions in families.values() for each in functions if not is_removed(each))
    for each in sorted(everything, key=lambda each: full_name(each.owner, each.attribute).count(".")):
        first.setdefault(each.name.base, each)

    def told(each: Watched) -> Watched:
        named = first.get(each.name.base, each)
        if named.function is each.function or is_removed(each):
            return each
        return replace(each, name=replace(each.name, function=full_name(each.owner, each.attribute)))

    return {family: [told(each) for each in functions] for family, functions in families.items()}


def custom_name(owner: Any, attribute: str, prefix: str, families: Mapping[str, list[Watched]]) -> ApiName:
    """The name of a function that a user registers, told apart from that of the framework if they are one."""
    base = f"{prefix}.{attribute}"
    others = [each for functions in families.values() for each in functions if each.name.base == base]
    own = [each.name.function for each in others if each.function is getattr(owner, attribute)]
    return ApiName(base, attribute, function=own[0] if own else full_name(owner, attribute) if others else "")


Places = Mapping[tuple[str, str], tuple[Any, str]]
"""Owner and attribute of a function by its name in records and, where that is another one's, its full name."""


def places(families: Mapping[str, Sequence[Watched]], left_out: Collection[str]) -> Places:
    """The owner and name of each function, without the families `left_out`; of equal names the first counts."""
    found: dict[tuple[str, str], tuple[Any, str]] = {}
    for family, functions in families.items():
        if family not in left_out:
            for each in functions:
                found.setdefault((each.name.base, each.name.function), (each.owner, each.attribute))
    return found


def as_now(families: Mapping[str, list[Watched]]) -> dict[str, list[Watched]]:
    """The watched functions that are there now: a user may have replaced some, or put them back."""
    return {
        family: [replace(one, function=getattr(one.owner, one.attribute, one.function)) for one in functions]
        for family, functions in families.items()
    }


def _name(prefix: str, api: str, in_place: bool) -> ApiName:
    if in_place:
        known_before = _without_received if api == "batch_isend_irecv" else None
        return ApiName(f"{prefix}.{api}", api, _filled(api), known_before, returns_arguments=True)
    return ApiName(f"{prefix}.{api}", api)


def _filled(api: str) -> tuple[Any, ...]:
    """The arguments that only the call fills, by position and by keyword."""
    from probe.common.collectives.calls import IN_PLACE

    known = IN_PLACE.get(api)
    return () if known is None else tuple(each for name in known.fills for each in (known.arguments.index(name), name))


@functools.cache
def _risk_classes() -> dict[str, str]:
    classes: dict[str, str] = {}
    for risk, prefixes in load(_RISK_LEVELS).items():
        for prefix, names in prefixes.items():
            classes.update((f"{prefix}.{name}", risk) for name in names)
    return classes


def risk_class(base: str, prefixes: Mapping[str, tuple[str, ...]]) -> str:
    """``core``, ``low`` or ``middle`` of ``Prefix.api``; what a user registered is always ``core``.

    Args:
        base: The name without numbers.
        prefixes: Prefix of a family, and under which prefixes of ``risk_levels.yaml`` its names stand; the first
            that has the name counts. Any other prefix is one of the user's.
    """
    prefix, _, api = base.partition(".")
    if prefix not in prefixes:
        return "core"
    classes: list[str | None] = [_risk_classes().get(f"{like}.{api}") for like in prefixes[prefix]]
    return next((found for found in classes if found is not None), "middle")
