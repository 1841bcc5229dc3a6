"""Rows as TensorBoard files and as a database; the two commands of msProbe that read anomalies."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from monitor_rows import MadeTraining, write_first_layout

from probe.api.cli import main
from probe.api.commands.monitor import main as analyse
from probe.common.errors import MsprobeException
from probe.monitor.monitor_run import read_monitor
from probe.monitor.tensorboard import csv2tensorboard_by_step

CASES = Path(__file__).parent / "cases"


def test_the_command_of_msprobe_analyses_anomalies(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "msprobe.core.monitor.anomaly_processor"]
    folder = CASES / "v1_alert" / "anomaly_detected"
    done = subprocess.run([*command, "-d", folder, "-o", tmp_path / "new", "-k", "4"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "new" / "anomaly_analyse.json").read_text())
    assert written == json.loads((folder / "anomaly_analyse.json").read_text())


@pytest.mark.parametrize("steps", ["[3,5]", "3,5"])
def test_steps_and_number_of_anomalies(steps: str, tmp_path: Path) -> None:
    folder = str(CASES / "v1_alert" / "anomaly_detected")
    assert analyse(["-d", folder, "-o", str(tmp_path), "-k", "100", "-s", steps]) == 0
    found = json.loads((tmp_path / "anomaly_analyse.json").read_text()).values()
    places = [(each["step"], each["call_id"]) for each in found]
    assert places == sorted(places) and {step for step, _ in places} == {3, 5} and len(places) == 24


@pytest.mark.parametrize("arguments", [["-d", "nothing"], ["-d", ".", "-k", "0"], ["-d", ".", "-s", "x"], []])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert analyse(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_tensorboard_files_hold_every_row(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = MadeTraining()
    write_first_layout(tmp_path, [training.step(step) for step in range(3)])
    output = csv2tensorboard_by_step(str(tmp_path), process_num=2, data_type_list=["actv", "exp_avg"])
    assert sorted(path.name for path in (Path(output) / "rank0").iterdir()) == ["actv", "exp_avg"]
    events = EventAccumulator(str(Path(output) / "rank0" / "actv"))
    events.Reload()
    columns = read_monitor(str(tmp_path)).of_rank[0]["actv"]
    wanted = [norm for norm, name in zip(columns.statistics["norm"], columns.name) if name == "blocks.1.output"]
    found = events.Scalars("vp0:blocks.1.output:micro0/norm")
    assert [each.step for each in found] == [0, 1, 2]
    assert [each.value for each in found] == pytest.approx(wanted)


def test_folders_outside_the_times_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    write_first_layout(tmp_path, [MadeTraining().step(0)])
    for times in ({"time_start": "Nov27_10-00-01"}, {"time_end": "Nov27_09-59-59"}):
        with pytest.raises(MsprobeException, match="holds no rows of a monitor between"):
            csv2tensorboard_by_step(str(tmp_path), **times)
    assert csv2tensorboard_by_step(
        str(tmp_path), "Nov27_10-00-00", "Nov27_10-00-00", output_dirpath=str(tmp_path / "o")
    )


def test_the_database_holds_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mapping.json").write_text('{"module.": "", "blocks": "layers"}')
    arguments = ["data2db", "--data", str(CASES / "v1_ddp"), "--db", str(tmp_path)]
    assert main([*arguments, "--mapping", str(tmp_path / "mapping.json")]) == 0
    path = capsys.readouterr().out.strip()
    columns = read_monitor(str(CASES / "v1_ddp")).columns()
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT rank, step, metric_name, target_name, norm FROM trend_data "
            "JOIN monitoring_metrics USING (metric_id) "
            "JOIN monitoring_targets USING (target_id)"
        ).fetchall()
    connection.close()
    names = [name.replace("module.", "").replace("blocks", "layers") for name in columns["name"]]
    wanted = zip(columns["rank"], columns["step"], columns["family"], names, columns["norm"])
    assert sorted(rows) == sorted(wanted)
