"""`seed_all` and `random_save`: the same checks and the same order of work for every framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from probe.backends.protocol import Randomness
from probe.common.errors import MsprobeException
from probe.common.interfaces import RandomCall

_LARGEST_SEED = 2**32 - 1
"""2^32 - 1: the largest seed that numpy takes."""


def seed_all(
    randomness: Randomness,
    seed: int = 1234,
    mode: bool = False,
    rm_dropout: bool = False,
    is_enhanced: bool = False,
) -> None:
    """Make a run repeatable.

    Args:
        randomness: Of the framework that does the work.
        seed: Seed of every generator, 0 to 2**32 - 1.
        mode: Also choose deterministic algorithms, which are slower.
        rm_dropout: Make every later dropout the identity, for the rest of the process.
        is_enhanced: Make every later random call return the values of the first one after seeding, for the rest
            of the process.

    Raises:
        MsprobeException: An argument has the wrong type or is out of range.
    """
    if type(seed) is not int or not 0 <= seed <= _LARGEST_SEED:
        raise MsprobeException(f"seed is {seed!r}; allowed: an int from 0 to {_LARGEST_SEED}.")
    _check_bool("mode", mode)
    _check_bool("rm_dropout", rm_dropout)
    _check_bool("is_enhanced", is_enhanced)
    randomness.seed_everything(seed, mode)
    if rm_dropout:
        randomness.remove_dropout()
    if is_enhanced:
        randomness.fix_random_calls()


def random_save(calls: Sequence[RandomCall], rank: Callable[[], int | None], output_path: str = "./output") -> None:
    """Write a csv row for every later call that draws random numbers, with the call stack that led to it.

    Args:
        calls: The functions and tensor methods that draw random numbers.
        rank: Gives the rank of this process, or None while it has none.
        output_path: Folder of ``random_proc<PID>_<time>.csv``; made if needed.

    Raises:
        MsprobeException: `output_path` is not a str, is a symbolic link, or cannot be written to.
    """
    from probe.backends.shared.randomness import start_recording

    start_recording(output_path, calls, rank)


def _check_bool(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise MsprobeException(f"{name} is {value!r}; allowed: True, False.")
