"""The rows of a monitor and a verdict in TensorBoard, Weights & Biases and MLflow, with the packages themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import probe
from probe.api.trackers import scalars
from probe.common.errors import MsprobeException
from probe.compare.in_python import Verdict

NAME = "rank0/actv/head[0].output/norm"
VALUES = [1.0, 2.5]
CASES = Path(__file__).parents[1] / "compare" / "cases" / "multi_rank"


@pytest.fixture
def monitor(tmp_path: Path) -> Path:
    folder = tmp_path / "monitor_output" / "rank0"
    folder.mkdir(parents=True)
    rows = [f"0,head[0].output,{step},0,{value}" for step, value in enumerate(VALUES)]
    (folder / "actv_0-9.csv").write_text("\n".join(["vpp_stage,name,step,micro_step,norm", *rows, ""]))
    return folder.parent


@pytest.fixture
def verdict() -> Verdict:
    return probe.verdict(CASES / "target", CASES / "golden")


def test_rows_of_the_root_module_have_a_name(monitor: Path) -> None:
    with (monitor / "rank0" / "actv_0-9.csv").open("a") as file:
        file.write("0,.output,1,0,7.0\n")
    (_, first), (_, second) = scalars(monitor)
    assert first == {NAME: VALUES[0]} and second == {NAME: VALUES[1], "rank0/actv/root.output/norm": 7.0}


def test_tensorboard_has_the_rows_and_the_text(monitor: Path, verdict: Verdict, tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    probe.to_tensorboard(tmp_path / "logs", monitor, verdict)
    found = accumulators.EventAccumulator(str(tmp_path / "logs")).Reload()
    events = found.Scalars(f"precision/{NAME}")
    assert [(event.step, event.value) for event in events] == [*enumerate(VALUES)]
    (text,) = found.Tensors("precision/verdict")[0].tensor_proto.string_val
    assert text.decode().split("  \n")[0] == verdict.answer[0]


def test_wandb_gets_them_on_an_axis_of_their_own(
    monitor: Path, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged: list[dict[str, Any]] = []
    run = wandb.init(mode="offline", dir=str(tmp_path), project="probe")
    run.log({"loss": 1.0}, step=1000)
    log = run.log
    monkeypatch.setattr(run, "log", lambda values: (logged.append(values), log(values)))
    probe.to_wandb(run, monitor, verdict)
    summary = dict(run.summary)
    run.finish()
    assert [(each["precision/step"], each[f"precision/{NAME}"]) for each in logged] == [*enumerate(VALUES)]
    assert summary["precision/conclusion"] == "divergence" and summary[f"precision/{NAME}"] == VALUES[-1]
    assert summary["precision/verdict"] == str(verdict)
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_what_is_no_run_of_wandb_is_refused_before_anything_is_read() -> None:
    with pytest.raises(MsprobeException, match=r"run is None; give the run that wandb.init\(\) returns"):
        probe.to_wandb(None, "no_such_folder")


def test_mlflow_gets_them_under_names_that_it_takes(
    monitor: Path, verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    # Newer releases ask for a database and take a folder if they are told so.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        probe.to_mlflow(monitor, verdict)
    client = mlflow.tracking.MlflowClient()
    history = client.get_metric_history(run.info.run_id, "precision/rank0/actv/head_0_.output/norm")
    assert [(each.step, each.value) for each in history] == [*enumerate(VALUES)]
    assert client.get_run(run.info.run_id).data.tags["precision.conclusion"] == "divergence"
    (path,) = tmp_path.glob("runs/**/precision_verdict.txt")
    assert path.read_text(encoding="utf-8") == str(verdict)
