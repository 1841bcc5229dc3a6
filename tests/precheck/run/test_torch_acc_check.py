"""`msprobe acc_check` on a step of PyTorch: what correct kernels, wrong kernels and damaged files come to."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted_kernels
import pytest
import torch
from planted_kernels import FAULTS, IN_FLOAT32, PLACES, planted

from msprobe.pytorch import PrecisionDebugger
from probe.api.cli import main
from probe.api.replaying import acc_check
from probe.calls.cases import Selection
from probe.common.errors import MsprobeException
from probe.common.numerics.formats import TABLE
from probe.common.parallel.tasks import Where
from probe.precheck.report import Report

REPLAY = Path(__file__).parents[1] / "cases" / "replay" / "dump.json"
NAMES = ("accuracy_checking_result", "accuracy_checking_details", "precheck")


def check(path: str, folder: Path, **options: Any) -> Report:
    return acc_check(path, output=str(folder), **options)


def failing(report: Report) -> dict[str, str]:
    return {result.base: result.status for result in [*report.failed, *report.suspects]}


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_correct_kernels_pass(recorded: dict[str, str], tmp_path: Path, task: str) -> None:
    report = check(recorded[task], tmp_path)
    assert report.failed == []
    assert len(report.suspects) <= 0.02 * len(report.results)
    run = [result for result in report.results if not result.not_run]
    assert len(run) > 120
    assert sum(bool(result.backward) for result in run) > 60
    assert {result.not_run for result in report.results if result.not_run} <= {"to computes nothing"}
    assert {result.inputs for result in run} == {"recorded" if task == "tensor" else "generated"}


def test_recorded_results_are_judged_without_running_them(recorded: dict[str, str], tmp_path: Path) -> None:
    report = check(recorded["tensor"], tmp_path, devices=["recorded"])
    assert report.failed == []
    assert len(report.suspects) <= 0.02 * len(report.results)
    assert sum(bool(result.rows) for result in report.results) > 120
    of_one_node = [result for result in report.results if result.base == "Functional.silu"]
    assert all(any(row.of for row in result.rows) for result in of_one_node)


def test_the_four_planted_kernels_of_the_recorded_calls_are_found(tmp_path: Path) -> None:
    """The real tool passes three of them in part, and the NaN altogether in its second stage."""
    wrong = {
        "Functional.silu": (torch.nn.functional, "silu", lambda x: x * (1 + 2e-3)),
        "Functional.linear": (torch.nn.functional, "linear", planted_kernels.through(torch.bfloat16)),
        "Torch.rsqrt": (torch, "rsqrt", planted_kernels.through(torch.float16)),
        "Functional.embedding": (torch.nn.functional, "embedding", FAULTS["NaN in one element"]),
    }
    with contextlib.ExitStack() as plants:
        for owner, name, fault in wrong.values():
            plants.enter_context(planted(owner, name, fault))
        report = check(str(REPLAY), tmp_path)
    assert failing(report) == {base: "nonfinite" if "embedding" in base else "error" for base in wrong}
    assert failing(check(str(REPLAY), tmp_path)) == {}


@pytest.fixture(scope="module")
def one_of_each(recorded: dict[str, str]) -> Selection:
    return Selection(frozenset(base.rpartition(".")[2] for base in PLACES), frozenset())


@pytest.mark.sampled(least=6)
@pytest.mark.parametrize("fault", [*FAULTS, *IN_FLOAT32])
@pytest.mark.parametrize("base", PLACES)
def test_a_wrong_kernel_is_found_and_nothing_else(
    recorded: dict[str, str], one_of_each: Selection, tmp_path: Path, base: str, fault: str
) -> None:
    owner, name = PLACES[base]
    with planted(owner, name, {**FAULTS, **IN_FLOAT32}[fault]):
        report = check(recorded["tensor"], tmp_path, selection=one_of_each)
    dtypes = ["float32", "bfloat16", "float16"] if fault in FAULTS else ["float32"]
    # In half precision 5 % are twelve units of the last place, of which a kernel may reach some.
    named = [result for result in [*report.failed, *report.suspects] if result.base == base]
    assert {row.dtype for result in named for row in result.rows} >= set(dtypes)
    assert {result.base for result in report.failed} <= {base}


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a run by the beginnings of their names; of the JSON without times and paths."""
    found = {}
    for path in folder.iterdir():
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(json.loads(content)["cases"]).encode()
        found[path.name.rpartition("_")[0] + path.suffix] = content
    return found


@pytest.mark.sampled(least=2, each=False, group="several processes with a framework")
def test_several_processes_write_the_same_files(recorded: dict[str, str], tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder, jobs in zip(folders, (1, 2)):
        report = check(recorded["statistics"], folder, where=Where(jobs))
        assert sorted(map(Path, report.files)) == sorted(folder.iterdir()), "each file is named"
    one, two = map(contents, folders)
    assert set(one) == {f"{name}.csv" for name in NAMES} | {"precheck.json", "precheck.jsonl"}
    assert one == two


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


A_FEW = Selection(frozenset(("linear", "silu", "softmax", "sort", "__setitem__", "to")))


@pytest.fixture(scope="module")
def whole(recorded: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a run over a few calls that ended; nobody changes them."""
    folder = tmp_path_factory.mktemp("whole")
    check(recorded["tensor"], folder, selection=A_FEW)
    return folder


@pytest.mark.sampled()
@pytest.mark.parametrize("cut", [1, 40, 300, 2000, 9000])
@pytest.mark.parametrize("name", ["accuracy_checking_result", "accuracy_checking_details", "precheck"])
def test_a_run_that_was_killed_is_taken_up_where_it_ended(
    recorded: dict[str, str], whole: Path, tmp_path: Path, name: str, cut: int
) -> None:
    """Whatever byte of its journal was the last one that it wrote, and whichever of its tables is named."""
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)
    (journal,) = killed.glob("precheck_*.jsonl")
    os.truncate(journal, journal.stat().st_size - cut)
    for path in (*killed.glob("*.csv"), *killed.glob("precheck_*.json")):
        path.unlink()
    resume = str(journal).replace("precheck", name).replace(".jsonl", ".csv")
    report = check(recorded["tensor"], killed, selection=A_FEW, resume=resume)
    assert contents(killed) == contents(whole)
    assert 0 < report.checked < len(report.results)


def test_the_tables_of_a_run_have_their_names_from_its_beginning(recorded: dict[str, str], tmp_path: Path) -> None:
    """Scripts look for them after a kill."""
    with pytest.raises(KeyboardInterrupt), planted(torch.nn.functional, "silu", interrupt):
        check(recorded["tensor"], tmp_path)
    (result,), (details,) = (list(tmp_path.glob(f"accuracy_checking_{kind}_*")) for kind in ("result", "details"))
    assert rows(str(result)) == rows(str(details)) == []
    report = check(recorded["tensor"], tmp_path, resume=str(result))
    assert len(rows(str(result))) == len(report.results)


@pytest.mark.parametrize(
    ("flag", "value", "text"),
    [
        ("-d", "recorded", "device was cpu in the earlier run and is recorded now"),
        ("--seed", "7", "seed was 1234 in the earlier run and is 7 now"),
        ("--rules", "msprobe", "rules was probe in the earlier run and is msprobe now"),
    ],
)
def test_a_run_goes_on_with_its_own_settings_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, value: str, text: str
) -> None:
    """The tables would mix the results of both."""
    path = dump_of(tmp_path / "run", lambda: torch.exp(torch.ones(3)))
    command = ["acc_check", "-api_info", path, "-o", str(tmp_path / "out")]
    assert main([*command, "-d", "cpu"]) == 0
    (table,) = (tmp_path / "out").glob("accuracy_checking_result_*.csv")
    before = contents(tmp_path / "out")
    device = [] if flag == "-d" else ["-d", "cpu"]
    assert main([*command, *device, flag, value, "-csv_path", str(table)]) == 2
    assert text in capsys.readouterr().err
    assert contents(tmp_path / "out") == before
    assert main([*command, "-d", "cpu", "-csv_path", str(table)]) == 0


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_table_without_a_journal_is_refused(
    recorded: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a run of msProbe leaves it: its cases were not judged by our rules."""
    table = tmp_path / "accuracy_checking_result_20260102030405.csv"
    table.write_text("API name,Forward Test Success,Backward Test Success,Message\n")
    command = ["acc_check", "-api_info", recorded["tensor"], "-o", str(tmp_path), "-csv_path", str(table)]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "precheck_20260102030405.jsonl: there is no such file" in said and "without -csv_path" in said
    assert [path.name for path in tmp_path.iterdir()] == [table.name]


@pytest.mark.parametrize("fault", ["", "every element 5 % high"])
def test_the_drop_in_tables_have_the_statuses_of_the_verdicts(
    recorded: dict[str, str], tmp_path: Path, fault: str
) -> None:
    words = {"exact": "pass", "pass": "pass", "suspect": "warning"}
    with planted(torch.nn.functional, "silu", FAULTS[fault]) if fault else contextlib.nullcontext():
        report = check(recorded["tensor"], tmp_path)
    verdicts = {row.name: words.get(row.verdict.status, "error") for result in report.results for row in result.rows}
    (details,), (results,) = (tmp_path.glob(f"accuracy_checking_{kind}_*.csv") for kind in ("details", "result"))
    statuses = {row["API Name"]: row["Status"] for row in rows(str(details))}
    assert {name: statuses[name] for name in verdicts} == verdicts
    assert {status for name, status in statuses.items() if name not in verdicts} <= {"SKIP"}
    wrong = {row["API Name"] for row in rows(str(results)) if "error" in row.values()}
    assert wrong == {result.name for result in report.failed} and bool(wrong) == bool(fault)


def test_the_command_says_which_call_is_wrong(
    recorded: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with planted(torch.nn.functional, "silu", FAULTS["every element 5 % high"]):
        status = main(["acc_check", "-api_info", recorded["tensor"], "-o", str(tmp_path), "-f", "-save_error_data"])
    out = capsys.readouterr().out
    assert status == 1
    assert "error: Functional.silu.0.forward.output.0: float32 [8, 24]" in out
    assert "5 % high" in out
    assert "next: msprobe replay" in out
    (folder,) = tmp_path.glob("ut_error_data*")
    names = sorted(path.name for path in folder.glob("Functional.silu.0.*"))
    assert names == [f"Functional.silu.0.{name}.0.pt" for name in (
        "backward.input", "backward.output.bench", "backward.output.device", "forward.input", "forward.output.bench",
        "forward.output.device",
    )]  # fmt: skip


def test_the_status_is_0_where_all_passes_and_2_for_a_wrong_command(
    recorded: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acc_check", "-api_info", str(REPLAY), "-o", str(tmp_path)]) == 0
    assert "each result is as exact as its operation can be" in capsys.readouterr().out
    assert main(["acc_check", "-o", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-d", "cuda:7"], "--device is 'cuda:7'; this machine has"),
        (["-d", "cpu", "cpu"], "each may be given once"),
        (["-csv_path", "nothing.csv"], "nothing.csv"),
        (["--against", "nothing.csv"], "nothing.csv"),
        (["-config", "nothing.json"], "nothing.json"),
    ],
)
def test_a_wrong_option_is_refused_before_any_work(
    recorded: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert main(["acc_check", "-api_info", recorded["tensor"], "-o", str(tmp_path / "out"), *arguments]) == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.rglob("*details*"))


def test_lists_of_the_configuration_are_used(recorded: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"acc_check": {"white_list": ["silu", "gelu"], "black_list": ["gelu"]}}))
    assert main(["acc_check", "-api_info", recorded["tensor"], "-o", str(tmp_path), "-config", str(config)]) == 0
    (table,) = tmp_path.glob("accuracy_checking_result_*.csv")
    run = [row["API Name"] for row in rows(str(table)) if row["Forward Test Success"] != "SKIP"]
    assert run == ["Functional.silu.0", "Functional.silu.1", "Functional.silu.2"]
    skipped = {row["API Name"]: row["Message"] for row in rows(str(table)) if row["Forward Test Success"] == "SKIP"}
    assert skipped["Functional.gelu.0"] == "gelu is in black_list"
    assert skipped["Functional.linear.0"] == "linear is not in white_list"


def test_both_stages_in_one_command(recorded: dict[str, str], tmp_path: Path) -> None:
    first = tmp_path / "gpu"
    check(recorded["tensor"], first, headers="msprobe")
    (gpu,) = first.glob("accuracy_checking_details_*.csv")
    with planted(torch.nn.functional, "silu", FAULTS["twice as large"]):
        report = check(recorded["tensor"], tmp_path / "npu", against=str(gpu))
    assert report.against is not None
    assert {name.rpartition(".")[0] for name in report.against.worse} == {"Functional.silu"}
    (table,) = (tmp_path / "npu").glob("api_precision_compare_result_*.csv")
    wrong = {row["API Name"].rpartition(".")[0] for row in rows(str(table)) if row["Forward Test Success"] == "error"}
    assert wrong == {"Functional.silu"}


def test_the_users_process_keeps_what_it_has(recorded: dict[str, str], tmp_path: Path) -> None:
    """Whoever calls it from Python gets no other random numbers and no other functions afterwards."""
    silu, state, threads = torch.nn.functional.silu, torch.get_rng_state(), torch.get_num_threads()
    check(recorded["statistics"], tmp_path, selection=Selection(frozenset(("silu", "dropout"))))
    assert torch.nn.functional.silu is silu
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def dump_of(folder: Path, calls: Callable[[], object], task: str = "tensor", risk_level: str = "FOCUS") -> str:
    """Return the path of the dump of some calls, collected in this process."""
    PrecisionDebugger.reset()
    settings = {"dump_path": str(folder), "task": task, "level": "L1", "risk_level": risk_level}
    configuration = folder.with_suffix(".json")
    configuration.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(config_path=str(configuration))
    debugger.start()
    calls()
    debugger.stop()
    debugger.step()
    PrecisionDebugger.reset()
    (path,) = folder.glob("step0/*/dump.json")
    return str(path)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_tensors_of_float8_are_made_again_and_judged(tmp_path: Path, task: str) -> None:
    short = [getattr(torch, line.name) for line in TABLE if line.bits == 8 and line.name.startswith("float8")
             and hasattr(torch, line.name)]  # fmt: skip
    given = [torch.rand(3, 4).add_(0.5).to(dtype) for dtype in short]
    path = dump_of(tmp_path / "run", lambda: [x.t() for x in given], task)
    report = check(path, tmp_path / "right")
    assert [result.status for result in report.results] == ["exact"] * len(short)
    assert len(short) >= 2
    with planted(torch.Tensor, "t", lambda x: (x.float() * 4).to(x.dtype)):
        report = check(path, tmp_path / "wrong")
    assert [result.status for result in report.results] == ["error"] * len(short)
    (details,) = (tmp_path / "wrong").glob("accuracy_checking_details*.csv")
    with details.open(encoding="utf-8-sig") as stream:
        written = [row["DEVICE Dtype"] for row in csv.DictReader(stream) if row["Shape"]]
    assert written == [str(dtype).partition(".")[2] for dtype in short]


def test_what_draws_random_numbers_is_not_judged(tmp_path: Path) -> None:
    x = torch.rand(64, 64)
    path = dump_of(tmp_path / "run", lambda: (torch.bernoulli(x), x.clone().normal_()))
    for device in ("cpu", "recorded"):
        found = {result.base: result.not_run for result in check(path, tmp_path / device, devices=[device]).results}
        assert found["Torch.bernoulli"] == found["Tensor.normal_"] == "it draws random numbers"


def test_a_gradient_that_is_gone_costs_no_forward(tmp_path: Path) -> None:
    x = torch.ones(3, requires_grad=True)
    path = dump_of(tmp_path / "run", lambda: torch.exp(x).sum().backward())
    (Path(path).parent / "dump_tensor_data" / "Torch.exp.0.backward.input.0.pt").unlink()
    exp = check(path, tmp_path / "out").results[0]
    assert (exp.forward, exp.backward) == ("pass", "not run") or exp.forward == "exact"
    assert "does not exist" in exp.backward_not_run or "cannot be read" in exp.backward_not_run


def test_a_failure_is_said_though_its_values_cannot_be_written(tmp_path: Path) -> None:
    path = dump_of(tmp_path / "run", lambda: torch.nn.functional.silu(torch.linspace(-3, 3, 99)))
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with planted(torch.nn.functional, "silu", FAULTS["twice as large"]):
        report = check(path, tmp_path / "out", error_data=str(taken))
    assert [result.status for result in report.results] == ["error"]
    assert report.results[0].saved == ()


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated:UserWarning")
def test_a_failure_is_said_though_lower_precision_cannot_be_tried(tmp_path: Path) -> None:
    """A matrix that is rounded may be positive definite no more, and cholesky raises then."""
    torch.manual_seed(0)
    base = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0]
    matrix = (base * torch.logspace(0, -5, 8, dtype=torch.float64) @ base.T).float()
    path = dump_of(tmp_path / "run", lambda: torch.cholesky(matrix))
    with planted(torch, "cholesky", FAULTS["one element 10 % off"]):
        assert [(result.status, result.not_run) for result in check(path, tmp_path / "out").results] == [("error", "")]


def test_a_plain_result_is_held_against_the_recorded_one(tmp_path: Path) -> None:
    x = torch.ones(3)
    path = dump_of(tmp_path / "run", lambda: torch.equal(x, x))
    assert check(path, tmp_path / "right", devices=["recorded"]).failed == []
    content = json.loads(Path(path).read_text())
    content["data"]["Torch.equal.0.forward"]["output"][0]["value"] = False
    Path(path).write_text(json.dumps(content))
    assert [result.base for result in check(path, tmp_path / "wrong", devices=["recorded"]).failed] == ["Torch.equal"]


def raising(result: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("kernel launch failed")


def rows_of(report: Report) -> dict[str, tuple[str, str]]:
    rows = [row for result in report.results for row in result.rows]
    return {row.name: (row.verdict.status, row.verdict.interpretation) for row in rows}


def test_a_kernel_that_raises_is_wrong(tmp_path: Path) -> None:
    """The reference has no trouble with the same inputs, and the recorded run had none."""
    x = torch.linspace(-3, 3, 9)
    path = dump_of(tmp_path / "run", lambda: torch.tanh(x))
    with planted(torch, "tanh", raising):
        found = rows_of(check(path, tmp_path / "out"))
    assert found == {"Torch.tanh.0.forward": ("error", "it raises RuntimeError: kernel launch failed")}
    (table,) = (tmp_path / "out").glob("accuracy_checking_result_*.csv")
    assert [row["Forward Test Success"] for row in rows(str(table))] == ["error"]


def test_a_backward_that_raises_costs_no_forward(tmp_path: Path) -> None:
    x = torch.linspace(-3, 3, 6, requires_grad=True)
    path = dump_of(tmp_path / "run", lambda: torch.exp(x).sum().backward())
    with planted(torch, "exp", lambda result: result.reshape(1, 6)):
        found = rows_of(check(path, tmp_path / "out"))
    assert found["Torch.exp.0.forward.output.0"] == ("structure", "shape [1, 6] where the reference has [6]")
    assert found["Torch.exp.0.backward"][0] == "error"


def test_a_result_of_another_dtype_is_wrong(tmp_path: Path) -> None:
    """However well it fits: nothing was cast when it was recorded."""
    x = torch.linspace(-3, 3, 9)
    path = dump_of(tmp_path / "run", lambda: torch.sigmoid(x))
    with planted(torch, "sigmoid", torch.Tensor.half):
        found = rows_of(check(path, tmp_path / "out"))
    assert found == {"Torch.sigmoid.0.forward.output.0": ("structure", "float16 where float32 was recorded")}


@pytest.mark.parametrize(("changed", "text"), [
    (lambda result: result[0], "values where the reference has"),
    (lambda result: None, "nothing where the reference has a tensor of shape [4]"),
])  # fmt: skip
def test_less_than_what_was_recorded_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: Callable[[Any], Any], text: str
) -> None:
    function = "sort" if "values" in text else "neg"
    path = dump_of(tmp_path / "run", lambda: getattr(torch, function)(torch.linspace(3, -3, 4)))
    right = getattr(torch, function)
    monkeypatch.setattr(torch, function, lambda x: right(x) if x.dtype == torch.float64 else changed(right(x)))
    ((status, found),) = rows_of(check(path, tmp_path / "out")).values()
    assert (status, text in found) == ("structure", True), found


def test_what_ran_under_autocast_is_run_under_it(tmp_path: Path) -> None:
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True)

    def calls() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = torch.nn.functional.linear(x, weight)
            loss = torch.nn.functional.softmax(product, -1, dtype=torch.float32).sin().sum()
        loss.backward()

    report = check(dump_of(tmp_path / "run", calls), tmp_path / "out")
    assert [(result.base, result.autocast) for result in report.results if result.autocast] == [
        ("Functional.linear", "bfloat16")
    ]
    assert report.failed == []


def test_a_dump_of_which_nothing_can_be_run_is_not_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump_of(tmp_path / "run", lambda: torch.exp(torch.ones(3)))
    for file in Path(path).parent.glob("dump_tensor_data/*"):
        file.unlink()
    assert main(["acc_check", "-api_info", path, "-o", str(tmp_path / "out")]) == 2
    out, error = capsys.readouterr()
    assert error.endswith(f"msprobe acc_check: no call of {path} could be run.\n")
    assert "0 calls run on cpu; 1 not run." in out
    assert "exact" not in out.splitlines()[0]


def test_a_dropout_that_scales_wrongly_is_wrong(tmp_path: Path) -> None:
    path = dump_of(tmp_path / "run", lambda: torch.nn.functional.dropout(torch.rand(64, 64) + 1, 0.3))
    assert check(path, tmp_path / "right").failed == []
    with planted(torch.nn.functional, "dropout", FAULTS["twice as large"]):
        assert [result.base for result in check(path, tmp_path / "wrong").failed] == ["Functional.dropout"]


def test_memory_that_is_not_there_is_no_fault_of_a_kernel(tmp_path: Path) -> None:
    def without_memory(result: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    path = dump_of(tmp_path / "run", lambda: torch.exp(torch.ones(3)))
    with planted(torch, "exp", without_memory):
        (exp,) = check(path, tmp_path / "out").results
    assert "out of memory" in exp.not_run


def test_a_table_of_another_dump_is_not_gone_on_with(recorded: dict[str, str], tmp_path: Path) -> None:
    check(str(REPLAY), tmp_path)
    (table,) = tmp_path.glob("accuracy_checking_result_*.csv")
    with pytest.raises(MsprobeException, match=r"dump was .*replay.* in the earlier run and is .* now"):
        check(recorded["tensor"], tmp_path, resume=str(table))


def test_a_dump_that_was_recorded_anew_is_not_gone_on_with(tmp_path: Path) -> None:
    path = dump_of(tmp_path / "run", lambda: torch.exp(torch.ones(3)))
    check(path, tmp_path / "out")
    (table,) = (tmp_path / "out").glob("accuracy_checking_result_*.csv")
    os.replace(dump_of(tmp_path / "other", lambda: torch.sin(torch.ones(3))), path)
    with pytest.raises(MsprobeException, match="belongs to another dump"):
        check(path, tmp_path / "out", resume=str(table))


def test_a_misspelt_name_is_refused(recorded: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match=r'"white_list" has "sillu".*silu'):
        check(recorded["tensor"], tmp_path, selection=Selection(frozenset(("sillu",))))


def test_a_dump_that_is_cut_off_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump_of(tmp_path / "run", lambda: (torch.exp(torch.ones(3)), torch.sin(torch.ones(3))))
    os.truncate(path, os.path.getsize(path) - 40)
    main(["acc_check", "-api_info", path, "-o", str(tmp_path / "out")])
    assert "is cut off at byte" in capsys.readouterr().out


def test_a_call_that_raised_when_it_was_recorded_is_not_judged(tmp_path: Path) -> None:
    def calls() -> None:
        with contextlib.suppress(RuntimeError):
            torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
        torch.exp(torch.ones(3))

    report = check(dump_of(tmp_path / "run", calls), tmp_path / "out")
    assert {result.base: result.not_run for result in report.results} == {
        "Torch.matmul": "it did not return when it was recorded", "Torch.exp": "",
    }  # fmt: skip


def test_digits_that_are_lost_without_autocast_are_not_excused_by_it(tmp_path: Path) -> None:
    """Adding bfloat16 to float32 gives float32, and autocast has no part in it."""
    half, single = torch.randn(64, 8).bfloat16(), torch.randn(64, 8)
    path = dump_of(tmp_path / "run", lambda: torch.add(half, single))
    assert check(path, tmp_path / "right").failed == []
    with planted(torch, "add", IN_FLOAT32["digits of bfloat16"]):
        assert [result.base for result in check(path, tmp_path / "wrong").failed] == ["Torch.add"]


NO_REFUSALS = [
    (RuntimeError("CUDA out of memory"), "there is not enough memory for it"),
    (RecursionError("maximum recursion depth exceeded"), "msprobe failed: RecursionError"),
]


def runs_under_autocast() -> bool:
    """The same in every version of PyTorch, without a warning: autocast computes this product in bfloat16."""
    return torch.ones(1, 1).mm(torch.ones(1, 1)).dtype == torch.bfloat16


@pytest.mark.parametrize(("error", "why"), NO_REFUSALS, ids=lambda each: type(each).__name__)
def test_autocast_without_memory_does_not_make_a_kernel_wrong(tmp_path: Path, error: Exception, why: str) -> None:
    """Nobody knows then if the call was recorded under autocast."""
    half, single = torch.randn(64, 8).bfloat16(), torch.randn(64, 8)
    path = dump_of(tmp_path / "run", lambda: torch.add(half, single))

    def fault(result: torch.Tensor) -> torch.Tensor:
        if runs_under_autocast():
            raise error
        return IN_FLOAT32["digits of bfloat16"](result)

    with planted(torch, "add", fault):
        (add,) = check(path, tmp_path / "out").results
    assert add.not_run.startswith(why)


def test_a_product_of_complex_numbers_is_rounded_more_than_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    z, w = torch.randn(40, 40, dtype=torch.complex64), torch.randn(40, 40, dtype=torch.complex64)
    path = dump_of(tmp_path / "run", lambda: (torch.mul(z, w), torch.div(z, w)))
    assert failing(check(path, tmp_path / "right")) == {}
    with planted(torch, "mul", FAULTS["one element 10 % off"]):
        assert [result.base for result in check(path, tmp_path / "wrong").failed] == ["Torch.mul"]


def test_the_recorded_gradient_of_a_cast_that_casts_nothing_is_not_its_own(tmp_path: Path) -> None:
    x = torch.linspace(-3, 3, 8, requires_grad=True)

    def step() -> None:
        hidden = x * 2
        (torch.exp(hidden.float()) + torch.sin(hidden)).sum().backward()

    path = dump_of(tmp_path / "run", step, risk_level="ALL")
    report = check(path, tmp_path / "out", devices=["recorded"])
    assert failing(report) == {}
    (cast,) = [result for result in report.results if result.base == "Tensor.float"]
    assert [row.verdict.status for row in cast.rows] == ["exact"]
    assert "autograd nodes" in cast.backward_not_run


def test_a_suspect_call_is_said_first_and_is_the_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.linspace(0.1, 3, 50)
    path = dump_of(tmp_path / "run", lambda: torch.mul(x, 1.5))
    with planted(torch, "mul", lambda result: result * (1 + 2.0**-22)):
        statuses = [
            main(["acc_check", "-api_info", path, "-o", str(tmp_path / "out"), *options])
            for options in ((), ("--fail-on", "suspect"), ("--fail-on", "error"), ("--fail-on", "never"))
        ]
    first = capsys.readouterr().out.splitlines()[0]
    assert (statuses, "1 suspect" in first) == ([1, 1, 0, 0], True), first


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("terms", [128, 2048])
def test_a_product_that_is_accumulated_in_half_precision_is_found(
    tmp_path: Path, dtype: torch.dtype, terms: int
) -> None:
    torch.manual_seed(1)
    left, right = torch.randn(24, terms).to(dtype), torch.randn(terms, 16).to(dtype)
    path = dump_of(tmp_path / "run", lambda: torch.matmul(left, right))
    assert failing(check(path, tmp_path / "right")) == {}
    with planted_kernels.accumulating_in_half(torch, "matmul"):
        found = rows_of(check(path, tmp_path / "wrong"))
    assert {status for status, _ in found.values()} == {"error"}
