"""Runs of a model that is split over ranks, which really train; `tests/shards/split_training.py` is one rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import forks
from free_port import free_port

from probe.shards.split import DEFAULT_ORDER, Split

SCRIPT = Path(__file__).parents[1] / "shards" / "split_training.py"


@dataclass(frozen=True)
class Case:
    """How a run is split, and what is wrong in it; `split_training.py` has the changes."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    dp: int = 1
    order: str = DEFAULT_ORDER
    change: str = "none"
    dtype: str = "float32"

    @property
    def split(self) -> Split:
        return Split(self.tp * self.pp * self.dp, self.tp, self.pp, self.vpp, self.order)

    def flags(self, golden: Case | None = None) -> list[str]:
        """The flags of merging, for this run alone or with a golden one."""
        sides = [self.split] if golden is None else [self.split, golden.split]
        return [
            text
            for flag in ("rank_size", "tp", "pp", "vpp", "order")
            for text in (f"--{flag}", *(str(getattr(side, flag)) for side in sides))
        ]


FAULTY = "decoder.layers.2.mlp.fc1.weight"
CASES = {
    "whole": Case(),
    "tensor": Case(tp=2),
    "pipeline": Case(pp=2),
    "both": Case(tp=2, pp=2),
    "virtual": Case(pp=2, vpp=2),
    "copies": Case(dp=2),
    "copies_split": Case(tp=2, dp=2, order="dp-pp-tp"),
    "sequence": Case(tp=2, change="sequence"),
    "faulty_tensor": Case(tp=2, change=FAULTY),
    "faulty_pipeline": Case(pp=2, change=FAULTY),
    "faulty_both": Case(tp=2, pp=2, change=FAULTY),
    "tensor_short": Case(tp=2, dtype="bfloat16"),
    "faulty_short": Case(tp=2, change=FAULTY, dtype="bfloat16"),
}
"""By name, the runs that are merged and compared."""


def train(folder: Path, cases: Mapping[str, Case]) -> None:
    """Run all cases at the same time, each into the folder of its name."""
    arguments = []
    for name, case in cases.items():
        port = str(free_port())
        sizes = map(str, (case.tp, case.pp, case.vpp, case.dp))
        rest = (port, *sizes, case.order, case.change, case.dtype)
        arguments += [(str(folder / name), str(rank), *rest) for rank in range(case.split.rank_size)]
    environment = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
    ended = forks.server(*forks.MODULES["torch"]).run(SCRIPT, *arguments, environment=environment, timeout=150)
    for given, process in zip(arguments, ended):
        assert process.said == ["trained"], (given, process.status, process.out, process.err)
