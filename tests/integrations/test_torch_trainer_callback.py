"""`MsprobeTrainerCallback` in trainings with ``transformers.Trainer``."""

from __future__ import annotations

from typing import Any

import pytest

WORDS, LINEAR = "model.embed_tokens.Embedding", "model.layers.0.mlp.up_proj.Linear"
STEPS = ["step0/procN", "step1/procN", "step2/procN"]


def test_steps_are_those_of_the_optimizer_and_evaluations_are_in_none(programs: Any) -> None:
    found = programs.train("trainer", "run", do=["evaluate", "train", "evaluate", "predict"], eval_strategy="epoch")
    assert found.folders == STEPS
    assert found.forwards(WORDS) == [1, 1, 1]
    assert [len(dump.backward) > 0 for dump in found.dumps] == [True] * 3


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_accumulation_bf16_and_checkpointing_are_recorded_and_not_disturbed(programs: Any, level: str) -> None:
    options = {
        "gradient_accumulation_steps": 2, "bf16": True, "activation_checkpointing": True, "eval_strategy": "steps",
        "eval_steps": 1, "level": level,
    }  # fmt: skip
    found = programs.train("trainer", "with", **options)
    assert found.folders == STEPS
    # Two batches a step; what is inside of a checkpoint is computed again in the backward.
    assert found.forwards(WORDS) == [2, 2, 2]
    assert found.forwards(LINEAR) == [4, 4, 4]
    (output,) = found.dumps[0].data[f"Module.{LINEAR}.forward.0"]["output"]
    assert output["dtype"] == "torch.bfloat16"
    assert [dump.errors for dump in found.dumps] == [""] * 3
    assert found.bits == programs.train("trainer", "without", callback=False, **options).bits


@pytest.mark.sampled(least=1, each=False, group="interpreters with a library")
def test_a_training_under_msprobe_run_is_recorded_and_not_disturbed(programs: Any) -> None:
    run = ["-m", "msprobe", "run", "--level", "mix", "--step", "all", "-o", "collected"]
    found = programs.launch(run, "trainer", "collected", callback=False)
    assert found.folders == STEPS
    assert found.bits == programs.train("trainer", "without", callback=False).bits


def test_a_resumed_training_goes_on_with_the_numbers(programs: Any) -> None:
    options = {"save_strategy": "steps", "save_steps": 3}
    first = programs.train("trainer", "run", callback=False, **options)
    assert first.folders == []
    assert programs.train("trainer", "run", do=["resume"], **options).folders == ["step3/procN", "step4/procN"]


def test_a_second_training_in_the_same_process_does_too(programs: Any) -> None:
    assert programs.train("trainer", "run", do=["train", "train"], max_steps=1).folders == STEPS[:2]


def test_an_accumulation_that_is_cut_off_has_no_evaluation_in_it(programs: Any) -> None:
    options = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "stop_after": "substep"}
    assert programs.train("trainer", "run", do=["train", "predict"], **options).forwards(WORDS) == [2, 1]


def test_a_training_after_one_that_failed_begins_a_step(programs: Any) -> None:
    options = {"gradient_accumulation_steps": 2, "stop_after": "error", "max_steps": 2}
    assert programs.train("trainer", "run", do=["train", "train"], **options).forwards(WORDS) == [2, 1, 2, 2]


def test_a_compiled_model_is_warned_of(programs: Any) -> None:
    found = programs.train("trainer", "run", torch_compile=True, torch_compile_backend="eager", max_steps=1)
    assert "torch_compile is on: the modules of the model run inside of compiled code" in found.output
    assert found.forwards(WORDS) == [0]


@pytest.mark.sampled(least=1, each=False, group="interpreters with a library")
def test_two_processes_record_what_one_does_and_compute_what_they_do_without(programs: Any) -> None:
    options = {"gradient_accumulation_steps": 2, "bf16": True, "activation_checkpointing": True, "max_steps": 2}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    found = programs.launch(launcher, "trainer", "torchrun", **options)
    assert found.folders == [f"step{step}/rank{rank}" for step in (0, 1) for rank in (0, 1)]
    alone = programs.train("trainer", "alone", **options)
    assert [dump.names for dump in found.dumps] == [alone.dumps[0].names] * 4
    without = programs.train("trainer", "without", processes=2, callback=False, **options)
    assert len(without.bits) == 2 and found.bits == without.bits
