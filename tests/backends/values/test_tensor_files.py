"""Whole tensors on disk: which, under which names, and with which content."""

from __future__ import annotations

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dumped
import numpy as np
import pytest
from programs import BATCH, WEIGHT1, Names, batch, block_network, values


def collect(runs: Any, backend: Any, level: str = "mix", **settings: Any) -> tuple[Any, Any]:
    model = block_network(backend)
    debugger = runs.new(**{"task": "tensor", **settings}, level=level)
    debugger.start(model)
    outcome = backend.run(model, batch(backend, requires_grad=True), model=model)
    debugger.stop()
    return runs.read(), outcome


def taken(runs: Any, *args: Any, take: Any = lambda *args, **kwargs: None, **kwargs: Any) -> Any:
    """The dump of one call of a user's function, ``User.take``."""
    owner = SimpleNamespace(take=take)
    debugger = runs.new(task="tensor")
    debugger.register_custom_api(owner, "take", "User")
    debugger.start()
    owner.take(*args, **kwargs)
    debugger.stop()
    debugger.step()
    runs.end()
    return runs.read()


def content(backend: Any, dump: Any, entry: Any) -> Any:
    return backend.load_tensor_file(dump.folder / "dump_tensor_data" / entry["data_name"])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "async"])
def test_files_hold_what_went_in_and_out(runs: Any, backend: Any, asynchronous: bool) -> None:
    # async_dump needs a list in this task; this one matches everything.
    settings = {"async_dump": True, "list": ["."]} if asynchronous else {}
    dump, outcome = collect(runs, backend, "L0", **settings)
    names, (hidden, middle, _) = Names(backend), values()
    record = dump.data[f"{names.fc}.forward.0"]
    suffix = backend.suffix
    assert record["input_args"][0]["data_name"] == f"{names.fc}.forward.0.input.0{suffix}"
    assert record["output"][0]["data_name"] == f"{names.fc}.forward.0.output.0{suffix}"
    assert record["parameters"]["bias"]["data_name"] == f"{names.fc}.forward.0.parameters.bias{suffix}"
    assert np.array_equal(content(backend, dump, record["input_args"][0]), BATCH)
    assert np.array_equal(content(backend, dump, record["parameters"]["weight"]), WEIGHT1)
    assert content(backend, dump, record["output"][0]) == pytest.approx(hidden, rel=1e-5)
    head = dump.data[f"{names.head}.forward.0"]
    assert content(backend, dump, head["input_args"][0]) == pytest.approx(middle, rel=1e-5)
    assert np.array_equal(content(backend, dump, head["output"][0]), outcome.output)
    backward = dump.data[f"{names.body}.backward.0"]["output"][0]
    assert backward["data_name"] == f"{names.body}.backward.0.output.0{suffix}"
    assert np.array_equal(content(backend, dump, backward), outcome.inputs[0])
    gradient = dump.data[f"{names.fc}.parameters_grad.0"]["bias"][0]
    assert gradient["data_name"] == f"{names.fc}.parameters_grad.0.bias{suffix}"
    assert np.array_equal(content(backend, dump, gradient), outcome.parameters["body.fc.bias"])


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_every_tensor_has_a_file_that_agrees_with_the_statistics_beside_it(runs: Any, backend: Any, level: str) -> None:
    dump, _ = collect(runs, backend, level)
    entries = dumped.tensors(dump.data)
    assert len(entries) == len(dump.files) > 10
    assert sorted(entry["data_name"] for entry in entries) == dump.files
    assert dump.head["dump_data_dir"] == str(dump.folder / "dump_tensor_data")
    for entry in entries:
        array = content(backend, dump, entry).astype(np.float64)
        assert list(array.shape) == entry["shape"]
        found = [entry[key] for key in ("Max", "Min", "Mean", "Norm")]
        expected = [array.max(), array.min(), array.mean(), np.linalg.norm(array)]
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_names_of_files_follow_the_place_of_the_tensor(runs: Any, backend: Any) -> None:
    one, two, three = (backend.tensor(np.full(2, n, np.float32)) for n in (1, 2, 3))
    dump = taken(
        runs, [one, two], 5, k=three, more={"x": {"y": one}},
        take=lambda *args, **kwargs: {"a": [kwargs["k"], args[0][1]]},
    )  # fmt: skip
    places = {"input.0.0": 1, "input.0.1": 2, "kwargs.k": 3, "kwargs.more.x.y": 1, "output.0.a.0": 3, "output.0.a.1": 2}
    expected = {f"User.take.0.forward.{place}{backend.suffix}": value for place, value in places.items()}
    assert dump.files == sorted(expected)
    for name, value in expected.items():
        assert np.array_equal(backend.load_tensor_file(dump.folder / "dump_tensor_data" / name), np.full(2, value))


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "async"])
def test_writing_to_a_tensor_later_does_not_change_its_file(runs: Any, backend: Any, asynchronous: bool) -> None:
    absolute = backend.apis["abs"]
    debugger = runs.new(task="tensor", async_dump=asynchronous, **({"list": ["."]} if asynchronous else {}))
    x = backend.tensor(np.array([-1.0, 2.0], np.float32))
    debugger.start()
    y = absolute.call(x)
    backend.write(x, 9)
    backend.write(y, 9)
    debugger.stop()
    dump = runs.read()
    record = dump.data[f"{absolute.base}.0.forward"]
    assert content(backend, dump, record["input_args"][0]).tolist() == [-1.0, 2.0]
    assert content(backend, dump, record["output"][0]).tolist() == [1.0, 2.0]


def test_an_in_place_call_has_both_states_in_its_record_and_on_disk(runs: Any, backend: Any) -> None:
    add = backend.apis["add_inplace"]
    debugger = runs.new(task="tensor")
    x = backend.tensor(np.array([-1.0, 2.0], np.float32))
    debugger.start()
    add.call(x, x)
    debugger.stop()
    dump = runs.read()
    record = dump.data[f"{add.base}.0.forward"]
    assert content(backend, dump, record["input_args"][0]).tolist() == [-1.0, 2.0]
    assert content(backend, dump, record["output"][0]).tolist() == [-2.0, 4.0]
    assert [entry["Max"] for entry in (*record["input_args"], *record["output"])] == [2.0, 2.0, 4.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int64", "uint8", "bool", "complex64"])
def test_every_type_and_shape_survives(runs: Any, backend: Any, dtype: str) -> None:
    shapes = [(), (3,), (2, 3)]
    tensors = [
        backend.tensor(np.arange(int(np.prod(shape)), dtype=np.float64).reshape(shape) + 1, dtype) for shape in shapes
    ]
    dump = taken(runs, *tensors)
    for tensor, entry in zip(tensors, dump.data["User.take.0.forward"]["input_args"]):
        saved, expected = content(backend, dump, entry), backend.numpy(tensor)
        assert np.array_equal(saved, expected) and (saved.shape, saved.dtype) == (expected.shape, expected.dtype)


def test_views_are_saved_without_what_is_around_them(runs: Any, backend: Any) -> None:
    large = backend.tensor(np.arange(100_000, dtype=np.float32).reshape(100, 1000))
    dump = taken(runs, large[::50, 3:5])
    (name,) = dump.files
    path = dump.folder / "dump_tensor_data" / name
    assert backend.load_tensor_file(path).tolist() == [[3.0, 4.0], [50003.0, 50004.0]]
    assert path.stat().st_size < 10_000


def test_empty_tensors_have_both_file_and_name_or_neither_as_recorded(runs: Any, backend: Any) -> None:
    debugger = runs.new(task="tensor")
    debugger.start()
    backend.apis["abs"].call(backend.tensor(np.zeros((0, 3), np.float32)))
    debugger.stop()
    dump = runs.read()
    entries = dumped.tensors(dump.data)
    assert len(entries) == 2 and len(dump.files) == (2 if backend.empty_tensors_have_files else 0)
    assert [entry["data_name"] for entry in entries if "data_name" in entry] == dump.files
    for name in dump.files:
        assert backend.load_tensor_file(dump.folder / "dump_tensor_data" / name).shape == (0, 3)


def test_arrays_of_numpy_are_saved_too(runs: Any, backend: Any) -> None:
    dump = taken(runs, np.array([1, 2]), np.array(["a", "bc"]))
    numbers, texts = dump.data["User.take.0.forward"]["input_args"]
    assert content(backend, dump, numbers).tolist() == [1, 2]
    assert texts["data_name"] == "User.take.0.forward.input.1.npy"
    assert np.load(dump.folder / "dump_tensor_data" / texts["data_name"]).tolist() == ["a", "bc"]


def test_tensor_list_saves_some_records_of_task_statistics(runs: Any, backend: Any) -> None:
    names = Names(backend)
    dump, _ = collect(runs, backend, "mix", task="statistics", tensor_list=[f"{names.head}.forward", "relu.0.backward"])
    saved = {name for name in dump.names if any("data_name" in entry for entry in dumped.tensors(dump.data[name]))}
    relu = f"{backend.apis['relu'].base}.0.backward"
    assert saved == {f"{names.head}.forward.0", relu}
    assert len(dump.names) == 16
    assert sorted(entry["data_name"] for entry in dumped.tensors(dump.data) if "data_name" in entry) == dump.files
    for entry in dumped.tensors(dump.data[f"{names.head}.forward.0"]):
        assert content(backend, dump, entry).shape == tuple(entry["shape"])


def test_without_tensor_list_task_statistics_has_no_folder_for_tensors(runs: Any, backend: Any) -> None:
    dump, _ = collect(runs, backend, "L0", task="statistics")
    assert not (dump.folder / "dump_tensor_data").exists() and dump.head["dump_data_dir"] is None


def test_files_are_written_while_the_program_runs_unless_async(runs: Any, backend: Any) -> None:
    for asynchronous, expected in ((False, 2), (True, 0)):
        debugger = runs.new(
            dump_path=runs.path / str(asynchronous),
            task="tensor",
            async_dump=asynchronous,
            **({"list": ["."]} if asynchronous else {}),
        )
        debugger.start()
        backend.apis["abs"].call(batch(backend))
        (folder,) = Path(runs.path / str(asynchronous)).glob("step0/*/dump_tensor_data")
        assert len(list(folder.iterdir())) == expected
        debugger.stop()
        assert len(list(folder.iterdir())) == 2


def test_filtered_records_have_no_files(runs: Any, backend: Any) -> None:
    relu = backend.apis["relu"].base
    dump, _ = collect(runs, backend, "L1", **{"list": [relu]})
    assert len(dump.files) == 4 and all(name.startswith(relu) for name in dump.files)


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_checksums_stand_beside_files(runs: Any, backend: Any, task: str) -> None:
    settings = {"tensor_list": ["."]} if task == "statistics" else {}
    dump, _ = collect(runs, backend, "L1", task=task, summary_mode="md5", **settings)
    entries = dumped.tensors(dump.data)
    assert len(entries) > 10
    for entry in entries:
        array = np.ascontiguousarray(content(backend, dump, entry))
        assert entry["md5"] == f"{zlib.crc32(array.tobytes()):08x}"


def inodes(dump: Any) -> dict[str, int]:
    return {name: (dump.folder / "dump_tensor_data" / name).stat().st_ino for name in dump.files}


def test_the_output_of_one_call_and_the_input_of_the_next_are_one_file(runs: Any, backend: Any) -> None:
    absolute, relu = backend.apis["abs"], backend.apis["relu"]
    debugger = runs.new(task="tensor")
    debugger.start()
    # Of abs and relu each gives what it got.
    relu.call(absolute.call(backend.tensor(np.array([1.0, 2.0], np.float32))))
    relu.call(backend.tensor(np.array([1.0, 3.0], np.float32)))
    debugger.stop()
    dump = runs.read()
    assert len(dump.files) == 6
    first = {name: inode for name, inode in inodes(dump).items() if f"{relu.base}.1." not in name}
    assert len(first) == 4 and len(set(first.values())) == 1 and len(set(inodes(dump).values())) == 2
    for name, record in dump.data.items():
        for entry in dumped.tensors(record):
            expected = [1.0, 3.0] if name.startswith(f"{relu.base}.1.") else [1.0, 2.0]
            assert content(backend, dump, entry).tolist() == expected


def test_a_write_between_two_calls_makes_another_file(runs: Any, backend: Any) -> None:
    absolute = backend.apis["abs"]
    debugger = runs.new(task="tensor")
    x = backend.tensor(np.array([1.0, 2.0], np.float32))
    debugger.start()
    absolute.call(x)
    backend.write(x, 9)
    absolute.call(x)
    debugger.stop()
    dump = runs.read()
    for number, expected in ((0, [1.0, 2.0]), (1, [9.0, 9.0])):
        (entry,) = dump.data[f"{absolute.base}.{number}.forward"]["input_args"]
        assert content(backend, dump, entry).tolist() == expected


def test_a_second_run_into_the_same_folder_leaves_no_old_content(runs: Any, backend: Any) -> None:
    absolute = backend.apis["abs"]
    for value in (1.0, 2.0):
        debugger = runs.new(task="tensor")
        debugger.start()
        absolute.call(backend.tensor(np.array([value], np.float32)))
        debugger.stop()
        dump = runs.read()
        for entry in dumped.tensors(dump.data):
            assert content(backend, dump, entry).tolist() == [value]
        # The first run is over before the second begins; one that is not keeps its folder.
        debugger.step()
