"""Trainings of all kinds with a monitor: accumulation, scalers, compiled models, chunks, other optimizers, kills."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from monitored import monitor, rows
from torch import nn

from probe.api.monitoring.second import TrainerMonitorV2
from probe.api.pytorch import TrainerMon
from probe.common.errors import MsprobeException


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))


def test_micro_batches_are_counted_and_a_wrong_number_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = monitor(model, optimizer, xy_distribution=True, wg_distribution=True, monitor_mbs_grad=True)
    for _ in range(2):
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    made.stop()
    assert sorted({row["micro_step"] for row in rows("actv_1-1")}) == ["0", "1", "2"]
    last = {row["name"]: row["norm"] for row in rows("grad_unreduced_1-1") if row["micro_step"] == "2"}
    assert last == {row["name"]: row["norm"] for row in rows("grad_reduced_1-1")}
    assert "grad_acc_steps is 1, and step 0 had 3 micro batches" in capfd.readouterr().err


def test_the_input_of_a_module_that_works_in_place_is_read_before_the_call() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = monitor(model, optimizer, xy_distribution=True, ops=["min"])
    model(torch.randn(16, 4)).sum().backward()
    optimizer.step()
    made.stop()
    values = {row["name"]: float(row["min"]) for row in rows("actv_0-0")}
    assert values["1.input"] < 0 <= values["1.output"]


def test_a_second_call_of_a_module_has_rows_of_its_own_and_no_grad_has_none() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.inner(x))

    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = monitor(model, optimizer, xy_distribution=True)
    with torch.no_grad():
        model(torch.randn(2, 4))
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    made.stop()
    names = [row["name"] for row in rows("actv_0-0")]
    assert names == ["inner.input", "inner.output", "inner.input.1", "inner.output.1", ".input", ".output"]
    gradients = [row["name"] for row in rows("actv_grad_0-0")]
    assert {"inner.output", "inner.output.1"} <= set(gradients)


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize(
    ("kind", "family"),
    [("SGD", "momentum_buffer"), ("RMSprop", "square_avg"), ("Adagrad", "sum"), ("AdamW", "exp_avg")],
)
def test_states_of_any_optimizer_are_families(kind: str, family: str) -> None:
    model = network()
    more = {"momentum": 0.9} if kind == "SGD" else {}
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01, **more)
    made = monitor(model, optimizer, mv_distribution=True, mg_direction=True)
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    # A scheduler that is made later finds the bound method that it looks for.
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    made.stop()
    assert [row["name"] for row in rows(f"{family}_1-1")] == [name for name, _ in model.named_parameters()]


def test_a_step_that_a_scaler_skips_is_not_counted() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    made = monitor(model, optimizer, wg_distribution=True, xy_distribution=True)
    for factor in (1.0, float("inf"), 1.0):
        scaler.scale(model(torch.randn(2, 4)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    made.stop()
    assert sorted(path.name for path in Path().glob("monitor_output/*/actv_*-*.csv") if "grad" not in path.name) == [
        "actv_0-0.csv",
        "actv_1-1.csv",
    ]
    assert {row["micro_step"] for row in rows("actv_1-1")} == {"0"}
    assert all(float(row["norm"]) < 1e6 for row in rows("grad_reduced_1-1"))


def test_chunks_and_compiled_models() -> None:
    chunks = [network(), torch.compile(network(), backend="eager")]
    parameters = [each for chunk in chunks for each in chunk.parameters()]
    optimizer = torch.optim.Adam(parameters)
    made = monitor(chunks, optimizer, wg_distribution=True, xy_distribution=True)
    for _ in range(2):
        sum(chunk(torch.randn(2, 4)).sum() for chunk in chunks).backward()
        optimizer.step()
    made.stop()
    assert {(row["vpp_stage"], row["name"]) for row in rows("grad_reduced_1-1")} == {
        (stage, name) for stage in "01" for name in ("0.weight", "0.bias", "2.weight", "2.bias")
    }


def test_nothing_is_hooked_between_collected_steps_and_after_stop() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    made = monitor(model, optimizer, xy_distribution=True, wg_distribution=True, start_step=5)

    def hooks() -> int:
        modules = sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in model.modules())
        return modules + sum(len(each._post_accumulate_grad_hooks or ()) for each in model.parameters())

    assert not hooks()
    made.stop()
    made = monitor(model, optimizer, xy_distribution=True, wg_distribution=True)
    assert hooks()
    made.stop()
    assert not hooks()
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_the_second_monitor_counts_steps_by_hand() -> None:
    Path("out").mkdir()
    content = {"output_dir": "out", "monitors": {"module": {"enabled": True}, "weight_grad": {"enabled": True}}}
    Path("v2.json").write_text(json.dumps(content), encoding="utf-8")
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    made = TrainerMonitorV2("v2.json")
    made.start(model=model)
    for _ in range(2):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        made.step()
    made.stop()
    assert sorted(path.name for path in Path("out/rank_0").iterdir()) == [
        "module_step0-0.csv", "module_step1-1.csv", "weight_grad_step0-0.csv", "weight_grad_step1-1.csv",
    ]  # fmt: skip


def test_wrong_arguments_are_refused_before_anything_is_hooked() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Path("config.json").write_text("{}", encoding="utf-8")
    made = TrainerMon("config.json")
    with pytest.raises(MsprobeException, match="model is a str; allowed: a module"):
        made.set_monitor("model", optimizer)
    with pytest.raises(MsprobeException, match="grad_acc_steps is 0; allowed: whole numbers from 1"):
        made.set_monitor(model, optimizer, 0)
    # As the documentation prints the arguments.
    made.set_monitor(model, 1, optimizer)
    made.stop()


def test_a_killed_process_keeps_every_step_that_has_ended(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(
        "import json, os, signal, torch\n"
        "from msprobe.pytorch import TrainerMon\n"
        "json.dump({'wg_distribution': True, 'step_count_per_record': 100}, open('config.json', 'w'))\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "monitor = TrainerMon('config.json', params_have_main_grad=False)\n"
        "monitor.set_monitor(model, optimizer)\n"
        "for step in range(10):\n"
        "    model(torch.randn(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        encoding="utf-8",
    )
    ended = forks.run_python("torch", script)
    assert ended.returncode == -9
    assert sorted({int(row["step"]) for row in rows("grad_reduced_0-99")}) == list(range(10))


def test_a_process_that_was_forked_says_one_line_and_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = monitor(model, optimizer, wg_distribution=True, alert={"rules": []})

    def steps(count: int) -> None:
        for _ in range(count):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()

    steps(1)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            steps(3)
            made.stop()
        os._exit(0)
    os.waitpid(child, 0)
    steps(1)
    made.stop()
    assert {path.name for path in Path().glob("monitor_output/*/grad_reduced_*")} == {
        "grad_reduced_0-0.csv", "grad_reduced_1-1.csv",
    }  # fmt: skip
    assert [len(rows(f"grad_reduced_{step}-{step}")) for step in (0, 1)] == [4, 4]
    assert capfd.readouterr().err.count("was forked from the one that is monitored; its steps are not written") == 1


def test_statistics_that_one_element_does_not_have_are_no_alert() -> None:
    model = network()
    nn.init.zeros_(model[2].weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ops = ["norm", "min", "max", "mean", "std", "kurtosis", "id"]
    families = {"wg_distribution": True, "param_distribution": True, "ur_distribution": True, "xy_distribution": True}
    features = {"recording_l2_features": True, "l2_targets": {"linear_hook": []}}
    made = monitor(model, optimizer, ops=ops, alert={"rules": [], "actions": []}, **families, **features)
    found: list[Any] = []
    made.alerts.callbacks.append(found.extend)
    for _ in range(3):
        model(torch.randn(2, 4)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    made.stop()
    assert [each.text() for each in found] == []
