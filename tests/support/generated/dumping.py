"""Makes dumps of several cases as one rank of a group: ``dumping.py RANK WORLD RENDEZVOUS SEED DUMPS NUMBER...``."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

from generated.cases import Case, cases
from generated.choosing import Choice, bad_module, choose, plan_of
from generated.communication import NOTHING, Run
from generated.program import Training, spoil_by_optimizer, spoil_weight
from msprobe.pytorch import PrecisionDebugger

_TIMEOUT = datetime.timedelta(seconds=60)


class Rank:
    """One process, which makes its part of every case."""

    def __init__(self, rank: int, level: str, dumps: Path) -> None:
        self._rank, self._dumps = rank, dumps
        self._groups: dict[tuple[int, ...], Any] = {}
        self._collected = dumps / f".{level}-{dist.get_world_size()}"
        self._debugger = PrecisionDebugger(task="statistics", dump_path=str(self._collected), level=level)
        self._steps = 0

    def make(self, case: Case) -> None:
        for ranks in case.layout.groups():
            if ranks not in self._groups:
                self._groups[ranks] = dist.new_group(list(ranks))
        training = Training(case, self._rank)
        dry = Run(case, self._rank, self._groups)
        training.step(dry, training.batch(-1))
        gathered: list[Any] = [None] * case.layout.world
        ids = {id(module): number for number, module in enumerate(training.model.modules())}
        dist.all_gather_object(gathered, (dry.events, [ids[id(module)] for module in dry.used]))
        choice = choose(case, *zip(*gathered))
        for step in range(case.steps):
            self._step(case, training, dry, choice, step)
        if self._rank == 0:
            (self._dumps / case.folder / "plan.json").write_text(json.dumps(plan_of(case, choice)), encoding="utf-8")

    def _step(self, case: Case, training: Training, dry: Run, choice: Choice, step: int) -> None:
        plant = choice.plant(self._rank) if step == case.fault_step else NOTHING
        batches = training.batch(step)
        used = bad_module(choice, self._rank) if step == case.fault_step else None
        if used is not None and case.kind == "parameter":
            spoil_weight(dry.used[used], choice.value, case.draw("weight"))
        elif used is not None:
            spoil_by_optimizer(dry.used[used])
        if plant.is_in_data:
            batches[0].view(-1)[case.draw("data").randrange(batches[0].numel())] = choice.value
        self._debugger.start(model=training.model)
        training.step(Run(case, self._rank, self._groups, plant), batches)
        self._debugger.stop()
        self._debugger.step()
        if not case.steps_inside:
            training.optimizer.step()
        written = self._collected / f"step{self._steps}" / f"rank{self._rank}"
        self._steps += 1
        folder = self._dumps / case.folder / f"step{step}"
        folder.mkdir(parents=True, exist_ok=True)
        written.rename(folder / written.name)


def main(rank: int, world: int, rendezvous: str, seed: int, dumps: Path, numbers: list[int]) -> None:
    torch.set_num_threads(1)
    # What `torch.empty` gives is NaN then, and not what happens to stand in the memory.
    torch.use_deterministic_algorithms(True, warn_only=True)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world, timeout=_TIMEOUT)
    drawn = cases(seed, numbers)
    here = Rank(rank, drawn[0].level, dumps)
    for case in drawn:
        here.make(case)
    dist.destroy_process_group()


if __name__ == "__main__":
    _rank, _world, _rendezvous, _seed, _dumps, *_numbers = sys.argv[1:]
    main(int(_rank), int(_world), _rendezvous, int(_seed), Path(_dumps), [int(number) for number in _numbers])
