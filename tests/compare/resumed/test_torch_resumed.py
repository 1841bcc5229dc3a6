"""A training that is resumed from its checkpoint, with a part of its state that is not brought back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from printed_json import hold_to_schema

from probe.api import cli
from probe.common.errors import MsprobeException
from probe.compare.resumed.answer import ResumedAnswer, compare_resumed, lines
from probe.compare.resumed.state import KEPT, LOST, UNTOLD

torch = pytest.importorskip("torch")
nn = torch.nn
AT = 4
"""The step at which the training was interrupted."""


class Training:
    """A classifier with dropout, AdamW, a schedule and a shuffled loader, whose checkpoint has all of its state."""

    def __init__(self, optimizer: str = "AdamW", dropout: float = 0.2, noise: float = 0.0) -> None:
        torch.manual_seed(0)
        self.noise = noise
        generator = torch.Generator().manual_seed(1)
        data = torch.utils.data.TensorDataset(
            torch.randn(64, 12, generator=generator), torch.randint(4, (64,), generator=generator)
        )
        self.order = torch.Generator().manual_seed(2)
        self.loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, generator=self.order)
        self.model = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 16), nn.Linear(16, 4)
        )
        rules = {"AdamW": {"lr": 1e-2}, "SGD": {"lr": 1e-1, "momentum": 0.9}}
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), **rules[optimizer])
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, 1.0, 10)
        self.begun, self.taken = self.order.get_state(), 0

    def state(self) -> dict[str, Any]:
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": _cloned(self.optimizer.state_dict()),
            "schedule": dict(self.schedule.state_dict()),
            "generator": torch.get_rng_state(),
            "order": self.begun,
            "taken": self.taken,
        }

    def restore(self, state: dict[str, Any], lost: str) -> None:
        weights = state["model"]
        if lost == "weights in float16":
            stored = {key: value.half() for key, value in weights.items() if key.endswith(("weight", "bias"))}
            weights = {**weights, **{key: value.float() for key, value in stored.items()}}
        if lost == "all buffers":
            weights = {key: value for key, value in weights.items() if key.endswith(("weight", "bias"))}
        if lost == "buffers":
            weights = {key: value for key, value in weights.items() if "running" not in key}
        self.model.load_state_dict(weights, strict=False)
        if lost not in ("optimizer", "optimizer and its rate"):
            self.optimizer.load_state_dict(state["optimizer"])
        if lost == "optimizer":
            self.optimizer.param_groups[0]["lr"] = state["optimizer"]["param_groups"][0]["lr"]
        if lost not in ("schedule", "schedule alone"):
            self.schedule.load_state_dict(state["schedule"])
        if lost == "schedule":
            self.optimizer.param_groups[0]["lr"] = self.optimizer.param_groups[0]["initial_lr"] * 0.1
        if lost != "generator":
            torch.set_rng_state(state["generator"])
        if lost != "data":
            self.begun, self.taken = state["order"], state["taken"]

    def run(self, debugger: Any, steps: int) -> None:
        self.order.set_state(self.begun)
        batches = list(self.loader)[self.taken :]
        for batch, labels in batches[:steps]:
            batch = batch + self.noise * torch.randn_like(batch) if self.noise else batch
            debugger.start(self.model)
            nn.functional.cross_entropy(self.model(batch), labels).backward()
            self.optimizer.step()
            debugger.stop()
            debugger.step()
            self.optimizer.zero_grad()
            self.schedule.step()
            self.taken += 1


def _cloned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cloned(each) for key, each in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


def resumed(
    new_debugger: Any,
    folder: Path,
    lost: str = "",
    optimizer: str = "AdamW",
    steps: tuple[str, ...] = (f"{AT}-6",),
    dropout: float = 0.2,
    noise: float = 0.0,
) -> ResumedAnswer:
    """Both runs, dumped and compared; of the uninterrupted one `steps` are recorded."""
    whole = Training(optimizer, dropout, noise)
    whole.run(_Nothing(), AT)
    state = whole.state()
    whole = Training(optimizer, dropout, noise)
    whole.run(new_debugger(level="mix", dump_path=str(folder / "whole"), step=list(steps)), 7)
    again = Training(optimizer, dropout, noise)
    again.restore(state, lost)
    again.run(new_debugger(level="mix", dump_path=str(folder / "again")), 2)
    return compare_resumed(str(folder / "again"), str(folder / "whole"))


class _Nothing:
    def start(self, model: Any) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...


def text_of(answer: ResumedAnswer) -> str:
    return "\n".join(line for line, _ in lines(answer))


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD"])
def test_a_run_that_brings_everything_back_is_the_same(new_debugger: Any, tmp_path: Path, optimizer: str) -> None:
    answer = resumed(new_debugger, tmp_path, optimizer=optimizer)
    assert text_of(answer).startswith("resumed in the same state: 2 steps with the same values"), text_of(answer)
    assert answer.first == (0, AT) and not answer.differs
    assert {each.status for each in answer.states} == {KEPT}, text_of(answer)
    assert [each.name.partition(" ")[0] for each in answer.states] == [
        "weights", "buffers", "optimizer", "schedule", "generators", "data"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lost", "name", "words"),
    [
        ("weights in float16", "weights", "numbers of float16, in which the checkpoint has them"),
        ("buffers", "buffers", "1.running_mean, 1.running_var of 3 differ"),
        ("all buffers", "buffers", "1.num_batches_tracked, 1.running_mean of the resumed run are 0"),
        ("optimizer", "optimizer (AdamW)", "state step 1 and not 5 of 8 parameters: its state begins anew"),
        ("schedule", "schedule", "and not "),
        ("schedule alone", "schedule", "lr = 0.00874 and not 0.0055 from step 1 (step 5) on"),
        ("generator", "generators", "torch is in another state; Functional.dropout.0.forward draws other numbers"),
        (
            "data",
            "data",
            "the first batch is that of step 0 of the other run, and not of step 4: the order begins anew",
        ),
    ],
)
def test_the_part_that_was_not_brought_back_is_named_alone(
    new_debugger: Any, tmp_path: Path, lost: str, name: str, words: str
) -> None:
    steps = (f"{AT}-6",) if lost == "generator" else ("0-6",)
    answer = resumed(new_debugger, tmp_path, lost, steps=steps)
    assert [each.name for each in answer.lost] == [name], text_of(answer)
    assert words in answer.lost[0].text, text_of(answer)
    assert "e+30" not in text_of(answer)
    assert answer.first == (0, AT) and answer.differs


def test_a_rate_that_never_changed_does_not_show_that_its_schedule_is_restored(
    new_debugger: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.optim.lr_scheduler, "LinearLR", lambda optimizer, *_: torch.optim.lr_scheduler.StepLR(optimizer, 6)
    )
    answer = resumed(new_debugger, tmp_path, "schedule alone")
    (schedule,) = [each for each in answer.states if each.name == "schedule"]
    assert (schedule.status, schedule.text.partition("; ")[2]) == (KEPT, "a later change by a schedule is not seen")


def test_moments_without_a_count_of_steps_are_told_by_their_updates(new_debugger: Any, tmp_path: Path) -> None:
    answer = resumed(new_debugger, tmp_path, "optimizer", optimizer="SGD")
    assert [each.name for each in answer.lost] == ["optimizer (SGD)"], text_of(answer)
    assert "the same gradient makes another update" in answer.lost[0].text


def test_a_momentum_that_begins_anew_with_another_rate_is_told_relative_to_it(
    new_debugger: Any, tmp_path: Path
) -> None:
    answer = resumed(new_debugger, tmp_path, "optimizer and its rate", optimizer="SGD")
    assert [each.name for each in answer.lost] == ["optimizer (SGD)", "schedule"], text_of(answer)
    assert "another update relative to the learning rate" in answer.lost[0].text


@pytest.mark.parametrize(
    ("lost", "parts", "words"),
    [
        ("generator", ["generators"], "other random numbers in it"),
        ("data", ["data"], "an order that begins anew is found if that run is recorded from step 0 on"),
    ],
)
def test_a_batch_that_is_not_recorded_may_have_other_random_numbers_in_it(
    new_debugger: Any, tmp_path: Path, lost: str, parts: list[str], words: str
) -> None:
    answer = resumed(new_debugger, tmp_path, lost, noise=0.1)
    assert [each.name for each in answer.lost] == parts, text_of(answer)
    assert words in next(each.text for each in answer.states if each.name == "data")


def test_a_generator_that_begins_anew_draws_the_numbers_of_another_step(new_debugger: Any, tmp_path: Path) -> None:
    answer = resumed(new_debugger, tmp_path, "generator", steps=("0-6",))
    assert [each.name for each in answer.lost] == ["generators"], text_of(answer)
    assert "draws other numbers from the same arguments" in answer.lost[0].text


def test_steps_with_the_same_parameters_cannot_be_told_apart(new_debugger: Any, tmp_path: Path) -> None:
    resumed(new_debugger, tmp_path)
    shutil.copytree(tmp_path / "whole" / f"step{AT}", tmp_path / "whole" / "step9")
    with pytest.raises(MsprobeException, match=rf"steps {AT}, 9 of .* begin with the same parameters"):
        compare_resumed(str(tmp_path / "again"), str(tmp_path / "whole"))


@pytest.mark.parametrize("dropout", [0.2, 0.0], ids=["draws", "nothing is drawn"])
def test_a_state_that_was_not_recorded_is_not_told(new_debugger: Any, tmp_path: Path, dropout: float) -> None:
    answer = resumed(new_debugger, tmp_path, steps=("2-6",), dropout=dropout)
    assert not answer.differs and answer.first == (0, AT)
    assert [(each.name, each.status) for each in answer.states if each.status != KEPT] == [("generators", UNTOLD)]
    assert all(each.status != LOST for each in answer.states)


def test_the_command_answers_and_refuses_what_does_not_fit(
    new_debugger: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed(new_debugger, tmp_path, "optimizer")
    runs = [str(tmp_path / "again"), str(tmp_path / "whole")]
    capsys.readouterr()
    assert cli.main(["compare", *runs, "--resumed"]) == 0
    assert capsys.readouterr().out.startswith("not resumed in the same state: optimizer (AdamW) not restored")
    assert cli.main(["compare", *runs, "--resumed", "--fail-on", "divergence", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    hold_to_schema(found, "compare --resumed")
    assert (found["resumed_step"], found["uninterrupted_step"], found["steps"][0]) == (0, AT, [0, AT])
    assert cli.main(["compare", *runs, "--resumed-at", "9"]) == 2
    assert "has no step 9; recorded are 4, 5, 6" in capsys.readouterr().err
