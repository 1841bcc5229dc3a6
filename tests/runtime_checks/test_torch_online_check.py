"""`online_check` with torch: every operator, in the forward, the backward and the optimizer."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planted_operators import planted

from msprobe.pytorch import PtdbgDispatch, online_check
from probe.backends.torch.hooks import operators
from probe.common.errors import MsprobeException
from probe.common.interfaces import Handle


def train(**optimizer_settings: Any) -> list[bytes]:
    torch.manual_seed(3)
    layers = [torch.nn.Linear(16, 32), torch.nn.Dropout(0.3), torch.nn.ReLU(inplace=True), torch.nn.BatchNorm1d(32)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), 0.01, **optimizer_settings)
    for _ in range(2):
        model(torch.randn(8, 16)).mul_(2).add_(torch.rand(32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [torch.rand(1).numpy().tobytes(), *(value.numpy().tobytes() for value in model.state_dict().values())]


@pytest.mark.parametrize("settings", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_the_training_is_bitwise_what_it_is_without(settings: dict[str, Any]) -> None:
    expected = train(**settings)
    with online_check() as check:
        assert train(**settings) == expected
    assert check.checked > 40
    assert check.failures == []
    assert train(**settings) == expected


@pytest.mark.parametrize("name", ["_passed_over", "_draws", "_returning_written", "_name"])
def test_an_operator_that_cannot_be_looked_at_runs_all_the_same(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: Any) -> Any:
        raise ZeroDivisionError(name)

    expected = train()
    monkeypatch.setattr(operators, name, failing)
    with online_check() as check:
        assert train() == expected
    assert check.checked == 0
    assert f"ZeroDivisionError: {name}; the program goes on." in capsys.readouterr().err


def test_correct_operators_of_half_precision() -> None:
    torch.manual_seed(0)
    with online_check() as check:
        for dtype in (torch.bfloat16, torch.float16):
            x = torch.randn(2, 4, 16, 32).to(dtype).requires_grad_()
            query, key = x * 0.5, (x @ torch.randn(32, 32).to(dtype)).relu()
            hidden = F.scaled_dot_product_attention(query, key, x)
            hidden = F.rms_norm(F.silu(hidden), (32,)) + F.softmax(x, -1)
            F.cross_entropy(hidden.reshape(-1, 32), torch.arange(128) % 32).backward()
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(torch.randn(4, 32), torch.randn(16, 32)).sum()
    assert check.failures == []
    assert check.checked > 30
    assert any("scaled_dot_product" in name for name in check.counts)


def wrong(kernel: Any) -> Any:
    def run(x: torch.Tensor) -> torch.Tensor:
        right = x * torch.sigmoid(x)
        return right if x.dtype == torch.float64 else kernel(right)

    return run


def test_a_wrong_operator_is_found_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with planted("silu", wrong(lambda right: right * 1.002)), online_check(str(tmp_path)) as check:
        F.silu(torch.randn(4, 16) @ torch.randn(16, 16)).exp().sum()
    assert [(each.name, each.verdict.status) for each in check.failures] == [("Aten.silu.0", "error")]
    assert "error: Aten.silu.0 float32 [4, 16]: every element 0.2 % high: scale" in capsys.readouterr().err
    (table,) = tmp_path.glob("msprobe_rank0_*/compare_result_rank0_*.csv")
    (row,) = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    assert (row["operation"], row["verdict"], row["shape"]) == ("Aten.silu.0", "error", "[4, 16]")
    assert table.stat().st_mode & 0o777 == 0o640


def test_a_wrong_operator_of_the_backward() -> None:
    def backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        s = torch.sigmoid(x)
        right = gradient * s * (1 + x * (1 - s))
        return right if x.dtype == torch.float64 else right * 1.002

    with planted("silu_backward", backward), online_check() as check:
        F.silu(torch.randn(64, requires_grad=True)).square().sum().backward()
    assert [each.name for each in check.failures] == ["Aten.silu_backward.0"]


def test_an_operator_that_writes_in_place_is_judged_by_what_went_in() -> None:
    x = torch.randn(64)
    with online_check() as check:
        x.mul_(3).exp_()
        torch.add(x, x, out=x)
    assert check.checked == 3
    assert check.failures == []


def test_random_operators_views_and_memory_are_left_alone() -> None:
    with online_check() as check:
        x = torch.rand(4, 8)
        F.dropout(x.t().reshape(-1).to(torch.bfloat16), 0.5)
        torch.zeros_like(x).fill_(1)
        x.clone()
    assert not check.counts.keys() & {"Aten.t", "Aten.view", "Aten._to_copy", "Aten.native_dropout", "Aten.zeros_like"}
    assert check.checked <= 3  # what dropout multiplies


def test_every_nth_call_small_tensors_and_a_share_of_the_time_are_checked() -> None:
    x = torch.randn(64)
    with online_check(every=4) as check:
        for _ in range(9):
            x = x * 1.5
    assert check.checked == 3
    with online_check(most_elements=10) as check:
        x * 2
    assert check.checked == 0
    assert dict(check.left_out) == {"its tensors have more than 10 elements": 1}
    with online_check(share=1e-9) as check:
        for _ in range(9):
            x * 2
    assert check.checked == 1
    assert check.left_out["the share of time is used up"] == 8


def test_chosen_operators() -> None:
    x = torch.randn(4, 4)
    with online_check(api_list=["mm"]) as check:
        (x @ x).exp()
    assert check.checked == 1
    with PtdbgDispatch(dump_mode="list", api_list=["exp"]) as check:
        (x @ x).exp()
    assert check.checked == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"every": 0}, "online_check: every is 0; allowed: an integer from 1."),
        ({"share": -1}, "online_check: share is -1; allowed: a number above 0, or None."),
        ({"api_list": "mm"}, "online_check: api_list is"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_error(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(MsprobeException, match=words):
        online_check(**settings)


def test_an_error_of_the_program_passes() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), online_check():
        torch.randn(2, 3) @ torch.randn(2, 3)
    with online_check() as check:
        torch.ones(2) + 1
    assert check.checked == 1


class FailingHandle:
    """Lets go of the operators, and fails afterwards."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def remove(self) -> None:
        self._handle.remove()
        raise ZeroDivisionError("remove")


def test_a_failure_at_the_end_neither_hides_the_error_of_the_program_nor_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = online_check(str(tmp_path))
    with planted("silu", wrong(lambda right: right * 1.002)), pytest.raises(RuntimeError, match="shapes"), check:
        assert check._handle is not None
        check._handle = FailingHandle(check._handle)
        F.silu(torch.randn(64))
        torch.randn(2, 3) @ torch.randn(2, 3)
    assert "ZeroDivisionError: remove; the program goes on." in capsys.readouterr().err
    assert list(tmp_path.glob("msprobe_rank0_*/compare_result_rank0_*.csv"))
