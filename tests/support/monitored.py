"""A training of torch under `TrainerMon`, and the rows that it writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from probe.api.pytorch import TrainerMon


def configure(**settings: Any) -> None:
    Path("config.json").write_text(json.dumps(settings), encoding="utf-8")


def monitor(model: Any, optimizer: Any, micro_batches: int = 1, **settings: Any) -> TrainerMon:
    configure(**settings)
    made = TrainerMon("config.json", params_have_main_grad=False)
    made.set_monitor(model, optimizer, grad_acc_steps=micro_batches)
    return made


def rows(name: str) -> list[dict[str, str]]:
    (path,) = Path().glob(f"monitor_output/*/{name}.csv")
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))
