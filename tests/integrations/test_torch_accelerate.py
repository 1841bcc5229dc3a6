"""The recipe for accelerate."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

LAST, FIRST = "last.Linear", "first.Linear"
LAUNCH = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
LAUNCH += ["--mixed_precision", "no", "--dynamo_backend", "no"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_accumulation_bf16_and_checkpointing_are_recorded_and_not_disturbed(programs: Any, level: str) -> None:
    found = programs.train("accelerate", "with", mixed_precision="bf16", level=level)
    # Six batches, two a step, and none of the held-out ones; the first layer is computed again in the backward.
    assert found.forwards(LAST) == [2, 2, 2]
    assert found.forwards(FIRST) == [4, 4, 4]
    (output,) = found.dumps[0].data[f"Module.{FIRST}.forward.0"]["output"]
    assert output["dtype"] == "torch.bfloat16"
    assert found.bits == programs.train("accelerate", "without", mixed_precision="bf16", debugger=False).bits


@pytest.mark.sampled(least=1, each=False, group="interpreters with a library")
def test_two_processes_record_what_one_does_and_compute_what_they_do_without(programs: Any) -> None:
    found = programs.launch(LAUNCH, "accelerate", "launched", mixed_precision="bf16")
    assert found.folders == [f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)]
    # Three batches a process: the last one is a step of its own.
    assert found.forwards(LAST) == [2, 2, 1, 1]
    alone = programs.train("accelerate", "alone", mixed_precision="bf16")
    assert [dump.names for dump in found.dumps[:2]] == [alone.dumps[0].names] * 2
    without = programs.train("accelerate", "without", processes=2, debugger=False, mixed_precision="bf16")
    assert len(without.bits) == 2 and found.bits == without.bits


def test_a_pack_has_the_settings_of_accelerate(programs: Any, tmp_path: Path) -> None:
    program = """
        import sys, torch
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration
        from msprobe.core.config_check import ConfigChecker
        from probe.configcheck.pack import read_pack

        accelerator = Accelerator(
            cpu=True, mixed_precision="bf16", gradient_accumulation_steps=4,
            dataloader_config=DataLoaderConfiguration(even_batches=False, data_seed=7),
        )
        model = accelerator.prepare(torch.nn.Linear(2, 2))
        ConfigChecker(model, output_zip_path=sys.argv[1])
        model(torch.ones(1, 2))
        found = read_pack(sys.argv[1]).hyperparameters["hyperparameters_dynamic.json"]
        assert found["accelerate.mixed_precision"] == "bf16", found
        assert found["accelerate.gradients.plugin_kwargs.num_steps"] == 4, found
        assert found["accelerate.dataloader_config.even_batches"] is False
        assert found["accelerate.dataloader_config.data_seed"] == 7
        assert found["accelerate.distributed_type"] == "NO"
        assert not any("process_index" in name for name in found)
    """
    programs.forked(tmp_path / "pack.py", [str(tmp_path / "a.zip")], code=textwrap.dedent(program))
