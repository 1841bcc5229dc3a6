"""Starts the processes that make the dumps of generated cases."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import forks

from generated.cases import batches, cases

_SCRIPT = Path(__file__).with_name("dumping.py")
_TIMEOUT_S = 280


def make_dumps(dumps: Path, seed: int, numbers: Sequence[int]) -> list[Path]:
    """Make the dumps of these cases; the folder of each.

    Raises:
        RuntimeError: a process failed; with what it wrote.
    """
    drawn = cases(seed, numbers)
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
    for batch in batches(drawn):
        world = batch[0].layout.world
        with tempfile.TemporaryDirectory() as folder:
            given = [str(seed), str(dumps), *(str(case.number) for case in batch)]
            arguments = [[str(rank), str(world), f"{folder}/rendezvous", *given] for rank in range(world)]
            ended = forks.server(*forks.MODULES["torch"]).run(
                _SCRIPT, *arguments, environment=environment, timeout=_TIMEOUT_S, without_warnings=True
            )
        failed = [(rank, process) for rank, process in enumerate(ended) if process.status]
        if failed:
            said = [f"rank {rank}, status {process.status}:\n{process.err[-600:]}" for rank, process in failed]
            raise RuntimeError("\n".join([str([case.folder for case in batch]), *said]))
    return [dumps / case.folder for case in drawn]
