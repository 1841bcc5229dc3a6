"""Task ``free_benchmark`` with torch: what it finds, what it leaves alone, and that the training is what it was."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planted_operators import planted

from msprobe.pytorch import PrecisionDebugger
from probe.common.errors import MsprobeException
from probe.runtime_checks.examination import MODES


class Check:
    """Runs functions under the task and gives the rows of ``free_benchmark.csv``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def debugger(self, mode: str, stage: str = "forward", **section: Any) -> PrecisionDebugger:
        settings = {
            "fuzz_device": "npu", "pert_mode": mode, "handler_type": "check", "fuzz_level": "L1", "fuzz_stage": stage,
            "if_preheat": False, "preheat_step": 15, "max_sample": 20, "scope": [], "list": [], **section,
        }  # fmt: skip
        content = {
            "task": "free_benchmark", "dump_path": str(self.folder / "out"), "level": "L1", "free_benchmark": settings,
        }  # fmt: skip
        path = self.folder / "config.json"
        path.write_text(json.dumps(content))
        return PrecisionDebugger(config_path=str(path))

    def rows(self) -> list[dict[str, str]]:
        found = sorted(self.folder.glob("out/step*/proc*/free_benchmark.csv"))
        return [row for path in found for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]

    def run(self, mode: str, function: Any, stage: str = "forward", **section: Any) -> list[dict[str, str]]:
        debugger = self.debugger(mode, stage, **section)
        debugger.start()
        function()
        debugger.stop()
        debugger.step()
        return self.rows()


@pytest.fixture
def check(tmp_path: Path) -> Any:
    yield Check(tmp_path)
    PrecisionDebugger.reset()


def names(rows: list[dict[str, str]]) -> set[tuple[str, str]]:
    return {(row["api_name"].rsplit(".", 2)[0], row["verdict"]) for row in rows}


# --- no false alarms


def recorded_calls() -> None:
    """The calls with which msProbe's own answers were recorded."""
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.cumsum(torch.rand(4096).to(dtype), 0)
        torch.sum((torch.randn(4096) * 100).to(dtype))
        torch.tan(torch.full((8,), 1.57).to(dtype))
        torch.sub(torch.full((64,), 1000.0).to(dtype) + torch.rand(64).to(dtype), torch.full((64,), 1000.0).to(dtype))
        torch.var((torch.randn(4096) + 100).to(dtype))
        torch.softmax((torch.randn(64) * 50).to(dtype), 0)
        torch.rand(16).to(dtype) * 2
        F.dropout(torch.ones(64).to(dtype), 0.5)


@pytest.mark.parametrize("mode", MODES)
def test_the_recorded_calls_have_no_wrong_kernel(check: Check, mode: str) -> None:
    found = names(check.run(mode, recorded_calls))
    # A tangent beside its pole, a difference of neighbours, a variance far below the square of the mean.
    expected = {("Torch.tan", "ill-conditioned"), ("Torch.sub", "ill-conditioned"), ("Torch.var", "ill-conditioned")}
    assert found <= (expected if mode in ("bit_noise", "add_noise") else set())
    assert mode != "bit_noise" or ("Torch.tan", "ill-conditioned") in found


def layers() -> None:
    torch.manual_seed(1)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 8, 64).to(dtype).requires_grad_()
        weight, bias = torch.randn(64, 64).to(dtype).requires_grad_(), torch.zeros(64).to(dtype).requires_grad_()
        hidden = F.layer_norm(F.linear(x, weight, bias), (64,))
        hidden = hidden + F.gelu(hidden)
        query, key = (F.linear(hidden, torch.randn(64, 64).to(dtype) / 8) for _ in range(2))
        hidden = F.scaled_dot_product_attention(query, key, hidden)
        mask = torch.zeros(8, 8).to(dtype).masked_fill(torch.ones(8, 8).triu(1).bool(), float("-inf"))
        scores = torch.softmax(query @ key.transpose(1, 2) / 8 + mask, -1)
        (scores @ hidden).float().square().mean().backward()


@pytest.mark.parametrize(
    ("mode", "stage"), [("bit_noise", "forward"), ("improve_precision", "backward"), ("no_change", "backward")]
)
def test_correct_layers_give_no_row(check: Check, mode: str, stage: str) -> None:
    assert check.run(mode, layers, stage) == []


def test_autocast_is_taken_along(check: Check) -> None:
    def cast() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = F.linear(torch.randn(4, 32), torch.randn(16, 32))
            F.linear(hidden, torch.randn(8, 16))

    assert check.run("no_change", cast) == []


def test_casts_are_not_checked(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    def casts() -> None:
        x = torch.rand(8)
        x.to(torch.bfloat16)
        x.half().float().type(torch.float64)

    assert check.run("bit_noise", casts) == []
    assert " 0 calls of step 0" in capsys.readouterr().err


def test_functions_that_a_user_registered_are_named_as_not_checked(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    class Library:
        twice = staticmethod(lambda x: x.numpy() * 2)
        thrice = staticmethod(lambda x: x.numpy() * 3)

    debugger, x = check.debugger("bit_noise"), torch.ones(3)
    for name in ("twice", "thrice"):
        debugger.register_custom_api(Library, name, "Mine")
    debugger.start()
    Library.twice(x), Library.thrice(x), Library.twice(x)
    debugger.stop()
    debugger.step()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "not checked" in line]
    assert line.endswith(
        "not checked, 3: a function that is not in the framework's lists cannot be run again: Mine.twice, Mine.thrice."
    )


# --- what is found


def test_a_kernel_that_is_not_deterministic(check: Check) -> None:
    draws = itertools.count()

    def silu(x: torch.Tensor) -> torch.Tensor:
        result = x * torch.sigmoid(x)
        result[next(draws) % 7] *= 1 + 2**-20
        return result

    with planted("silu", silu):
        rows = check.run("no_change", lambda: (F.silu(torch.randn(64)), F.relu(torch.randn(64))))
    assert names(rows) == {("Functional.silu", "not deterministic")}
    assert (rows[0]["dtype"], rows[0]["shape"]) == ("torch.float32", "torch.Size([64])")
    assert 0 < float(rows[0]["max_rel"]) < 1e-5


def test_random_calls_repeat_their_draws(check: Check) -> None:
    def draws() -> None:
        F.dropout(torch.ones(64), 0.5)
        torch.bernoulli(torch.full((64,), 0.5))

    assert check.run("no_change", draws) == []


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode not in ("no_change", "change_value", "to_cpu")])
def test_a_wrong_kernel_is_told_from_a_badly_conditioned_input(check: Check, mode: str) -> None:
    def silu(x: torch.Tensor) -> torch.Tensor:
        result = x * torch.sigmoid(x)
        # Right for most values, and very sensitive where it is not.
        return result if x.dtype == torch.float64 else result + 0.01 * torch.frac(x * 2**22)

    def calls() -> None:
        F.silu(torch.linspace(1, 3, 64))
        torch.sub(torch.linspace(1000, 1000.001, 64), torch.full((64,), 1000.0))

    with planted("silu", silu):
        found = names(check.run(mode, calls))
    assert ("Functional.silu", "unstable") in found
    assert found - {("Functional.silu", "unstable")} <= {("Torch.sub", "ill-conditioned")}
    assert mode != "add_noise" or ("Torch.sub", "ill-conditioned") in found


def test_a_sum_that_depends_on_the_order(check: Check) -> None:
    def sums(x: torch.Tensor, dim: Any, keepdim: bool = False, dtype: Any = None) -> torch.Tensor:
        if x.dtype == torch.float64:
            return torch.cumsum(x, dim[0]).select(dim[0], -1)
        return torch.cumsum(x, dim[0]).select(dim[0], -1) + 0.01 * x.select(dim[0], 0)

    with planted("sum.dim_IntList", sums):
        rows = check.run("change_value", lambda: torch.sum(torch.linspace(1, 2, 32), 0))
    assert names(rows) == {("Torch.sum", "unstable")}


def test_a_wrong_gradient(check: Check) -> None:
    def backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        s = torch.sigmoid(x)
        right = gradient * s * (1 + x * (1 - s))
        return right if x.dtype == torch.float64 else right * 1.002

    with planted("silu_backward", backward):
        rows = check.run(
            "improve_precision", lambda: F.silu(torch.randn(64, requires_grad=True)).sum().backward(), "backward"
        )
    assert names(rows) == {("Functional.silu", "unstable")}
    assert rows[0]["api_name"] == "Functional.silu.0.backward"
    assert rows[0]["stage"] == "backward"


def test_findings_are_in_the_file_before_the_step_ends(check: Check) -> None:
    debugger = check.debugger("bit_noise")
    debugger.start()
    torch.tan(torch.full((8,), 1.5707964))
    assert names(check.rows()) == {("Torch.tan", "ill-conditioned")}
    debugger.stop()


def test_a_rank_has_a_folder_of_its_own(check: Check) -> None:
    debugger = check.debugger("bit_noise")
    for _ in range(2):
        debugger.start(rank_id=3)
        torch.tan(torch.full((8,), 1.5707964))
        debugger.stop()
        debugger.step()
    for step in range(2):
        path = check.folder / f"out/step{step}/rank3/free_benchmark.csv"
        (row,) = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        assert (row["rank"], row["step"], row["stage"]) == ("3", str(step), "forward")
        assert path.stat().st_mode & 0o777 == 0o640
        assert path.parent.stat().st_mode & 0o777 == 0o750


# --- the training


def train(steps: int = 2, debugger: PrecisionDebugger | None = None) -> list[bytes]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(inplace=True))
    model.append(torch.nn.BatchNorm1d(32))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    states = []
    for _ in range(steps):
        if debugger is not None:
            debugger.start()
        loss = model(torch.randn(8, 16)).mul_(2).add_(torch.rand(32)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        states += [loss.detach().numpy().tobytes(), torch.get_rng_state().numpy().tobytes()]
    return states + [value.numpy().tobytes() for value in model.state_dict().values()]


@pytest.mark.parametrize(
    ("mode", "stage"),
    [("bit_noise", "forward"), ("add_noise", "backward"), ("no_change", "backward"), ("to_cpu", "forward")],
)
def test_the_training_is_bitwise_what_it_is_without(check: Check, mode: str, stage: str) -> None:
    expected = train()
    assert train(debugger=check.debugger(mode, stage)) == expected
    assert [row for row in check.rows() if row["verdict"] != "ill-conditioned"] == []


def test_in_place_calls_are_checked_with_what_went_in(check: Check) -> None:
    def in_place() -> None:
        x = torch.rand(64)
        x.mul_(3).exp_()
        F.relu(x, inplace=True)
        torch.add(x, x, out=x)

    assert check.run("improve_precision", in_place) == []


def test_a_generator_of_the_program_is_left_alone(check: Check) -> None:
    generator = torch.Generator().manual_seed(5)
    check.run("no_change", lambda: torch.bernoulli(torch.full((8,), 0.5), generator=generator))
    other = torch.Generator().manual_seed(5)
    torch.bernoulli(torch.full((8,), 0.5), generator=other)
    assert torch.equal(generator.get_state(), other.get_state())


def test_a_failure_of_the_tool_is_logged_once(
    check: Check, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise OSError("the disk is gone")

    monkeypatch.setattr("probe.runtime_checks.examination.FindingsFile.add", fails)
    for_tan = torch.full((8,), 1.5707964)
    assert check.run("bit_noise", lambda: (torch.tan(for_tan), torch.tan(for_tan))) == []
    said = capsys.readouterr().err
    assert said.count("the disk is gone") == 1
    assert "2 calls of step 0: 2 ill-conditioned; 2 of them could not be written." in said, "no file is named"


# --- the file of a step


POLE = torch.full((8,), 1.5707964)


def test_findings_go_to_the_folder_of_the_rank_once_it_is_known(
    check: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger, step = check.debugger("bit_noise"), check.folder / "out" / "step0"
    (step / "rank0").mkdir(parents=True)
    (step / "rank0" / "free_benchmark.csv").write_text("of an earlier run\n")
    for rank in (None, 0):
        debugger.start(rank_id=rank)
        torch.tan(POLE)
        debugger.stop()
    debugger.step()
    assert [path.name for path in step.iterdir()] == ["rank0"]
    table = step / "rank0" / "free_benchmark.csv"
    found = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert [(row["api_name"], row["rank"]) for row in found] == [
        ("Torch.tan.0.forward", ""), ("Torch.tan.1.forward", "0"),
    ]  # fmt: skip
    assert f"see {table}." in capsys.readouterr().err


@pytest.mark.parametrize("calls", [0, 1])
def test_the_file_of_an_earlier_run_does_not_stand_for_a_step_without_findings(check: Check, calls: int) -> None:
    check.run("bit_noise", lambda: torch.tan(POLE))
    PrecisionDebugger.reset()
    assert check.run("bit_noise", lambda: [torch.relu(torch.ones(3)) for _ in range(calls)]) == []


# --- what goes wrong

OUT_OF_MEMORY = [MemoryError("no room"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
REFUSED = ValueError("no such value")


def rows_of_failing(check: Check, error: Exception, failing: Sequence[int]) -> list[dict[str, str]]:
    """Those of a function of which the evaluations in float64 numbered `failing` raise `error`.

    Its result is right, since it enlarges the rounding errors of its inputs about 50 times.
    """
    count = itertools.count(1)

    def silu(x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64 and next(count) in failing:
            raise error
        return torch.exp(3 * x * x)

    with planted("silu", silu):
        return check.run("improve_precision", lambda: F.silu(torch.linspace(2, 4, 64)))


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_missing_memory_makes_no_kernel_wrong(
    check: Check, error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rows_of_failing(check, error, range(2, 99)) == []
    assert f"not checked, 1: MemoryError: {error}" in capsys.readouterr().err


def test_a_function_that_refuses_moved_inputs_is_judged_without_them(check: Check) -> None:
    (row,) = rows_of_failing(check, REFUSED, range(2, 99))
    assert row["verdict"] == "unstable"


# --- what is chosen


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"list": ["Tensor.tan"]}, ["Tensor.tan.0.forward"]),
        ({"scope": ["Torch.tan.1.forward", "Torch.tan.2.forward"]}, ["Torch.tan.1.forward", "Torch.tan.2.forward"]),
    ],
)
def test_lists_and_scopes_choose_calls(section: dict[str, Any], expected: list[str], check: Check) -> None:
    def calls() -> None:
        for _ in range(4):
            torch.tan(POLE)
        if "list" in section:
            POLE.tan()

    assert [row["api_name"] for row in check.run("bit_noise", calls, **section)] == expected


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"handler_type": "fix"}, 'free_benchmark.handler_type" is "fix", which changes the results of the training'),
        ({"pert_mode": "noise"}, 'free_benchmark.pert_mode" is "noise"; allowed: "improve_precision"'),
        ({"fuzz_stage": "both"}, 'free_benchmark.fuzz_stage" is "both"'),
    ],
)
def test_a_wrong_setting_is_one_error(check: Check, section: dict[str, Any], words: str) -> None:
    with pytest.raises(MsprobeException, match=words.replace("(", "\\(")):
        check.debugger(**{"mode": "no_change", **section})


def test_another_level_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match='task "free_benchmark" runs functions again; use "L1"'):
        PrecisionDebugger(task="free_benchmark", level="mix", dump_path=str(tmp_path))


def test_the_roundings_of_the_coarsest_input_are_the_measure(check: Check) -> None:
    # A result of float32 is no better than its input of bfloat16.
    assert check.run("bit_noise", lambda: torch.rand(64) * torch.rand(64).to(torch.bfloat16)) == []


def test_of_two_functions_with_one_name_the_right_one_runs_again(check: Check) -> None:
    # Both are Torch.svd; one returns V, the other its transpose.
    matrix = torch.randn(4, 4)
    assert check.run("improve_precision", lambda: (torch.linalg.svd(matrix), torch.svd(matrix))) == []
