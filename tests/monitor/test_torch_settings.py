"""Settings of the monitor in trainings: each one changes what it says, or one line says that it changes nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from monitored import monitor, rows
from torch import nn

import probe
from probe.api.cli import main
from probe.api.monitoring.second import TrainerMonitorV2
from probe.api.pytorch import PrecisionDebugger
from probe.monitor import schedule
from probe.monitor.schedule import request_dump


class Training:
    """A small model with its monitor; `steps` trains it."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.monitor = monitor(self.model, self.optimizer, **settings)

    def steps(self, count: int, factor: float = 1.0) -> None:
        for _ in range(count):
            (self.model(torch.randn(2, 4)) * factor).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def collected(family: str) -> list[int]:
    """The steps of a family that have a file."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in Path().glob(f"monitor_output/*/{family}_*.csv"))


def dumps() -> list[str]:
    return sorted(path.name for path in Path().glob("monitor_output/*/dump_step*"))


def test_a_target_selects_tensors_of_its_module() -> None:
    last = {"input": "tuple[1]:0", "output_grad": "tuple[1]:0", "output": "list[2]:1"}
    targets = {"0": {"output": "tensor"}, "2": last}
    training = Training(targets=targets, xy_distribution=True)
    training.steps(1)
    training.monitor.stop()
    assert [row["name"] for row in rows("actv_0-0")] == ["0.output", "2.input"]
    assert [row["name"] for row in rows("actv_grad_0-0")] == ["2.output"]


def test_ranks_that_are_not_monitored_write_and_hook_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    training = Training(wg_distribution=True, module_ranks=[1])
    training.steps(1)
    training.monitor.stop()
    assert training.monitor.folder == ""
    assert not Path("monitor_output").exists()
    assert not training.optimizer._optimizer_step_post_hooks
    Path("second.json").write_text('{"rank": [1, 2]}')
    second = TrainerMonitorV2("second.json")
    second.start(training.model, training.optimizer)
    second.stop()
    told = "".join(capsys.readouterr())
    for key in ("module_ranks has 1", "rank has 1-2"):
        assert f"[WARNING] rank 0 is not monitored; {key}. This training has a single process" in told


def test_output_is_appended_to_a_folder_whose_time_lies_in_the_range() -> None:
    Training(wg_distribution=True).monitor.stop()
    (made,) = Path("monitor_output").iterdir()
    times = [made.name[: len("Nov27_14-20-00")]] * 2
    training = Training(wg_distribution=True, append_output=times)
    training.steps(1)
    training.monitor.stop()
    assert list(Path("monitor_output").iterdir()) == [made]
    assert (made / "grad_reduced_0-0.csv").exists()


def test_the_format_api_has_values_and_no_files() -> None:
    training = Training(wg_distribution=True, xy_distribution=True, format="api")
    training.steps(1)
    reduced, _ = training.monitor.generate_wgrad_metrics()
    # The gradient of the last bias is the number of rows.
    assert reduced["0:2.bias/rank0/post_grad"] == {"norm": 2.0}
    training.monitor.stop()
    assert not list(Path("monitor_output").rglob("*.*"))


def test_the_format_tensorboard_has_a_scalar_for_each_value_and_step() -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = Training(wg_distribution=True, format="tensorboard")
    training.steps(2)
    training.monitor.stop()
    events = EventAccumulator(training.monitor.folder)
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("0:2.bias/rank0/post_grad_norm")] == [(0, 2.0), (1, 2.0)]


def test_an_alert_can_end_the_training_after_the_step() -> None:
    training = Training(wg_distribution=True, alert={"rules": [], "actions": ["file", "stop"]})
    training.steps(6)
    with pytest.raises(SystemExit, match="step 6 is abnormal, and the action is stop"):
        training.steps(3, factor=float("nan"))
    assert collected("grad_reduced") == list(range(7))
    training.monitor.stop()


def test_an_armed_dump_holds_the_one_step_that_follows() -> None:
    training = Training(wg_distribution=True, step_interval=3, alert={"rules": [], "actions": ["dump"]})
    training.steps(18)
    training.steps(1, factor=float("inf"))
    training.steps(4)
    training.monitor.stop()
    assert dumps() == ["dump_step19"]
    (path,) = Path().glob("monitor_output/*/dump_step19/step0/*/dump.json")
    names = json.loads(path.read_text())["data"]
    assert {name for name in names if name.startswith("Module.0.")} >= {"Module.0.Linear.forward.0"}
    assert not any(".forward.1" in name for name in names)


def test_a_dump_is_refused_beside_a_debugger_of_the_program(capfd: pytest.CaptureFixture[str]) -> None:
    training = Training(wg_distribution=True)
    debugger = PrecisionDebugger(dump_path="own", level="L0")
    try:
        training.monitor._dump.arm(0)
        training.steps(2)
    finally:
        debugger.reset()
        training.monitor.stop()
    assert not dumps()
    assert "step 1 is not dumped, since the program has a PrecisionDebugger of its own" in capfd.readouterr().err


def test_the_file_starts_and_stops_the_monitor(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    monkeypatch.setattr(schedule, "_LOOKS_EVERY", 0.0)
    training = Training(wg_distribution=True, dynamic_on=False)

    def edited(text: str) -> None:
        path = Path("config.json")
        later = path.stat().st_mtime_ns + 10**9
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(later, later))

    training.steps(2)
    edited('{"wg_distribution": true, "dynamic_on": true}')
    training.steps(3)  # the change is seen after step 2
    assert collected("grad_reduced") == [3, 4]
    edited('{"wg_distribution": tr')
    training.steps(1)
    assert "The monitor goes on as before." in capfd.readouterr().err
    edited('{"wg_distribution": true, "dynamic_on": false}')
    training.steps(3)
    # Step 6 had begun when the file was seen.
    assert collected("grad_reduced") == [3, 4, 5, 6]
    edited('{"param_distribution": true, "dynamic_on" :  true, "collect_times": 2}')
    training.steps(5)
    assert (collected("grad_reduced"), collected("param_origin")) == ([3, 4, 5, 6], [10, 11])
    assert Path("config.json").read_text() == '{"param_distribution": true, "dynamic_on" :  false, "collect_times": 2}'
    training.monitor.stop()


def test_a_request_dumps_the_next_step_whatever_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    from probe.api.monitoring import monitor as armed_dump

    monkeypatch.setattr(armed_dump, "_LOOK_SECONDS", 0.0)
    training = Training(wg_distribution=True, collect_times=1)
    training.steps(3)
    (request,) = request_dump("monitor_output")
    training.steps(3)
    training.monitor.stop()
    assert dumps() == ["dump_step4"]
    assert not Path(request).exists()


def test_a_job_in_another_process_is_told_to_dump_its_next_step(folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(
        "import glob, json, time, torch\n"
        "from msprobe.pytorch import TrainerMon\n"
        "json.dump({'wg_distribution': True, 'step_count_per_record': 10000}, open('config.json', 'w'))\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "monitor = TrainerMon('config.json', params_have_main_grad=False)\n"
        "monitor.set_monitor(model, optimizer)\n"
        "for step in range(6000):\n"
        "    model(torch.randn(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
        "    time.sleep(0.01)\n"
        "    left = left - 1 if glob.glob('monitor_output/*/dump_step*') else 3\n"
        "    if not left:\n"
        "        break\n",
        encoding="utf-8",
    )
    with ThreadPoolExecutor() as pool:
        job = pool.submit(forks.run_python, "torch", script)
        while not job.done() and not list(Path().glob("monitor_output/*/grad_reduced_*.csv")):
            time.sleep(0.05)
        assert main(["monitor", "dump", "monitor_output"]) == 0
    assert job.result().returncode == 0, job.result().stderr
    (path,) = Path().glob("monitor_output/*/dump_step*/step0/*/dump.json")
    assert "Module.Linear.forward.0" in json.loads(path.read_text())["data"]


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Averaged(Training):
    def steps(self, count: int, factor: float = 1.0) -> None:
        for _ in range(count):
            self.model(torch.ones(2, 4)).sum().backward()
            torch.distributed.all_reduce(self.model[2].bias.grad)
            # What is filled holds anything before the call.
            torch.distributed.all_gather([torch.full((3,), 9.0)], torch.ones(3))
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_communication_has_a_row_for_each_call_and_direction(group: None) -> None:
    training = Averaged(cc_distribution={"enable": True, "cc_pre_hook": True}, ops=["max"])
    training.steps(1)
    training.monitor.stop()
    found = [{key: row[key] for key in ("name", "direction", "group", "bytes", "max")} for row in rows("comm_0-0")]
    row = {"name": "all_reduce", "direction": "pre", "group": "1", "bytes": "4", "max": "2.0"}
    gathered = {**row, "name": "all_gather", "bytes": "12", "max": "1.0"}
    after = [{**each, "direction": "post"} for each in (row, gathered, {**gathered, "name": "all_gather.1"})]
    assert found == [row, after[0], gathered, *after[1:]]


def test_the_places_of_communication_are_logged_and_the_training_ends_where_that_is_wanted(
    group: None, capfd: pytest.CaptureFixture[str]
) -> None:
    communication = {"enable": True, "cc_log_only": True}
    training = Averaged(cc_distribution=communication)
    training.steps(2)
    training.monitor.stop()
    said = capfd.readouterr().err
    assert said.count("the communication of a step") == 1
    assert '{"all_reduce": [["test_torch_settings.py[' in said and '"all_gather": [["test_torch_settings.py[' in said
    training = Averaged(cc_distribution=communication, start_step=1, exit=True)
    training.steps(1)
    with pytest.raises(SystemExit, match="cc_log_only"):
        training.steps(1)
    training.monitor.stop()


def test_settings_without_effect_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    settings = {"squash_name": True, "monitor_mbs_grad": True, "l2_targets": {"moe_router_weight_hook": []}}
    Training(**settings).monitor.stop()
    said = capfd.readouterr().err
    for text in (
        '"squash_name" has no effect; names are written in full.',
        '"monitor_mbs_grad" has no effect without "wg_distribution".',
        '"l2_targets" has no effect without "recording_l2_features".',
        '"l2_targets.moe_router_weight_hook" is empty and has no effect; it needs the names of routers.',
    ):
        assert said.count(text) == 1, said


def test_a_failure_while_it_is_stopped_does_not_reach_the_training(capfd: pytest.CaptureFixture[str]) -> None:
    training = Training(wg_distribution=True)
    training.steps(1)

    files = training.monitor._closing[-1].__self__
    stream = next(iter(files._open.values()))
    os.close(stream.fileno())
    training.monitor.stop()
    assert "monitor: stop: OSError: [Errno 9] Bad file descriptor" in capfd.readouterr().err
    assert not training.optimizer._optimizer_step_pre_hooks


class OwnOptimizer:
    """An optimizer without hooks, as those of Megatron are."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self._inner, self.fails = inner, False

    def step(self) -> None:
        if self.fails:
            raise RuntimeError("out of memory")
        self._inner.step()


@pytest.mark.parametrize("own", [True, False])
def test_a_step_that_raises_leaves_no_row(own: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    inner: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = OwnOptimizer(inner) if own else inner
    made = monitor(model, optimizer, wg_distribution=True, param_distribution=True, ops=["norm"])

    def backward() -> None:
        inner.zero_grad()
        model(torch.randn(2, 4)).sum().backward()

    def fail() -> None:
        raise RuntimeError("out of memory")

    backward()
    if own:
        optimizer.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        optimizer.step() if own else inner.step(fail)
    optimizer.fails = False
    backward()
    expected = float(model.weight.grad.norm())
    optimizer.step()
    made.stop()
    for name in ("grad_reduced_0-0", "grad_unreduced_0-0"):
        found = {row["name"]: float(row["norm"]) for row in rows(name)}
        assert found["weight"] == pytest.approx(expected, rel=1e-6) and len(rows(name)) == 2
    assert len(rows("param_origin_0-0")) == 2


def test_names_that_a_spreadsheet_would_compute_are_texts_and_are_read_back() -> None:
    model = nn.Module()
    model.add_module("=cmd()", nn.Linear(4, 1))
    model.forward = lambda x: model._modules["=cmd()"](x)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    made = monitor(model, optimizer, wg_distribution=True, xy_distribution=True, stack_info=True)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    made.stop()
    assert [row["name"] for row in rows("grad_reduced_0-0")] == ["'=cmd().weight", "'=cmd().bias"]
    frame = probe.load_monitor("monitor_output")
    assert {"=cmd().weight", "=cmd().input"} <= set(frame["name"])


@pytest.mark.parametrize("by_closure", [False, True])
def test_gradients_are_those_of_the_step_where_a_closure_makes_them(by_closure: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = monitor(model, optimizer, wg_distribution=True, format="api")
    expected = []

    def closure() -> Any:
        optimizer.zero_grad()
        loss = model(torch.randn(2, 3)).square().sum()
        loss.backward()
        assert model.weight.grad is not None
        expected.append(float(model.weight.grad.norm()))
        return loss

    for _ in range(3):
        if by_closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        reduced, _ = made.generate_wgrad_metrics()
        assert reduced["0:weight/rank0/post_grad"]["norm"] == pytest.approx(expected[-1], rel=1e-6)
    assert len(expected) == 3
