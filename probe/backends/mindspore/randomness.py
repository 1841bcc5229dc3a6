"""The group `Randomness` of MindSpore: seeds, deterministic operators, dropout, repeated values."""

from __future__ import annotations

import functools
import importlib
import os
import random
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

import mindspore
import numpy as np
from mindspore import mint, nn, ops
from mindspore.communication import get_rank

from probe.backends.mindspore import internals
from probe.backends.shared import randomness
from probe.backends.shared.patching import Attributes, Handles
from probe.backends.shared.randomness import existing_calls, return_input
from probe.common.interfaces import Handle, RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with

__all__ = ["dropping_calls", "fix_random_calls", "random_calls", "random_state", "remove_dropout", "seed_everything"]


def random_calls() -> list[RandomCall]:
    """The functions of ops and mint and the methods of Tensor that draw random numbers."""
    names = names_with(Trait.DRAWS)
    return [
        *existing_calls("ops_random", ops, names),
        *existing_calls("mint_random", mint, names),
        *existing_calls("tensor_random", mindspore.Tensor, names),
    ]


def dropping_calls() -> list[RandomCall]:
    """None: MindSpore's dropouts draw in primitives, which are no functions that could be replaced."""
    return []


def rank() -> int | None:
    """The rank in the world group, or None while there is none."""
    # Without the first question get_rank answers 0; the scheduler of a job has initialized but is none of its ranks.
    if not internals.has_communication() or os.environ.get("MS_ROLE") == "MS_SCHED":
        return None
    return int(get_rank())


# --- seeding


# As deterministic as "True", and therefore left as the user has them.
_HCCL_DETERMINISTIC = ("True", "true", "TRUE", "strict")

# Layers that call the operator itself, and not one of the functions or primitives.
_LAYERS = ("DropoutExt", "Dropout2dExt")
_PRIMITIVES = ("Dropout", "Dropout2D", "Dropout3D")

# By their full names: `mindspore.common.seed` is also a function.
_seeds: Any = importlib.import_module("mindspore.common.seed")
_functions: Any = importlib.import_module("mindspore.ops.function.nn_func")


def seed_everything(seed: int, deterministic: bool) -> None:
    """Seed every generator; switch deterministic operators on or off.

    Args:
        seed: From 0 to 2**32 - 1, the range of numpy.
        deterministic: Operators then compute in a fixed order where they know how.
    """
    # Python reads it when it starts, so it counts for the processes this one launches.
    os.environ["PYTHONHASHSEED"] = str(seed)
    random.seed(seed)
    seed_draws(seed)
    # Reductions between Ascend devices add in a fixed order. The variable gets its value below: MindSpore writes its
    # own into it, and warns of one that is spelled otherwise; so it does when it unsets what it set itself.
    before = os.environ.pop("HCCL_DETERMINISTIC", "")
    if not deterministic and os.environ.get("TE_PARALLEL_COMPILER") == "1":
        del os.environ["TE_PARALLEL_COMPILER"]
    internals.set_deterministic(deterministic)
    keep = deterministic and before in _HCCL_DETERMINISTIC
    os.environ["HCCL_DETERMINISTIC"] = before if keep else str(deterministic)
    randomness.take_states()


def random_state(base: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Nothing: its kernels draw from seeds and counters of their own, which it does not tell."""
    return None


def seed_draws(seed: int) -> None:
    """Let every operator, and numpy, draw from its beginning again."""
    # Numpy too, with the initializers that draw from it, and the data sets. mint has a generator of its own.
    mindspore.set_seed(seed)
    mindspore.manual_seed(seed)


def remove_dropout() -> Handle:
    """Make dropout return its input, as it does in evaluation mode.

    This goes for the functions of ops and mint and what calls them, by whatever name it was imported, and for every
    primitive made from now on. A primitive that exists already, such as the one inside an existing `nn.Dropout`,
    `nn.Dropout2d` or `nn.Dropout3d`, keeps the probability it was made with.
    """
    attributes = Attributes()
    handles: list[Handle] = [attributes]
    dropouts = names_with(Trait.DROPS)
    for owner, names in ((ops, dropouts), (mint.nn.functional, dropouts), (_functions, ("_inner_dropout",))):
        handles += [return_input(owner, name) for name in names if hasattr(owner, name)]
    handles += [return_input(getattr(nn, layer), "construct") for layer in _LAYERS if hasattr(nn, layer)]
    for name in _PRIMITIVES:
        primitive = getattr(ops, name)
        if not hasattr(primitive.__init__, _KEEPS_ALL):
            attributes.set(primitive, "__init__", _keeping_all(primitive.__init__))
    return Handles(handles)


_KEEPS_ALL = "keeps_all"


def _keeping_all(init: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` that makes a primitive which keeps everything, with its usual outputs and gradients."""

    @functools.wraps(init)
    def keep_all(self: Any, keep_prob: float = 0.5, *args: Any, **kwargs: Any) -> None:
        init(self, 1.0, *args, **kwargs)

    setattr(keep_all, _KEEPS_ALL, True)
    return keep_all


def fix_random_calls() -> Handle:
    """Make every later random call draw as if it were the first one after seeding.

    A second call takes the states of that moment. A call with a ``generator`` of its own is not touched, and neither
    are the operators that no seed reaches: ``bernoulli`` and ``random_categorical`` of ops and the candidate samplers
    draw by their argument ``seed`` alone.
    """
    return randomness.fix_calls(lambda: [randomness.DrawSource(random_calls(), get_states, set_states)])


class States(NamedTuple):
    """The state of the generators of MindSpore."""

    seed: int | None
    calls: dict[Any, int]
    """The position in each operator's sequence of numbers."""
    generator: Any


def get_states() -> States:
    """The present states, for `set_states`."""
    return States(mindspore.get_seed(), dict(_seeds._KERNEL_SEED), mindspore.get_rng_state())


def set_states(states: States) -> None:
    """Bring the generators back to where `get_states` found them."""
    _seeds._GLOBAL_SEED = states.seed
    _seeds._KERNEL_SEED.clear()
    _seeds._KERNEL_SEED.update(states.calls)
    mindspore.set_rng_state(states.generator)


def restore_draws(state: Any, device: str) -> bool:
    """False: there is no `random_state` that could be given back."""
    return False


def random_states() -> Any:
    """States of the generators of MindSpore, numpy and Python: a seed of MindSpore's is theirs as well."""
    return get_states(), np.random.get_state(), random.getstate()


def set_random_states(states: Any) -> None:
    """Bring them back to where `random_states` found them."""
    set_states(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
