"""Hyper-parameters, whatever their names are in the two programs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from probe.configcheck.findings import ERROR, INFO, WARNING, Check, Finding
from probe.configcheck.hyper.shell import LAUNCHER
from probe.configcheck.tables import (
    ALIASES,
    DTYPE_FLAGS,
    HYPERPARAMETER_WHY,
    OTHER_HYPERPARAMETER,
    WITHOUT_EFFECT,
)
from probe.configcheck.values import are_equal, plain_value

_LEAST_SIMILARITY = 0.85
"""Names below it are not taken for the same; msProbe pairs ``lr_warmup_iters`` with ``lr_warmup_iterations``, 0.857."""
_DTYPE = "compute_dtype"
_SAME_MEANING = "another name of the same setting"
_ONE_SIDE = "the other run uses its default, which is not in the pack"


def _pure(name: str) -> str:
    return re.sub(r"[-_]", "", name.rpartition(".")[2].lower())


_GROUPS = {_pure(name): group for group, names in ALIASES for name in (group, *names)}


def _group(name: str) -> str:
    """The meaning of a name, if it is one of a known group; otherwise empty."""
    return _GROUPS.get(_pure(name), "")


def check_hyperparameters(golden: Mapping[str, Any], target: Mapping[str, Any]) -> Check:
    """Compare settings by exact name, then by the last part of the name, then by meaning, then by similar names."""
    one, other = dict(golden), dict(target)
    rows = []
    for mine, theirs, how in _pairs(one, other):
        if not _same(mine, golden[mine], theirs, target[theirs]):
            rows.append(_differing(mine, golden[mine], theirs, target[theirs], how))
    rows += [_alone(name, value, None) for name, value in one.items() if not _is_off(name, value)]
    rows += [_alone(name, None, value) for name, value in other.items() if not _is_off(name, value)]
    return Check("hyperparameters", rows)


def _pairs(one: dict[str, Any], other: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Names that belong together; they are taken out of both."""
    ways: tuple[tuple[str, Callable[[str], str]], ...] = (("", str), ("", _pure), (_SAME_MEANING, _group))
    for how, key_of in ways:
        found: dict[str, list[str]] = {}
        for name in other:
            if key := key_of(name):
                found.setdefault(key, []).append(name)
        for name in list(one):
            names = found.get(key_of(name), [])
            if names:
                match = names.pop(0)
                del one[name], other[match]
                yield name, match, how
    for name in list(one):
        close = difflib.get_close_matches(_pure(name), map(_pure, other), 1, _LEAST_SIMILARITY)
        if close:
            theirs = next(each for each in other if _pure(each) == close[0])
            del one[name], other[theirs]
            yield name, theirs, "paired by similar names"


def _same(name: str, value: Any, other_name: str, other: Any) -> bool:
    if _group(name) == _DTYPE and _group(other_name) == _DTYPE:
        return bool(_dtype(name, value) == _dtype(other_name, other))
    return are_equal(value, other)


def _dtype(name: str, value: Any) -> Any:
    """The dtype that a flag or a setting asks for: ``bf16: true`` and ``dtype: bfloat16`` are the same."""
    found = plain_value(value)
    flag = DTYPE_FLAGS.get(_pure(name))
    return (
        (flag if found in (True, 1.0) else ("not", flag))
        if flag is not None and isinstance(found, (bool, float))
        else found
    )


def _dtype_in_words(name: str, value: Any) -> Any:
    found = _dtype(name, value)
    return f"not {found[1]}" if isinstance(found, tuple) else found


def _is_off(name: str, value: Any) -> bool:
    """True for a flag that is off on one side and not mentioned on the other."""
    return plain_value(value) in (False, None)


def _differing(name: str, value: Any, other_name: str, other: Any, how: str) -> Finding:
    title = other_name if name == other_name else f"{other_name} (golden: {name}{', ' + how if how else ''})"
    group = _group(name)
    if group == _DTYPE and _group(other_name) == _DTYPE:
        # Flags say which dtype by their names.
        value, other = _dtype_in_words(name, value), _dtype_in_words(other_name, other)
    why = HYPERPARAMETER_WHY.get(group, OTHER_HYPERPARAMETER)
    return Finding(title, value, other, INFO if _has_no_effect(name) else ERROR, why)


def _alone(name: str, golden: Any, target: Any) -> Finding:
    return Finding(name, golden, target, INFO if _has_no_effect(name) else WARNING, _ONE_SIDE)


def _has_no_effect(name: str) -> bool:
    last = name.rpartition(".")[2].lower().replace("-", "_")
    return name.startswith(LAUNCHER) or any(last == word or last.startswith(f"{word}_") for word in WITHOUT_EFFECT)
