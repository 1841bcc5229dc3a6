"""Trainings of the libraries that have a callback or a recipe, each in a process of its own.

The tests run where all of these libraries are, which is the environment `integrations` of tox.ini.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dumped
import forks
import pytest
import torch
from free_port import free_port

HERE = Path(__file__).parent
LIBRARIES = ("accelerate", "lightning", "transformers")
# What the programs need is imported once, in the server that they are forked from.
SERVED = (
    "torch", "torch._dynamo", "accelerate", "lightning.pytorch", "pytorch_lightning", "transformers.trainer",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": forks.CHECKOUT}

if any(find_spec(name) is None for name in LIBRARIES):
    collect_ignore_glob = ["test_*.py"]


class Training:
    """What a program ``train_with_<library>.py`` left behind."""

    def __init__(self, folder: Path, name: str, output: str) -> None:
        self.dump_path = folder / name
        self.output = output
        self._results = sorted(folder.glob(f"{name}.*.pt"))

    @property
    def folders(self) -> list[str]:
        """Step and process of every dump, such as ``step0/procN``."""
        return dumped.folders(self.dump_path)

    @property
    def dumps(self) -> list[dumped.Dump]:
        """Every dump, by step and rank."""
        paths = sorted(self.dump_path.glob("step*/*"), key=lambda path: (int(path.parent.name[4:]), path.name))
        return [dumped.Dump(path) for path in paths]

    def forwards(self, base: str) -> list[int]:
        """How many forward records of the module ``base`` each dump has."""
        return [sum(name.startswith(f"Module.{base}.forward.") for name in dump.names) for dump in self.dumps]

    @property
    def bits(self) -> list[Any]:
        """The losses, parameters and state of random numbers of each process, bit by bit."""
        return [as_bytes(torch.load(path, weights_only=True)) for path in self._results]


def as_bytes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: as_bytes(item) for key, item in value.items()}
    return [as_bytes(item) for item in value] if isinstance(value, list) else value


class Programs:
    """Runs the programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def train(self, library: str, name: str, processes: int = 1, **options: Any) -> Training:
        """Run a program in forks of a process that has imported the libraries."""
        given = [str(self.folder), name, json.dumps(options)]
        port = str(free_port())
        arguments = [given] if processes == 1 else [[*given, str(rank), port] for rank in range(processes)]
        return Training(self.folder, name, self.forked(HERE / f"train_with_{library}.py", *arguments))

    def forked(self, script: Path, *arguments: Sequence[str], code: str | None = None) -> str:
        """What a program says in a fork for each list of `arguments`."""
        environment = {**os.environ, **ENVIRONMENT}
        ended = forks.server(*SERVED).run(script, *arguments, code=code, environment=environment, timeout=120)
        output = "".join(process.out + process.written_to_err for process in ended)
        assert not any(process.status for process in ended), output
        return output

    def launch(self, launcher: Sequence[str], library: str, name: str, **options: Any) -> Training:
        """Run a program by `launcher`, Python's options, in interpreters of their own."""
        program = [str(HERE / f"train_with_{library}.py"), str(self.folder), name, json.dumps(options)]
        return Training(self.folder, name, self.python(*launcher, *program))

    def python(self, *arguments: str) -> str:
        """What a new interpreter says."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments], cwd=self.folder, env={**os.environ, **ENVIRONMENT},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture(scope="module")
def trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the training with TRL wrote."""
    folder = tmp_path_factory.mktemp("trl")
    Programs(folder).forked(HERE / "train_with_trl.py", [str(folder)])
    return folder
