"""Which tensors the collector saves, under which names, and how much of them."""

from __future__ import annotations

import zlib
from pathlib import Path

import dumped
import numpy as np
import pytest
from collector_runs import ADD, RELU, Run, tensor

from probe.common.interfaces import ApiName, ModuleName

pytestmark = pytest.mark.usefixtures("ended_runs")


def test_a_value_without_a_file_is_named_in_the_log_of_errors(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    run.api(RELU, np.array([object()], object))
    dump = run.files()
    assert [list(entry)[-1] for entry in dumped.tensors(dump.data)] == ["Norm"]
    assert dump.files == [] or all("relu" in name for name in dump.files)
    assert "pickle" in dump.errors


def test_names_of_any_length_and_with_any_characters_have_files(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    run.api(ApiName("Torch." + "x" * 300, "x"), tensor(1), {"a/b\0": tensor(2), "../../up": tensor(3)})
    dump = run.files()
    names = [entry["data_name"] for entry in dumped.tensors(dump.data)]
    assert len(names) == 3 and set(names) <= set(dump.files)
    assert list(dump.data) == ["Torch." + "x" * 300 + ".0.forward"]


@pytest.mark.parametrize("later", [False, True])
def test_two_tensors_of_a_call_never_share_a_file(tmp_path: Path, later: bool) -> None:
    run = Run(tmp_path, task="tensor", level="L1", async_dump=later)
    joined = {"a": {"b": tensor(1)}, "a.b": tensor(2), "a.b~2": tensor(3)}
    run.api(RELU, joined, {1: tensor(4), "1": tensor(5)}, output=joined, **joined)
    run.api(RELU, joined)
    dump = run.files()
    folder = Path(dump.head["dump_data_dir"])
    entries = list(dumped.tensors(dump.data))
    assert len(entries) == 3 + 2 + 3 + 3 + 3 and len({entry["data_name"] for entry in entries}) == len(entries)
    for entry in entries:
        assert (folder / entry["data_name"]).read_bytes() == tensor(entry["Max"]).tobytes()
    first = dump.data["Torch.relu.0.forward"]["input_args"][0]
    assert first["a"]["b"]["data_name"] == "Torch.relu.0.forward.input.0.a.b.bin", "as it is without the others"
    assert first["a.b"]["data_name"] == "Torch.relu.0.forward.input.0.a.b~2.bin"


def test_where_case_does_not_count_names_that_differ_in_it_have_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    # What such a file system shows of itself.
    (folder / "DUMP_TENSOR_DATA").symlink_to("dump_tensor_data")
    run = Run(tmp_path, task="tensor", level="L1")
    run.api(ApiName("Ops.Twice", "Twice"), tensor(1))
    run.api(ApiName("Ops.twice", "twice"), tensor(2))
    names = [entry["data_name"] for entry in dumped.tensors(run.files().data)]
    assert len({name.casefold() for name in names}) == 2


def test_async_copies_are_written_before_they_exceed_their_bound(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="L1", names=("relu",), async_dump=True, async_dump_max_mib=1)
    folder = Path(run.folder.tensor_folder)
    third = 450_000 // 4  # bytes; of three copies there is room for two, with what else is in a file
    on_disk = []
    for number in range(6):
        run.api(RELU, np.full(third, number, np.float32))
        on_disk.append(len(list(folder.iterdir())))
    assert on_disk == [0, 0, 2, 2, 4, 4]
    run.api(RELU, np.zeros(1 << 19, np.float32))
    assert len(list(folder.iterdir())) == 7, "what does not fit is written at once"
    dump = run.files()
    assert len(dump.files) == 7
    for number in range(6):
        (entry,) = dump.data[f"{RELU.base}.{number}.forward"]["input_args"]
        assert (folder / entry["data_name"]).read_bytes() == np.full(third, number, np.float32).tobytes()


KIB = 256
"""Elements of float32."""


@pytest.mark.parametrize("later", [False, True])
def test_max_gib_ends_the_saving_of_tensors_and_no_record_names_a_file_that_is_not_there(
    tmp_path: Path, later: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    # 10 KiB: three files of 3 KiB and no fourth; what is equal takes nothing.
    run = Run(tmp_path, task="tensor", level="L1", names=("T",), async_dump=later, max_gib=10 / (1 << 20))
    for step in range(2):
        for number in range(4):
            run.api(RELU, np.full(3 * KIB, number // 2 + 2 * step, np.float32))
            run.api(ADD, np.full(KIB // 2, number, np.float32))
        dump = run.files(step)
        found = {entry["data_name"]: entry for entry in dumped.tensors(dump.data) if "data_name" in entry}
        assert dump.files == sorted(found)
        assert len(dump.data) == 8 and all(entry["Norm"] is not None for entry in dumped.tensors(dump.data))
        run.end_step()
        if step == 0:
            assert len(dump.files) == 8
            run.begin(1)
    # 2 * 3 KiB + 4 * 0.5 KiB in the first step; of the second the first file did not fit, nor did any later one.
    assert dump.files == []
    (warning,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert '"max_gib" is reached: the tensor files of this process take 8 KiB, the last in ' in warning
    assert str(tmp_path / "step1" / "rank0") in warning and "above 9.536743164e-06, or to -1" in warning


def test_a_record_that_max_gib_cuts_has_the_files_that_fitted(tmp_path: Path) -> None:
    run = Run(tmp_path, task="tensor", level="mix", max_gib=10 / (1 << 20))
    args = [np.full(3 * KIB, number, np.float32) for number in range(5)]
    run.api(RELU, *args, output=args[0])
    record = run.files().data["Torch.relu.0.forward"]
    assert ["data_name" in entry for entry in record["input_args"]] == [True, True, True, False, False]
    assert "data_name" not in record["output"][0] and record["output"][0]["Max"] == 0


def test_what_a_step_takes_is_said_after_the_first_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, task="tensor", level="L1")
    for step in range(2):
        call = run.api(RELU, np.full(3 * KIB, step, np.float32))
        run.collector.backward_api(call, [tensor(1, 2)], [tensor(3)])
        run.sink.flush()
        run.end_step()
        run.begin(step + 1)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "tensor files" in line]
    assert "[INFO] The tensor files of step0 take about 6 KiB, of which 3 KiB are the forward pass. " in line
    assert 'takes about as much; at 100 GiB ("max_gib") no more tensors are saved, and the training goes on; ' in line
    assert line.endswith("GiB are free on the disk.") or line.endswith("TiB are free on the disk.")


def test_a_module_that_is_called_backward_ends_no_forward_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path, level="L0", task="tensor", max_gib=-1)
    for base, number in (("Module.backward.LSTM", 1), ("Module.fc.Linear", 2)):
        call = run.collector.enter_module(ModuleName(base), [np.full(KIB, number, np.float32)], {})
        run.collector.leave_module(call, None, {})
    run.files()
    assert "tensor files" not in capsys.readouterr().err
    run.end_step()
    out = capsys.readouterr().err
    assert "The tensor files of step0 take 2 KiB" in out and '"max_gib" is -1, so there is no limit' in out


def test_only_calls_that_differ_from_the_reference_are_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def calls(run: Run, changed: tuple[int, ...]) -> None:
        for n in range(6):
            # Call 4 gets another input as well, so its output may differ.
            output = n + 0.5 if n in changed else n
            run.api(RELU, tensor(n + 0.5 if n == 4 and changed else n), output=tensor(output))

    reference = Run(tmp_path / "reference", level="L1", summary_mode="md5")
    calls(reference, ())
    dump = reference.files()
    assert dump.data["Torch.relu.3.forward"]["output"][0]["md5"] == f"{zlib.crc32(tensor(3).tobytes()):08x}"
    more = {"task": "tensor", "level": "L1", "summary_mode": "md5", "bench_path": str(tmp_path / "reference")}
    for limit, ended, found in [(-1, 0, [1, 3, 5]), (2, 1, [1, 3])]:
        run = Run(tmp_path / str(limit), diff_nums=limit, **more)
        calls(run, (1, 3, 4, 5))
        dump = run.files()
        assert run.ended == ended and len(dump.names) == (6 if limit == -1 else 4)
        run.end_step()
        said = [line for line in capsys.readouterr().err.splitlines() if "other inputs" in line]
        assert [line.partition(": 1 of 6 calls have other inputs than in bench_path")[2] for line in said] == [
            ", so their outputs are not compared; the first is Torch.relu.4.forward."
        ][: limit == -1]
        assert dump.files == [f"Torch.relu.{n}.forward.{half}.0.bin" for n in found for half in ("input", "output")]


def test_a_backward_is_not_compared_with_the_reference(tmp_path: Path) -> None:
    def calls(run: Run, gradient: float) -> None:
        call = run.api(RELU, tensor(1), output=tensor(1))
        run.collector.backward_api(call, [tensor(gradient)], [tensor(gradient)])

    reference = Run(tmp_path / "reference", level="L1", summary_mode="md5")
    calls(reference, 1)
    reference.files()
    more = {"task": "tensor", "level": "L1", "summary_mode": "md5", "bench_path": str(tmp_path / "reference")}
    run = Run(tmp_path / "run", diff_nums=1, **more)
    calls(run, 2)
    dump = run.files()
    assert dump.names == ["Torch.relu.0.forward", "Torch.relu.0.backward"]
    assert dump.files == [] and run.ended == 0
