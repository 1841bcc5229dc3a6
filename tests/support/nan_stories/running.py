"""Run stories in this process, and what `overflow_check` says of each: ``running.py FOLDER [known|held_out]``."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from msprobe.pytorch import PrecisionDebugger
from nan_stories.story import FINITE, Story, batch, network
from probe.common.parallel.tasks import Where
from probe.overflow.find_overflow import find_overflow

STEPS = 3


@dataclass(frozen=True)
class Told:
    """What was said of one story."""

    name: str
    record: str
    sentence: str
    is_record: bool
    is_reason: bool


def train(story: Story, debugger: Any) -> None:
    """Train with the tool."""
    model = network()
    optimizer = story.optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=story.scale) if story.scale else None
    for step in range(STEPS):
        debugger.start(model)
        optimizer.zero_grad()
        loss = story.loss(model, batch(step), step >= 1)
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        debugger.stop()
        debugger.step()


def run(folder: Path, stories: Mapping[str, Story], task: str = "statistics") -> list[Told]:
    """Run stories one after the other."""
    said = []
    for name, story in stories.items():
        (folder / name).mkdir(parents=True)
        configuration = folder / name / "config.json"
        settings = {"level": "mix", "dump_path": str(folder / name / "run"), "step": [], "rank": [], "task": task}
        configuration.write_text(json.dumps(settings))
        # Each training has a debugger of its own, as a process has.
        debugger = type("Debugger", (PrecisionDebugger,), {"_instance": None})(str(configuration))
        with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
            try:
                train(story, debugger)
            finally:
                debugger.reset()
        said.append(_told(name, story, folder / name / "run"))
    return said


def _told(name: str, story: Story, run: Path) -> Told:
    report = find_overflow(str(run), where=Where(jobs=1)) if run.exists() else None
    if report is None or report.found is None:
        is_right = story.reason == FINITE
        return Told(name, "", "", is_right, is_right)
    first = report.first[0]
    if story.reason == FINITE:
        return Told(name, first.record, first.sentence, False, False)
    is_record = report.found.step == story.step and story.is_record(first.record)
    return Told(name, first.record, first.sentence, is_record, story.is_reason(first.sentence))


def main() -> None:
    from nan_stories import held_out, known

    torch.set_num_threads(1)
    root, which, *names = sys.argv[1:]
    stories = {"known": known.STORIES, "held_out": held_out.STORIES}[which]
    told = run(Path(root).resolve(), {name: stories[name] for name in names or stories})
    for each in told:
        if not (each.is_record and each.is_reason):
            print(f"{each.name}: record {each.is_record} reason {each.is_reason}: {each.record}: {each.sentence}")
    right = sum(each.is_record and each.is_reason for each in told)
    print(f"{which}: {sum(each.is_record for each in told)} records, {right} with the right reason, of {len(told)}")


if __name__ == "__main__":
    main()
