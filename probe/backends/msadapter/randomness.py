"""The group `Randomness` of MSAdapter: MindSpore's ways, and what torch's names add."""

from __future__ import annotations

from typing import Any

from probe.backends.mindspore import randomness as mindspore_randomness
from probe.backends.mindspore.randomness import dropping_calls, random_state
from probe.backends.msadapter.hooks import torch_module
from probe.backends.shared import randomness
from probe.backends.shared.patching import Handles
from probe.backends.shared.randomness import DrawSource, existing_calls, return_input
from probe.common.interfaces import Handle, RandomCall
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with

__all__ = ["dropping_calls", "fix_random_calls", "random_calls", "random_state", "remove_dropout", "seed_everything"]

# init_process_group of torch.distributed initializes MindSpore's communication.
rank = mindspore_randomness.rank


def torch_random_calls() -> list[RandomCall]:
    """The functions of torch and the methods of Tensor, which the two sides share, that draw random numbers."""
    torch, names = torch_module(), names_with(Trait.DRAWS)
    return [
        *existing_calls("torch_random", torch, names),
        *existing_calls("tensor_random", torch.Tensor, names),
    ]


def random_calls() -> list[RandomCall]:
    """Functions of torch that draw random numbers, and functions of MindSpore that have no torch name."""
    calls = torch_random_calls()
    known = {(call.owner, call.name) for call in calls}
    return calls + [call for call in mindspore_randomness.random_calls() if (call.owner, call.name) not in known]


# --- seeding


def seed_everything(seed: int, deterministic: bool) -> None:
    """Seed every generator; switch deterministic operators on or off.

    On CPU no seed reaches ``torch.rand``, ``randn``, ``randint`` and dropout of mindtorch.
    """
    torch_module().manual_seed(seed)
    mindspore_randomness.seed_everything(seed, deterministic)


def seed_draws(seed: int) -> None:
    """Let every operator that a seed reaches draw from its beginning again."""
    torch_module().manual_seed(seed)
    mindspore_randomness.seed_draws(seed)


def remove_dropout() -> Handle:
    """Make dropout of torch return its input, in existing layers too, and MindSpore's as its own backend does."""
    functional = torch_module("nn.functional")
    handles = [return_input(functional, name) for name in names_with(Trait.DROPS) if hasattr(functional, name)]
    return Handles([mindspore_randomness.remove_dropout(), *handles])


def fix_random_calls() -> Handle:
    """Make every later random call draw as if it were the first one after seeding, where a seed reaches it at all.

    A second call takes the states of that moment. A call with a ``generator`` of its own is not touched.
    """
    return randomness.fix_calls(lambda: [DrawSource(random_calls(), get_states, set_states)])


def get_states() -> tuple[Any, Any]:
    """The state of the generators of MindSpore and of its torch."""
    return mindspore_randomness.get_states(), torch_module().get_rng_state()


def set_states(states: tuple[Any, Any]) -> None:
    """Bring them back to where `get_states` found them."""
    mindspore_randomness.set_states(states[0])
    torch_module().set_rng_state(states[1])


def random_states() -> Any:
    """States of the generators of MindSpore, numpy, Python and mindtorch, which draws from numpy on the CPU."""
    return mindspore_randomness.random_states(), torch_module().get_rng_state()


def set_random_states(states: Any) -> None:
    """Bring them back to where `random_states` found them."""
    mindspore_randomness.set_random_states(states[0])
    torch_module().set_rng_state(states[1])
