"""`msprobe replay` on a step of PyTorch: three comparisons, what they mean, and smaller inputs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planted_kernels import FAULTS, IN_FLOAT32, PLACES, one_element, planted
from printed_json import hold_to_schema

import probe
from probe.api.cli import main
from probe.common.errors import MsprobeException

GRAPH = Path(__file__).parents[1] / "graph" / "cases" / "dumps" / "llama"
LLAMA = str(Path(__file__).parents[1] / "precheck" / "cases" / "replay" / "dump.json")


def result_of(found: probe.Replay, name: str) -> Any:
    (each,) = [one for one in found.replayed.results if one.row.name == name]
    return each


def name_of(path: str, base: str, dtype: str) -> str:
    """The first call of this function with an input of this dtype."""
    for record in probe.read(path):
        if record.name.startswith(f"{base}.") and record.name.endswith(".forward"):
            first = record.fields["input_args"][0]
            if first["dtype"] == f"torch.{dtype}":
                return str(record.name[: -len(".forward")])
    raise AssertionError(f"no {base} of {dtype}")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_correct_kernel_repeats_what_was_recorded_and_is_exact(recorded: dict[str, str], dtype: str) -> None:
    found = probe.replay(recorded["tensor"], name_of(recorded["tensor"], "Functional.silu", dtype))
    assert not found.is_wrong
    assert len(found.replayed.results) == 2
    for each in found.replayed.results:
        assert each.difference is not None
        assert each.difference.is_same
        assert each.row.dtype == dtype
        assert each.recorded == each.row.verdict
    assert "as exact as the operation can be, and reproducible bit for bit" in str(found)


@pytest.mark.parametrize("base", sorted(PLACES))
def test_a_wrong_kernel_of_now_is_told_from_a_right_recording(recorded: dict[str, str], base: str) -> None:
    name = name_of(recorded["tensor"], base, "float32")
    with planted(*PLACES[base], FAULTS["one element 10 % off"]):
        found = probe.replay(recorded["tensor"], f"{name}.forward")
    assert found.is_wrong
    assert (found.replayed.now, found.replayed.recorded) == ("error", found.replayed.results[0].recorded.status)
    assert found.replayed.recorded in ("exact", "pass")
    each = found.replayed.results[0]
    assert each.difference.count == 1
    assert each.difference.index == each.row.verdict.worst_index
    assert each.difference.now == each.row.verdict.worst_result
    assert "right when it was recorded, and wrong on cpu now" in str(found)


def test_a_wrong_recording_is_told_from_a_right_kernel_of_now(recorded: dict[str, str], tmp_path: Path) -> None:
    path, name = _with_other_output(recorded["tensor"], tmp_path, lambda x: x * 1.05)
    found = probe.replay(path, name)
    assert found.is_wrong
    assert (found.replayed.now, found.replayed.recorded) == ("pass", "error")
    assert "wrong when it was recorded, and right on cpu now" in str(found)


def test_a_kernel_that_is_wrong_each_time_is_the_kernel(recorded: dict[str, str], tmp_path: Path) -> None:
    path, name = _with_other_output(recorded["tensor"], tmp_path, lambda x: x * 1.05)
    with planted(F, "silu", lambda result: result * 1.05):
        found = probe.replay(path, f"{name}.forward")
    assert "wrong when it was recorded and now, and reproducible bit for bit: the kernel is wrong" in str(found)


def test_a_suspect_result_is_not_called_exact(recorded: dict[str, str]) -> None:
    name = name_of(recorded["tensor"], "Functional.silu", "float32")
    with planted(F, "silu", one_element(lambda result: result * (1 + 2e-6))):
        found = probe.replay(recorded["tensor"], f"{name}.forward")
    assert (found.replayed.now, found.is_wrong, found.is_suspect) == ("suspect", False, True)
    assert str(found).startswith(f"{name} on cpu: suspect: the error is larger than expected of the operation, but")
    assert found.as_json()["answer"].startswith("suspect: ")


def _with_other_output(path: str, tmp_path: Path, change: Callable[[Any], Any]) -> tuple[str, str]:
    """A dump whose first silu of float32 returned something else."""
    shutil.copytree(Path(path).parent, tmp_path / "changed")
    name = name_of(path, "Functional.silu", "float32")
    (file,) = (tmp_path / "changed" / "dump_tensor_data").glob(f"{name}.forward.output.0.pt")
    torch.save(change(torch.load(file, weights_only=True)), file)
    return str(tmp_path / "changed" / "dump.json"), name


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_one_direction_alone(recorded: dict[str, str], direction: str) -> None:
    name = name_of(recorded["tensor"], "Functional.silu", "float32")
    found = probe.replay(recorded["tensor"], f"{name}.{direction}")
    assert [each.row.name for each in found.replayed.results] == [f"{name}.{direction}.output.0"]


def test_gradients_of_inner_steps_are_not_taken_for_those_of_the_inputs(recorded: dict[str, str]) -> None:
    """A loss records the gradient that leaves its last step, which is not that of the scores."""
    found = probe.replay(recorded["tensor"], name_of(recorded["tensor"], "Functional.cross_entropy", "float32"))
    assert not found.is_wrong
    gradient = [each for each in found.replayed.results if each.row.of]
    assert gradient
    assert all(each.difference is None and each.recorded is None for each in gradient)
    assert "the recorded gradients belong to steps inside the function" in str(found)


def test_random_numbers_are_drawn_again(recorded: dict[str, str]) -> None:
    """Dropout is compared element for element: the dump has the state from which it drew."""
    torch.manual_seed(12345)
    before = torch.get_rng_state()
    found = probe.replay(recorded["tensor"], name_of(recorded["tensor"], "Functional.dropout", "float32"))
    assert not found.is_wrong
    assert [each.difference.is_same for each in found.replayed.results if each.difference] == [True, True]
    assert not torch.equal(torch.get_rng_state(), before)
    zeros = next(each for each in found.replayed.values.outputs if each.dtype).value == 0
    assert 0 < zeros.sum() < zeros.size


def test_statistics_have_no_results_to_compare_with(recorded: dict[str, str]) -> None:
    found = probe.replay(recorded["statistics"], name_of(recorded["statistics"], "Functional.silu", "float32"))
    assert not found.is_wrong
    assert all(each.difference is None for each in found.replayed.results)
    assert "its inputs are generated from statistics" in str(found)


def test_missing_results_are_said(tmp_path: Path) -> None:
    """The recorded calls of Llama have their inputs alone."""
    found = probe.replay(LLAMA, "Functional.silu.0")
    assert not found.is_wrong
    assert found.replayed.recorded == ""
    assert "nothing recorded to compare with" in str(found)


# --- what is not finite


def test_an_overflow_that_the_dtype_asks_for_is_normal(tmp_path: Path) -> None:
    given, returned = torch.tensor([1.0, 20.0]).half(), torch.tensor([2.719, torch.inf]).half()
    path = _dump_of_one(tmp_path, "Torch.exp", given, returned)
    found = probe.replay(path, "Torch.exp.0")
    assert not found.is_wrong
    assert "normal overflow" in str(found)


def test_an_overflow_of_the_kernel_is_the_kernels(tmp_path: Path) -> None:
    given, returned = torch.tensor([1.0, 2.0]).half(), torch.tensor([2.719, torch.inf]).half()
    path = _dump_of_one(tmp_path, "Torch.exp", given, returned)
    found = probe.replay(path, "Torch.exp.0")
    assert found.is_wrong
    assert "the kernel's: the exact result is finite" in str(found)
    assert "right on cpu now" in str(found)


def test_a_finding_of_overflow_check_names_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, returned = torch.tensor([1.0, 20.0]).half(), torch.tensor([2.719, torch.inf]).half()
    path = _dump_of_one(tmp_path, "Torch.exp", given, returned)
    assert main(["overflow_check", "-i", path, "-o", str(tmp_path / "out"), "--no_page"]) == 1
    (command,) = re.findall(r"next: +(msprobe replay .+)", capsys.readouterr().out)
    assert command.endswith("Torch.exp.0.forward")
    assert main(command.split()[1:]) == 0
    assert "normal overflow" in capsys.readouterr().out


def test_what_was_not_finite_before_is_neither(tmp_path: Path) -> None:
    values = torch.tensor([1.0, torch.nan]).half()
    path = _dump_of_one(tmp_path, "Torch.abs", values, values)
    found = probe.replay(path, "Torch.abs.0")
    assert not found.is_wrong
    assert "its inputs are not finite already" in str(found)


def _dump_of_one(tmp_path: Path, base: str, given: torch.Tensor, returned: torch.Tensor) -> str:
    """A dump with one call, as a device wrote it."""
    data = tmp_path / "dump_tensor_data"
    data.mkdir()

    def entry(tensor: torch.Tensor, name: str) -> dict[str, Any]:
        torch.save(tensor, data / f"{name}.pt")
        return {
            "type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape), "requires_grad": False,
            **dict.fromkeys(("Max", "Mean", "Norm"), tensor.max().item()), "Min": tensor.min().item(),
            "data_name": f"{name}.pt",
        }  # fmt: skip

    name = f"{base}.0.forward"
    record = {
        "input_args": [entry(given, f"{name}.input.0")], "input_kwargs": {},
        "output": [entry(returned, f"{name}.output.0")],
    }  # fmt: skip
    content = {
        "task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": str(data), "data": {name: record},
    }  # fmt: skip
    (tmp_path / "dump.json").write_text(json.dumps(content), encoding="utf-8")
    return str(tmp_path / "dump.json")


def test_what_a_dump_says_never_becomes_code(tmp_path: Path) -> None:
    values = torch.tensor([1.0, 2.0])
    path = Path(_dump_of_one(tmp_path, "Torch.abs", values, values))
    text = path.read_text(encoding="utf-8")
    head, output = text.rsplit('"torch.float32"', 1)
    path.write_text(f'{head}"float32) or exit(3) or (1"{output}', encoding="utf-8")
    with pytest.raises(MsprobeException, match="is no dtype"):
        probe.replay(path, "Torch.abs.0", emit=tmp_path / "s.py")
    assert not (tmp_path / "s.py").exists()


# --- smaller inputs


def test_inputs_are_made_smaller_while_one_element_is_wrong(recorded: dict[str, str]) -> None:
    name = name_of(recorded["tensor"], "Functional.silu", "float32")

    def fault(result: torch.Tensor) -> torch.Tensor:
        """The kernel goes wrong above 1.5."""
        return torch.where(result > 1.5, result * 1.1, result)

    with planted(F, "silu", fault):
        found = probe.replay(recorded["tensor"], f"{name}.forward", minimise=True)
    assert found.smaller is not None
    assert found.smaller.before == [(8, 24)]
    assert found.smaller.after == [(1, 1)]
    assert found.smaller.replayed.now == "error"
    assert "input 0 from [8, 24] to [1, 1]" in str(found)


def test_dimensions_that_belong_together_are_cut_together(recorded: dict[str, str]) -> None:
    """x of [8, 24] by a weight of [16, 24]: the shared length stays shared, and the bias has that of the outputs."""
    name = name_of(recorded["tensor"], "Functional.linear", "float32")
    with planted(F, "linear", lambda result: torch.where(result.abs() > 8, result * 1.1, result)):
        found = probe.replay(recorded["tensor"], f"{name}.forward", minimise=True)
    assert found.smaller is not None
    (rows, inner), (outputs, same), (bias,) = found.smaller.after
    assert rows * outputs < 8
    assert inner == same
    assert bias == outputs


def test_lengths_among_the_arguments_follow(recorded: dict[str, str]) -> None:
    """A layer norm is told the length of its last dimension."""
    name = name_of(recorded["tensor"], "Functional.layer_norm", "float32")
    with planted(F, "layer_norm", FAULTS["twice as large"]):
        found = probe.replay(recorded["tensor"], f"{name}.forward", minimise=True)
    assert found.smaller is not None
    assert found.smaller.after[0][0] == 1
    assert found.smaller.after[0][1] == found.smaller.after[1][0] < 24


@pytest.mark.parametrize(
    ("error", "passed_on"),
    [(RuntimeError("CUDA out of memory"), MemoryError), (RecursionError("too deep"), RecursionError)],
)
def test_a_candidate_without_memory_is_not_called_refused(
    recorded: dict[str, str], error: Exception, passed_on: type[Exception]
) -> None:
    name = name_of(recorded["tensor"], "Functional.silu", "float32")

    def fault(result: torch.Tensor) -> torch.Tensor:
        if result.numel() < 8 * 24:
            raise error
        return result * 1.1

    with planted(F, "silu", fault), pytest.raises(passed_on):
        probe.replay(recorded["tensor"], f"{name}.forward", minimise=True)


def test_a_call_that_is_right_has_nothing_to_minimise() -> None:
    with pytest.raises(MsprobeException, match=r"Functional\.silu\.0 is not wrong on cpu now"):
        probe.replay(LLAMA, "Functional.silu.0", minimise=True)


# --- the command


def test_the_status_says_whether_something_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", LLAMA, "Functional.silu.0"]) == 0
    with planted(F, "silu", IN_FLOAT32["every element 0.2 % high"]):
        assert main(["replay", LLAMA, "Functional.silu.0"]) == 1
    assert "every element 0.2 % high" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        ([LLAMA, "Functional.sily.0"], 2, "nearest names: Functional.silu.0.forward"),
        ([LLAMA, "Functional.silu.7.backward"], 2, "nearest names: Functional.silu.0."),
        ([LLAMA, ""], 2, "it has Functional."),
        ([str(GRAPH), "Module.lm_head.Linear.forward.0"], 2, "is a module; only functions can be run again"),
        ([LLAMA, "Functional.silu.0", "-d", "npu:7"], 2, "this machine has"),
        ([LLAMA, "Functional.silu.0", "-d", "recorded"], 2, "replay runs a call"),
        (["/nowhere/dump.json", "Functional.silu.0"], 2, "/nowhere"),
        ([LLAMA], 2, "RECORD"),
    ],
)
def test_what_cannot_be_run_has_a_status_and_a_sentence(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = main(["replay", *arguments])
    error = capsys.readouterr().err
    assert found == status
    assert said in error
    assert error.count("\n") == 1


def test_a_call_that_needs_too_much_memory_is_not_run(
    capsys: pytest.CaptureFixture[str], recorded: dict[str, str]
) -> None:
    name = name_of(recorded["tensor"], "Functional.silu", "float32")
    assert main(["replay", recorded["tensor"], name, "--max-memory", "1e-9"]) == 2
    assert "needs about 0.0 GB of memory, and --max-memory is 0.0 GB" in capsys.readouterr().err
    assert main(["replay", recorded["tensor"], name, "--max-memory", "1"]) == 0


def test_json_has_the_three_comparisons(capsys: pytest.CaptureFixture[str], recorded: dict[str, str]) -> None:
    name = name_of(recorded["tensor"], "Functional.silu", "float32")
    with planted(F, "silu", FAULTS["NaN in one element"]):
        assert main(["replay", recorded["tensor"], name, "--minimise", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    hold_to_schema(found, "replay")
    assert found["smaller"]["text"].startswith("Made smaller in ")
    first = found["results"][0]
    assert first["recorded_and_now"]["count"] == 1
    assert first["now_and_exact"]["status"] == "nonfinite"
    assert first["recorded_and_exact"]["status"] == "pass"
    assert first["overflow"].startswith("the kernel's")
    assert (found["is_wrong"], found["inputs"], found["device"]) == (True, "recorded", "cpu")
