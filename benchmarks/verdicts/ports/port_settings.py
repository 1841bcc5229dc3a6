"""What the networks of all frameworks share: sizes, batches, faults and the jobs of a run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

WIDTH, HEADS, DEPTH, LENGTH, WORDS, CLASSES, BATCH = 32, 4, 2, 12, 50, 5, 4
NETWORKS = ("cnn", "bert", "gpt2", "llama", "t5")
OPTIMIZERS = ("sgd", "adam")
LEVELS = ("mix", "L0")
RATES = {"sgd": 0.1, "adam": 1e-3}
ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class Port:
    """How a port deviates; a right one does not."""

    fault: str = ""

    def has(self, fault: str) -> bool:
        """Whether it has this fault."""
        return self.fault == fault

    @property
    def bert_epsilon(self) -> float:
        """The epsilon of BERT, or that of most other networks."""
        return 1e-5 if self.has("layernorm epsilon") else 1e-12

    @property
    def dropout(self) -> float:
        """The share of dropped values, or that of kept ones where a port takes one for the other."""
        return 0.9 if self.has("keep_prob") else 0.0

    @property
    def adam_epsilon(self) -> float:
        """The epsilon of Adam."""
        return 1e-3 if self.has("adam epsilon") else ADAM_EPSILON


@dataclass(frozen=True)
class Job:
    """One training that is dumped."""

    network: str
    optimizer: str
    level: str
    fault: str
    steps: int
    folder: str
    """Where the dump goes."""

    @property
    def records_update(self) -> bool:
        """True if the step of the optimizer is recorded, too, as `msprobe run` does."""
        return self.optimizer == "adam"


def jobs_of(path: str) -> list[Job]:
    """The jobs in a file."""
    return [Job(**job) for job in json.loads(Path(path).read_text(encoding="utf-8"))]


def write_jobs(path: Path, jobs: list[Job]) -> None:
    """Write jobs for an interpreter of one framework."""
    path.write_text(json.dumps([asdict(job) for job in jobs]), encoding="utf-8")


def configuration(job: Job) -> str:
    """Write the configuration of a job; its path."""
    folder = Path(job.folder)
    shutil.rmtree(folder, ignore_errors=True)  # An earlier process has another name there.
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "task": "statistics", "level": job.level, "risk_level": "ALL", "statistics": {}, "dump_path": str(folder),
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def batches(network: str, steps: int) -> list[list[Any]]:
    """The inputs and labels of each step, as arrays."""
    random = np.random.default_rng(7)
    found = []
    for _ in range(steps):
        ids = random.integers(WORDS, size=(BATCH, LENGTH))
        labels = random.integers(CLASSES, size=BATCH)
        if network == "cnn":
            found.append([random.standard_normal((BATCH, 3, 12, 12)).astype(np.float32), labels])
        elif network == "bert":
            attention = np.ones_like(ids)
            attention[1, 9:] = attention[3, 7:] = 0
            found.append([ids, attention, labels])
        elif network == "t5":
            found.append([ids, random.integers(WORDS, size=(BATCH, LENGTH)), random.integers(WORDS, size=ids.shape)])
        else:
            found.append([ids, ids])
    return found


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The weights of a network by the names that torch gives them, as initialisations make them."""
    random = np.random.default_rng(11)
    found = {}
    for name, shape in shapes.items():
        array = random.standard_normal(shape)
        if re.search(r"(norm\d?|layernorm|ln_.|bn\d)\.weight$", name):
            array = 1.0 + 0.05 * array
        elif len(shape) == 1:
            array = 0.02 * array
        elif len(shape) == 4 or name.startswith("network.fc"):
            array = array / np.sqrt(np.prod(shape[1:]))
        else:
            array = (0.02 if "word" in name or "position" in name or "type" in name else 0.1) * array
        found[name] = array.astype(np.float32)
    return found
