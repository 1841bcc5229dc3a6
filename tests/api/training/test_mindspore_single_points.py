"""``save``, ``save_grad`` and ``step``: one tensor, or its gradient, into a file of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Errors only; MindSpore reads it when it is imported.
os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from msprobe.mindspore import save, save_grad, step
from probe.backends.mindspore.hooks import single_point_save
from probe.backends.mindspore.hooks.jit import dumps_tensors
from probe.backends.mindspore.internals import executor
from probe.common.errors import MsprobeException

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def new_step(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    step()
    # MindSpore writes a report of a compilation that failed into the current directory.
    monkeypatch.chdir(tmp_path_factory.mktemp("reports"))


@pytest.fixture
def graph_mode() -> Iterator[None]:
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def saved(folder: Path) -> dict[str, Any]:
    """The arrays of the only step that has files, by file name."""
    (place,) = folder.glob("step*/rank*")
    assert place.name == "rank0"
    return {path.name: np.load(path) for path in sorted(place.iterdir())}


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[len("step") :]) for path in folder.glob("step*"))


def test_a_tensor_is_a_file_named_after_its_type_and_number(tmp_path: Path) -> None:
    for factor in (1, 2):
        save(str(tmp_path), "x", Tensor(VALUES) * factor)
    save(str(tmp_path), "other", Tensor(VALUES))
    files = saved(tmp_path)
    assert list(files) == ["other_float32_0.npy", "x_float32_0.npy", "x_float32_1.npy"]
    np.testing.assert_array_equal(files["x_float32_1.npy"], VALUES * 2)
    assert files["x_float32_0.npy"].dtype == np.float32


def test_types_that_numpy_has_are_kept_and_bfloat16_is_stored_as_float32(tmp_path: Path) -> None:
    types = {ms.bfloat16: ("bfloat16", np.float32), ms.float16: ("float16", np.float16), ms.int64: ("int64", np.int64)}
    types |= {ms.bool_: ("bool", np.bool_), ms.complex64: ("complex64", np.complex64)}
    for dtype in types:
        save(str(tmp_path), "x", Tensor([0, 1, 1], dtype))
    files = saved(tmp_path)
    assert sorted(files) == sorted(f"x_{name}_{number}.npy" for number, (name, _) in enumerate(types.values()))
    for number, (name, stored) in enumerate(types.values()):
        array = files[f"x_{name}_{number}.npy"]
        np.testing.assert_array_equal(array, np.array([0, 1, 1], stored))
        assert array.dtype == stored


def test_containers_are_opened_and_what_is_no_tensor_is_named(tmp_path: Path, capsys: Any) -> None:
    x, empty = Tensor(VALUES), Tensor(np.zeros((0, 2), np.float32))
    save(str(tmp_path), "all", {"a": [x, (Tensor(1.5),)], 1: empty, "note": "text"})
    assert {name: array.shape for name, array in saved(tmp_path).items()} == {
        "all.1_float32_0.npy": (0, 2), "all.a.0_float32_0.npy": (2, 3), "all.a.1.0_float32_0.npy": (),
    }  # fmt: skip
    error = capsys.readouterr().err
    assert '"all.note" is of type str' in error


def test_a_file_holds_the_values_of_the_call_and_not_later_ones(tmp_path: Path) -> None:
    x = Tensor(VALUES)
    save(str(tmp_path), "x", x)
    x[0, 0] = 100
    assert x.asnumpy()[0, 0] == 100
    np.testing.assert_array_equal(saved(tmp_path)["x_float32_0.npy"], VALUES)


def test_step_begins_the_next_folder_and_numbers_start_again(tmp_path: Path) -> None:
    for _ in range(2):
        save(str(tmp_path), "x", Tensor(VALUES))
        step()
    first, second = steps(tmp_path)
    assert second == first + 1
    assert [path.name for path in sorted(tmp_path.rglob("*.npy"))] == ["x_float32_0.npy"] * 2


def test_save_grad_returns_its_tensor_and_saves_the_gradient(tmp_path: Path) -> None:
    def forward(x: Any) -> Any:
        y = x * 2.0
        given = save_grad(str(tmp_path), "y", y)
        assert given is y
        return (given * given).sum()

    assert list(tmp_path.iterdir()) == []
    gradient = ms.grad(forward)(Tensor(VALUES))
    np.testing.assert_array_equal(gradient.asnumpy(), 8 * VALUES)
    files = saved(tmp_path)
    assert list(files) == ["y_grad_float32_0.npy"]
    np.testing.assert_array_equal(files["y_grad_float32_0.npy"], 4 * VALUES)


def test_the_gradient_of_a_parameter_is_saved_once_per_call(tmp_path: Path) -> None:
    weight = ms.Parameter(Tensor(VALUES), name="weight")

    def forward(x: Any) -> Any:
        return (save_grad(str(tmp_path), "w", weight) * x).sum()

    for factor in (1.0, 2.0, 3.0):
        ms.grad(forward, None, [weight])(Tensor(VALUES) * factor)
    files = saved(tmp_path)
    assert list(files) == [f"w_grad_float32_{number}.npy" for number in range(3)]
    np.testing.assert_array_equal(files["w_grad_float32_2.npy"], 3 * VALUES)


def test_without_a_gradient_save_grad_saves_nothing(tmp_path: Path) -> None:
    x = Tensor(VALUES)
    assert save_grad(str(tmp_path), "x", x) is x
    assert list(tmp_path.iterdir()) == []


def test_loss_and_gradients_are_those_of_the_network_without_the_calls(tmp_path: Path) -> None:
    def network(watched: bool) -> Callable[[Any], Any]:
        def forward(x: Any) -> Any:
            y = ops.tanh(x)
            if watched:
                save(str(tmp_path), "y", y)
                y = save_grad(str(tmp_path), "y", y)
            return (y * y + ops.exp(y) * x).sum()

        return forward

    x = Tensor(np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4))
    (loss, gradient), (plain_loss, plain_gradient) = (ms.value_and_grad(network(flag))(x) for flag in (True, False))
    assert loss.asnumpy().tobytes() == plain_loss.asnumpy().tobytes()
    assert gradient.asnumpy().tobytes() == plain_gradient.asnumpy().tobytes()
    assert len(saved(tmp_path)) == 2


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda x: save(1, "x", x), ("save: save_dir is 1", "a text")),
        (lambda x: save("dump", "", x), ("save: name is ''", "a text")),
        (lambda x: save("dump", "x", 3), ("save: data is of type int", "a tensor, or a list, tuple or dict")),
        (lambda x: save_grad("dump", None, x), ("save_grad: name is None", "a text")),
        (lambda x: save_grad("dump", "x", [x]), ("save_grad: data is of type list", "a tensor")),
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(call: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(MsprobeException) as caught:
        call(Tensor(VALUES))
    assert all(part in str(caught.value) for part in parts)


def test_what_cannot_be_written_costs_the_file_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def failing(stream: Any = None, *_: Any, **__: Any) -> None:
        if stream is not None and hasattr(stream, "write"):
            stream.write(b"half")
        raise OSError(28, "No space left on device")

    x = Tensor(VALUES)
    (tmp_path / "file").write_text("in the way")
    save(str(tmp_path / "file"), "x", x)
    assert "is not a folder" in capsys.readouterr().err
    for owner, name in ((single_point_save.np, "save"), (single_point_save, "rank")):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, failing)
            save(str(tmp_path / "dump"), "x", x)
        assert "No space left on device" in capsys.readouterr().err
        assert not list(tmp_path.rglob("*.npy")), "a file that is not whole does not appear"
    monkeypatch.setattr(single_point_save, "hook_gradient", failing)
    assert save_grad(str(tmp_path / "dump"), "x", x) is x
    assert '"x" cannot be saved in' in capsys.readouterr().err


def test_a_tensor_behind_stop_gradient_has_no_gradient_to_save(tmp_path: Path, capsys: Any) -> None:
    def loss(x: Tensor) -> Any:
        return (save_grad(str(tmp_path), "y", ops.stop_gradient(x * 2)) * x).sum()

    value, gradient = ms.value_and_grad(loss)(Tensor(VALUES))
    np.testing.assert_array_equal(gradient.asnumpy(), VALUES * 2)
    assert float(value) == float((VALUES * VALUES * 2).sum())
    assert steps(tmp_path) == [] and capsys.readouterr().err == ""


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    save(str(tmp_path / "dump"), "../../../x", Tensor(VALUES))
    assert [path.parent.name for path in tmp_path.rglob("*.npy")] == ["rank0"]
    assert len(saved(tmp_path / "dump")) == 1


# --- in a compiled graph


def compiled(folder: str, capture: str) -> list[Callable[[Any], Any]]:
    @ms.jit(capture_mode=capture)
    def saving(x: Any) -> Any:
        y = x * 2
        save(folder, "y", y)
        return y

    @ms.jit(capture_mode=capture)
    def saving_gradient(x: Any) -> Any:
        y = save_grad(folder, "y", x * 2)
        return (y * y).sum()

    return [saving, ms.grad(saving_gradient)]


@pytest.mark.parametrize("capture", ["ast", "bytecode"])
def test_a_compiled_function_saves(capture: str, tmp_path: Path) -> None:
    saving, gradient = compiled(str(tmp_path), capture)
    np.testing.assert_array_equal(saving(Tensor(VALUES)).asnumpy(), VALUES * 2)
    np.testing.assert_array_equal(gradient(Tensor(VALUES)).asnumpy(), VALUES * 8)
    files = saved(tmp_path)
    assert list(files) == ["y_float32_0.npy", "y_grad_float32_0.npy"]
    np.testing.assert_array_equal(files["y_float32_0.npy"], VALUES * 2)
    np.testing.assert_array_equal(files["y_grad_float32_0.npy"], VALUES * 4)


class Net(nn.Cell):
    """Saves what it computes, in several forms."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.weight = ms.Parameter(Tensor(VALUES), name="weight")

    def construct(self, x: Any) -> Any:
        y = x * self.weight
        save(self.folder, "y", {"a": [x, y], "b": (y > 0,)})
        save(self.folder, "short", y.astype(ms.bfloat16))
        y = save_grad(self.folder, "y", y)
        return (y * y).sum()


def test_a_network_in_graph_mode_saves_step_by_step(graph_mode: None, tmp_path: Path) -> None:
    save(str(tmp_path / "outside"), "x", Tensor(VALUES))
    assert list(saved(tmp_path / "outside")) == ["x_float32_0.npy"]
    network = Net(str(tmp_path))
    training = ms.value_and_grad(network, None, network.trainable_params())
    for number in (1, 2, 3):
        training(Tensor(VALUES * number))
        step()
    assert len(steps(tmp_path)) == 3
    for number, folder in enumerate(steps(tmp_path), 1):
        files = {path.name: np.load(path) for path in tmp_path.glob(f"step{folder}/rank0/*.npy")}
        product = VALUES * number * VALUES
        expected = {
            "y.a.0_float32_0.npy": VALUES * number,
            "y.a.1_float32_0.npy": product,
            "y.b.0_bool_0.npy": product > 0,
            "y_grad_float32_0.npy": 2 * product,
        }
        assert set(files) == {*expected, "short_bfloat16_0.npy"}
        for name, values in expected.items():
            np.testing.assert_array_equal(files[name], values)
        np.testing.assert_allclose(files["short_bfloat16_0.npy"], product, rtol=2.0**-8)


def test_saving_changes_no_value_of_a_graph(graph_mode: None, tmp_path: Path) -> None:
    class Plain(Net):
        def construct(self, x: Any) -> Any:
            y = x * self.weight
            return (y * y).sum()

    found = []
    for network in (Net(str(tmp_path)), Plain(str(tmp_path))):
        value, gradients = ms.value_and_grad(network, 0, network.trainable_params())(Tensor(VALUES))
        found.append([value.asnumpy(), gradients[0].asnumpy(), gradients[1][0].asnumpy()])
    for one, other in zip(*found):
        np.testing.assert_array_equal(one, other)


def test_what_cannot_be_written_by_a_graph_costs_the_file(graph_mode: None, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("no folder")
    network = Net(str(tmp_path / "file"))
    assert float(network(Tensor(VALUES)).asnumpy()) == float(((VALUES * VALUES) ** 2).sum())
    executor.sync()
    assert "cannot be saved in" in capsys.readouterr().err


def test_a_wrong_argument_is_told_while_the_graph_is_compiled(graph_mode: None, tmp_path: Path) -> None:
    with pytest.raises(MsprobeException, match="save_dir is ''"):
        Net("")(Tensor(VALUES))


def test_another_device_is_refused_with_one_sentence() -> None:
    assert [dumps_tensors("save", device) for device in ("Ascend", "CPU")] == [True, False]
    with pytest.raises(MsprobeException, match=r"^save .* GPU"):
        dumps_tensors("save", "GPU")
