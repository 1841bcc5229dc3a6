"""Which calls of a dump are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_dumps import call, tensor, written

from probe.calls.cases import Selection, cases_of, not_run
from probe.common.errors import MsprobeException


def record(largest: float = 1.0, size: int = 3) -> dict[str, Any]:
    entry = tensor(largest, 0.0, 0.5, shape=[size], requires_grad=True)
    return call([entry], [entry])


def test_a_case_is_a_forward_with_its_backward(tmp_path: Path) -> None:
    data = {"Functional.relu.0.forward": record(), "Torch.exp.0.forward": record(),
            "Functional.relu.0.backward": {"input": [], "output": []}}  # fmt: skip
    relu, exp = cases_of(written(tmp_path, data), Selection())
    assert (relu.name, relu.base) == ("Functional.relu.0", "Functional.relu")
    assert relu.backward is not None
    assert exp.backward is None


def test_modules_and_saved_values_are_no_cases(tmp_path: Path) -> None:
    data = {"Module.fc.Linear.forward.0": record(), "Functional.linear.0.forward": record()}
    found = cases_of(written(tmp_path, data, level="mix"), Selection())
    assert [case.name for case in found] == ["Functional.linear.0"]


@pytest.mark.parametrize("level", ["L0", "debug"])
def test_a_dump_without_calls_of_functions_is_refused(tmp_path: Path, level: str) -> None:
    with pytest.raises(MsprobeException, match=rf'"level" is "{level}".*"L1" or "mix"'):
        cases_of(written(tmp_path, {}, level=level), Selection())


def test_a_dump_without_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match=r'"task" is "structure".*"tensor"'):
        cases_of(written(tmp_path, {}, task="structure"), Selection())


def test_of_calls_that_differ_in_values_only_one_stays_and_says_for_how_many_it_stands(tmp_path: Path) -> None:
    data = {f"Torch.exp.{number}.forward": record(number, 3 if number < 3 else 4) for number in range(5)}
    found = cases_of(written(tmp_path, data), Selection(distinct=True))
    assert [(case.name, case.stands_for) for case in found] == [("Torch.exp.0", 3), ("Torch.exp.3", 2)]


def test_a_name_on_both_lists_is_left_out() -> None:
    selection = Selection(frozenset(("linear", "relu")), frozenset(("relu",)))
    assert selection.leaves_out("Functional.linear") is None
    assert selection.leaves_out("Functional.relu") == "relu is in black_list"
    assert selection.leaves_out("Torch.exp") == "exp is not in white_list"


@pytest.mark.parametrize(
    ("base", "reason"),
    [("Distributed.all_reduce", "the other ranks"), ("MintDistributed.all_gather", "the other ranks"),
     ("Tensor.to", "computes nothing"), ("Torch.empty_like", "computes nothing"),
     ("Aten.new_empty.default", "computes nothing"), ("Torch.exp", None)],
)  # fmt: skip
def test_what_is_never_run_says_why(base: str, reason: str | None) -> None:
    found = not_run(base)
    assert found is None if reason is None else found is not None and reason in found
