"""The group `Randomness` of PyTorch: seeds, deterministic algorithms, dropout, repeated values."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from probe.backends.shared import randomness
from probe.backends.shared.patching import Attributes, Handles
from probe.backends.shared.randomness import existing_calls, return_input
from probe.backends.torch import devices
from probe.backends.torch.guards import compiling, unobserved
from probe.common import log
from probe.common.interfaces import Handle, RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import has, names_with

__all__ = ["dropping_calls", "fix_random_calls", "random_calls", "random_state", "remove_dropout", "seed_everything"]


def _function_drops(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> bool:
    return bool(training and p)


def _alpha_drops(input: Any, p: float = 0.5, training: bool = False, inplace: bool = False) -> bool:
    return bool(training and p)


def _builtin_drops(input: Any, p: float, train: bool) -> bool:
    return bool(train and p)


def _attention_drops(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *_: Any) -> bool:
    return bool(dropout_p)


def random_calls() -> list[RandomCall]:
    """The functions of `torch` and the methods of `torch.Tensor` that draw random numbers."""
    # ``with torch.device(...)`` knows the functions it applies to by identity, and learns them at its first use. Were
    # that to be after the replacement, it would not recognise the originals we call.
    with torch.device("meta"):
        torch.empty(0)
    # Draws inside C++, such as dropout, never pass through a Python attribute that could be replaced.
    names = names_with(Trait.DRAWS)
    functions = existing_calls("torch_random", torch, names, compiling)
    return functions + existing_calls("tensor_random", torch.Tensor, names, compiling)


def dropping_calls() -> list[RandomCall]:
    """The functions that drop elements at random; each says of the arguments of a call if they ask for it.

    Modules and ``multi_head_attention_forward`` call these functions by their names.
    """
    found = []
    for name in names_with(Trait.DROPS):
        drops = _alpha_drops if "alpha" in name else _function_drops
        found += [call._replace(draws=drops) for call in existing_calls("functional_random", F, [name], compiling)]
        builtins = existing_calls("torch_random", torch, [name, f"{name}_"], compiling)
        found += [call._replace(draws=_builtin_drops) for call in builtins]
    (attention,) = existing_calls("functional_random", F, ["scaled_dot_product_attention"], compiling)
    return [*found, attention._replace(draws=_attention_drops)]


def rank() -> int | None:
    """The rank in the default process group, or None while there is none."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


@cache
def _draws(base: str) -> bool:
    return has(base, Trait.DRAWS, Trait.DROPS, Trait.DRAWS_INSIDE)


def random_state(base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The state from which the call `base` is about to draw, bytes on the host; ``None`` of a call that draws nothing.

    It is that of the default generator of the device of the first tensor, or of the argument ``device``. Reading it
    changes nothing.
    """
    if not _draws(base) or kwargs.get("generator") is not None:
        return None
    found: torch.Tensor | None = unobserved(_state, args, kwargs)
    return found


def _devices(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.device]:
    if kwargs.get("device") is not None:
        yield torch.device(kwargs["device"])
    yield from (value.device for value in chain(args, kwargs.values()) if isinstance(value, torch.Tensor))


def _state(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    device = next(_devices(args, kwargs), torch.device("cpu"))
    if device.type == "cpu":
        return torch.default_generator.get_state()
    module = getattr(torch, device.type, None)
    # While a graph of calls is captured there is no state that could be read.
    if module is None or not hasattr(module, "get_rng_state") or _is_capturing(module):
        return None
    found: torch.Tensor = module.get_rng_state(device)
    return found


def _is_capturing(module: Any) -> bool:
    asked = getattr(module, "is_current_stream_capturing", None)
    return asked is not None and bool(asked())


# --- seeding


# Name: (value to set, further values that are as deterministic and therefore left as the user has them).
_DETERMINISTIC_ENVIRONMENT: dict[str, tuple[str, tuple[str, ...]]] = {
    # cuBLAS: a fixed workspace, without which matrix products on several streams may add in another order.
    "CUBLAS_WORKSPACE_CONFIG": (":4096:8", (":16:8",)),
    # Reductions between Ascend devices add in a fixed order; "strict" also fixes it across topologies.
    "HCCL_DETERMINISTIC": ("true", ("True", "TRUE", "strict")),
    # The same for the lightweight all-reduce within one machine.
    "LCCL_DETERMINISTIC": ("1", ()),
    # Ascend matrix products: do not shift, or shuffle, the starting point along K between the cores.
    "CLOSE_MATMUL_K_SHIFT": ("1", ()),
    "ATB_MATMUL_SHUFFLE_K_ENABLE": ("0", ()),
    # Ascend transformer library: do not overlap communication with the product it belongs to.
    "ATB_LLM_LCOC_ENABLE": ("0", ()),
}

_BUILTIN_DROPOUTS = ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout")


def seed_everything(seed: int, deterministic: bool) -> None:
    """Seed every generator; switch deterministic algorithms on or off.

    Switching them off leaves environment variables and cuDNN flags alone, also those that an earlier call with
    `deterministic` has set: the libraries have read them by then.

    Args:
        seed: From 0 to 2**32 - 1, the range of numpy.
        deterministic: Operators without a deterministic implementation then raise RuntimeError.
    """
    # Python reads it when it starts, so it counts for the processes this one launches.
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    npu = devices.ascend()
    if npu is not None:
        npu.manual_seed(seed)
        npu.manual_seed_all(seed)
    if deterministic or torch.cuda.is_available():
        # Scripts written for msProbe count on this on every GPU, whatever `mode` is.
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    if deterministic:
        _make_deterministic()
    if deterministic or torch.are_deterministic_algorithms_enabled():
        # Not asked for when it is off already: it imports parts of the compiler, which set a variable of theirs.
        torch.use_deterministic_algorithms(deterministic)
    randomness.take_states()


def _make_deterministic() -> None:
    for name, (value, equals) in _DETERMINISTIC_ENVIRONMENT.items():
        if os.environ.get(name) in (value, *equals):
            continue
        os.environ[name] = value
        if name == "CUBLAS_WORKSPACE_CONFIG" and _cuda_is_initialized():
            log.warning(
                f"seed_all: {name} is set to {value} after CUDA was initialized, which may be too late. "
                "Call seed_all before the first use of a GPU.",
                once="cublas-workspace-late",
            )


def _cuda_is_initialized() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _unchanged_builtin(input: Any, p: float, train: bool) -> Any:
    return input


def remove_dropout() -> Handle:
    """Make every later dropout return its input, as it does in evaluation mode.

    The builtins ``torch.dropout`` and its kin have no code to exchange; their attributes are replaced, copies
    imported earlier stay.
    """
    attributes = Attributes()
    handles = [attributes, *(return_input(F, name) for name in names_with(Trait.DROPS) if hasattr(F, name))]
    for name in _BUILTIN_DROPOUTS:
        for variant in (name, name + "_"):
            if getattr(torch, variant, _unchanged_builtin) is not _unchanged_builtin:
                attributes.set(torch, variant, _unchanged_builtin)
    return Handles(handles)


def fix_random_calls() -> Handle:
    """Make every later random call draw as if it were the first one after seeding.

    A second call takes the states of that moment. A call with a ``generator`` of its own is not touched.
    """
    return randomness.fix_calls(lambda: [randomness.DrawSource(random_calls(), get_states, set_states)])


class _States(NamedTuple):
    cpu: torch.Tensor
    devices: dict[str, list[torch.Tensor]]


def get_states() -> _States:
    """The state of the generators of the CPU and of initialized accelerators."""
    return _States(torch.get_rng_state(), {name: device.get_rng_state_all() for name, device in _ready_devices()})


def set_states(states: _States) -> None:
    """Bring the generators back to where `get_states` found them."""
    torch.set_rng_state(states.cpu)
    for name, device in _ready_devices():
        saved = states.devices.get(name)
        if saved is None:
            # Initialized since: its generators are still as `seed_everything` left them, or nearly.
            states.devices[name] = device.get_rng_state_all()
        else:
            device.set_rng_state_all(saved)


def _ready_devices() -> list[tuple[str, Any]]:
    """Initialized accelerators whose generators may be set now."""
    # Within the capture of a CUDA graph the state belongs to the graph and setting it is an error.
    return [(kind, module) for kind, module in devices.in_use() if not _is_capturing(module)]
