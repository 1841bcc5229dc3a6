"""Model, optimizer and settings in the nested values of a checkpoint."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from probe.checkpoint.readers.pickles import Inert, Name
from probe.checkpoint.report import Checkpoint
from probe.checkpoint.stored import Tensor
from probe.common.numerics.rounding import decoded

MODEL = ("model", "module", "state_dict", "model_state_dict", "network", "net", "weights", "params", "param")
"""Keys under which trainings keep a model; they are no part of the names of parameters."""
_OPTIMIZER = ("optim", "opt_", "exp_avg", "fp32_params", "master_params")
_RANDOM = ("rng", "random_state")
_PROGRESS = re.compile(
    r"(^|[._/])(global_?)?(steps?|step_count|iterations?|iter|epochs?|num_updates|num_batches_tracked|samples?_seen|"
    r"consumed_(train|valid)_samples|tokens?_seen|seed|count|lr|learning_rate|loss_scale|scale_sense|best_\w+)$"
)
"""One number that a training counts or keeps, and no model needs."""
_STATE = re.compile(r"^(optim|opt_state|exp_avg|rng|(\w+_)?random_state|(cuda_|cpu_|torch_)?rng_state)")
_LONGEST = 200
"""Characters of a setting that is shown as it is; a longer one is shown by its digest. A guess."""
_MOST_SETTINGS = 20_000
"""Settings that are looked at; a guess."""


def sort(value: Any, into: Checkpoint, prefix: str = "") -> None:
    """Put the tensors and settings of nested values into a checkpoint.

    Args:
        prefix: of the names of parameters.
    """
    if not isinstance(value, dict):
        value = {"model": value}
    if _is_state(value):
        _model(value, into, prefix)
        return
    for key, each in value.items():
        name = str(key)
        if _is_optimizer(name):
            into.optimizer.update(_tensors(each, name))
            into.settings.update(_settings(each, name))
        elif any(part in name.lower() for part in _RANDOM):
            into.settings.update(_settings(each, name))
        elif name in MODEL and isinstance(each, dict):
            _model(each, into, prefix)
        elif isinstance(each, Tensor):
            _add(into, f"{prefix}{name}", each)
        elif isinstance(each, dict) and any(True for _ in _tensors(each, "")):
            _model(each, into, f"{prefix}{name}.")
        else:
            into.settings.update(_settings(each, name))


def set_apart(found: Checkpoint) -> None:
    """Take counters, and the states of optimizers and random generators, out of the parameters."""
    for name, tensor in list(found.weights.items()):
        lower = name.lower()
        if tensor.size == 1 and _PROGRESS.search(lower):
            found.settings[name] = decoded(tensor.read().reshape(-1), tensor.dtype)[0].item()
        elif _STATE.match(lower):
            if any(part in lower for part in _RANDOM):
                found.settings.update(_settings(tensor, name))
            else:
                found.optimizer[name] = tensor
        else:
            continue
        del found.weights[name]


def modules_in(value: Any) -> Iterator[str]:
    """The class names of modules that were saved whole, by themselves or next to other values of a checkpoint."""
    for each in value.values() if isinstance(value, dict) else (value,):
        if isinstance(each, Inert) and {"_parameters", "_modules"} <= set(map(str, each.fields)):
            yield each.name


def _model(state: dict[Any, Any], into: Checkpoint, prefix: str) -> None:
    for name, tensor in _tensors(state, ""):
        _add(into, prefix + name, tensor)
    into.settings.update(
        (name, value) for name, value in _settings(state, "") if value is not None and not _is_extra(name)
    )


def _add(into: Checkpoint, name: str, tensor: Tensor) -> None:
    if _is_extra(name):
        return
    whole = name
    while whole in into.weights:
        whole += "'"
    into.weights[whole] = tensor


def _is_extra(name: str) -> bool:
    """True of the state that TransformerEngine keeps beside parameters: scales and histories of 8-bit formats."""
    return name.endswith("_extra_state")


def _is_state(value: dict[Any, Any]) -> bool:
    """True if these are the parameters themselves."""
    return any(isinstance(each, Tensor) for each in value.values()) and not any(
        str(key) in MODEL and isinstance(each, dict) for key, each in value.items()
    )


def _is_optimizer(name: str) -> bool:
    lower = name.lower()
    return any(lower.startswith(part) for part in _OPTIMIZER)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    for key, each in _members(value):
        yield from _tensors(each, f"{name}.{key}" if name else key)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), each) for key, each in value.items())
    elif isinstance(value, (list, tuple)):
        yield from ((str(index), each) for index, each in enumerate(value))
    elif isinstance(value, Inert):
        yield from ((str(key), each) for key, each in {**value.fields, **value.pairs}.items())


def plain_settings(value: Any, name: str) -> dict[str, Any]:
    """The plain values in nested ones, by their dotted names; tensors and long texts by a digest."""
    return dict(_settings(value, name))


def _settings(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield from islice(_walk(value, name), _MOST_SETTINGS)


def _walk(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Tensor):
        if any(part in name.lower() for part in _RANDOM):
            yield name, f"digest {hashlib.sha256(value.read().tobytes()).hexdigest()[:16]}"
    elif value is None or isinstance(value, (bool, int, float)):
        yield name, value
    elif isinstance(value, (str, bytes)):
        yield name, value if isinstance(value, str) and len(value) <= _LONGEST else _digest(value)
    elif isinstance(value, Name):
        yield name, value.name
    elif isinstance(value, Inert) and not value.fields and not value.pairs:
        shown = ", ".join(str(each) for each in value.args if isinstance(each, (str, int, float, bool)))
        yield name, f"{value.name}({shown})"
    else:
        for key, each in _members(value):
            yield from _walk(each, f"{name}.{key}" if name else key)


def _digest(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
    return f"digest {hashlib.sha256(data).hexdigest()[:16]}"
