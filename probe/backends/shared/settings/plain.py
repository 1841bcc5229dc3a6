"""Plain values of settings: what JSON has, out of what a program holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Callable

_MODULE_OPTIONS = (
    "p", "eps", "epsilon", "momentum", "inplace", "approximate", "negative_slope", "padding_idx", "keep_prob",
    "attention_dropout", "attn_dropout", "dropout", "is_causal", "scaling", "norm_eps", "variance_epsilon",
)  # fmt: skip
"""Attributes of modules that change numbers and are no shapes, which the parameters have already."""
_CONFIG_OPTIONS = ("_attn_implementation", "hidden_act", "rms_norm_eps", "layer_norm_eps", "rope_theta", "torch_dtype")
"""Attributes of the ``config`` that a model of Transformers has."""
_LONGEST_TEXT = 80
_ABSENT = object()


def plain(value: Any) -> Any:
    """`value` as JSON has it, or ``None`` if it is no number, text, truth value or short list of these.

    NaN and infinities become texts.
    """
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, (list, tuple)) and len(value) <= 8 and all(type(each) in (int, float, bool) for each in value):
        return [plain(each) for each in value]
    return None


def plain_items(items: Iterable[tuple[str, Any]], number_of: Callable[[Any], Any] = plain) -> dict[str, Any]:
    """The items with a plain value, or with one that `number_of` makes plain."""
    found = ((name, number_of(value)) for name, value in items)
    return {str(name): value for name, value in found if value is not None}


def module_options(named_modules: Iterable[tuple[str, Any]], root: Any) -> dict[str, Any]:
    """Options of modules that change numbers, as ``layers.0.drop.p``, and those of the model's ``config``."""
    found: dict[str, Any] = {}
    for name, module in named_modules:
        options = vars(module)
        for option in _MODULE_OPTIONS:
            value = options.get(option, _ABSENT)
            if value is not _ABSENT and (value := plain(value)) is not None:
                found[f"{name}.{option}" if name else option] = value
    config = getattr(root, "config", None)
    for option in _CONFIG_OPTIONS:
        value = getattr(config, option, None)
        if value is not None:
            found[f"config.{option.lstrip('_')}"] = plain(value) if plain(value) is not None else str(value)
    return found


def dtype_counts(dtypes: Iterable[str]) -> dict[str, int]:
    """The number of parameters of each dtype, as ``parameters.float32``."""
    return {f"parameters.{name}": number for name, number in sorted(Counter(dtypes).items())}


def torch_groups(optimizer: Any, number_of: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """The groups of an optimizer as torch has them."""
    groups: list[Mapping[str, Any]] = getattr(optimizer, "param_groups", [])
    return [
        {
            **plain_items(((name, value) for name, value in group.items() if name != "params"), number_of),
            "parameters": len(group["params"]),
        }
        for group in groups
    ]
