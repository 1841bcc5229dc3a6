"""`MsprobeLightningCallback` in trainings with Lightning."""

from __future__ import annotations

from typing import Any

import pytest

# The first layer is inside of a checkpoint, and computed again in the backward.
NET, FIRST = "net.Net", "net.first.Linear"


def test_steps_are_those_of_the_optimizer_and_validations_are_in_none(programs: Any) -> None:
    options = {"do": ["validate", "fit", "test", "predict"], "max_epochs": 2, "limit_train_batches": 2}
    found = programs.train("lightning", "run", **options)
    assert found.folders == [f"step{number}/procN" for number in range(4)]
    assert found.forwards(NET) == [1] * 4
    assert found.forwards(FIRST) == [2] * 4


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_accumulation_bf16_and_checkpointing_are_recorded_and_not_disturbed(programs: Any, level: str) -> None:
    # Eight batches; a validation falls into the midst of the first and the last step.
    options = {"accumulate_grad_batches": 3, "precision": "bf16-mixed", "val_check_interval": 4, "level": level}
    found = programs.train("lightning", "with", **options)
    assert found.forwards(NET) == [3, 3, 2]
    assert found.forwards(FIRST) == [6, 6, 4]
    (output,) = found.dumps[0].data[f"Module.{FIRST}.forward.0"]["output"]
    assert output["dtype"] == "torch.bfloat16"
    assert [dump.errors for dump in found.dumps] == [""] * 3
    assert found.bits == programs.train("lightning", "without", callback=False, **options).bits


@pytest.mark.parametrize(
    ("module", "batches"),
    [("Adversarial", [1] * 8), ("Accumulating", [2] * 4)],
    ids=["two optimizers", "one that accumulates"],
)
def test_manual_optimization_ends_a_step_with_the_batch_in_which_an_optimizer_stepped(
    programs: Any, module: str, batches: list[int]
) -> None:
    options = {"module": module, "val_check_interval": 3}
    found = programs.train("lightning", "with", **options)
    assert found.forwards(NET) == batches
    assert found.bits == programs.train("lightning", "without", callback=False, **options).bits


def test_optimizers_that_lightning_does_not_count_are_warned_of(programs: Any) -> None:
    found = programs.train("lightning", "run", module="Uncounted")
    assert found.forwards(NET) == [8]
    assert "all its batches belong to one step" in found.output
    assert "all its batches" not in programs.train("lightning", "other", module="Accumulating").output


def test_a_resumed_training_begins_with_the_global_step(programs: Any) -> None:
    programs.train("lightning", "first", callback=False, do=["fit", "save"])
    path = str(programs.folder / "first.ckpt")
    found = programs.train("lightning", "resumed", max_epochs=2, limit_train_batches=2, checkpoint_path=path)
    assert found.folders[0] == "step8/procN"


def test_a_batch_that_the_module_skips_ends_with_the_epoch(programs: Any) -> None:
    assert programs.train("lightning", "run", module="Skipping", do=["fit", "validate"]).forwards(NET) == [1, 1, 0]


def test_a_training_after_one_that_failed_begins_a_step(programs: Any) -> None:
    options = {"do": ["fit", "validate", "fit"], "accumulate_grad_batches": 4}
    assert programs.train("lightning", "run", module="Failing", **options).forwards(NET) == [2, 4, 4]


def test_a_trainer_of_pytorch_lightning_takes_the_callback_too(programs: Any) -> None:
    found = programs.train("lightning", "run", package="pytorch_lightning", max_steps=2)
    assert found.forwards(NET) == [1, 1]


@pytest.mark.sampled(least=1, each=False, group="interpreters with a library")
def test_two_processes_record_what_one_does_and_compute_what_they_do_without(programs: Any) -> None:
    options = {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}
    two = {"strategy": "ddp", "devices": 2, **options}
    # Lightning starts the other process itself.
    found = programs.launch([], "lightning", "two", **two)
    assert found.folders == [f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)]
    alone = programs.train("lightning", "alone", **options)
    assert [dump.names for dump in found.dumps] == [alone.dumps[0].names] * 4
    without = programs.train("lightning", "without", processes=2, callback=False, **two)
    assert len(without.bits) == 2 and found.bits == without.bits
