"""What names of functions and of layers mean, held against the public mapping table of the two frameworks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import probe.common.align
from probe.common.align.operations import layer_kind, operation

TABLES = Path(probe.common.align.__file__).parent


def table(name: str) -> Any:
    return yaml.safe_load((TABLES / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        # Rows of the mapping table.
        ("Functional.equal", "Torch.eq"),
        ("Functional.gather_elements", "Torch.gather"),
        ("Functional.subtract", "Torch.sub"),
        ("Functional.swapaxes", "Torch.transpose"),
        ("Functional.dense", "Functional.linear"),
        ("Functional.bidense", "Functional.bilinear"),
        ("Functional.random_poisson", "Torch.poisson"),
        ("Functional.sigmoid", "Functional.sigmoid"),
        ("Functional.sigmoid", "Torch.sigmoid"),
        ("Functional.gelu", "Functional.gelu"),
        ("Tensor.asnumpy", "Tensor.numpy"),
        ("Tensor.ndimension", "Tensor.dim"),
        ("Tensor.tile", "Tensor.repeat"),
        ("Tensor.equal", "Tensor.eq"),
        ("Tensor.subtract", "Tensor.sub"),
        ("Functional.less_equal", "Torch.le"),
        ("Functional.divide", "Torch.true_divide"),
        # mindspore.mint mirrors torch.
        ("Mint.matmul", "Torch.matmul"),
        ("MintFunctional.softmax", "Functional.softmax"),
        ("MintDistributed.all_reduce", "Distributed.all_reduce"),
        # Methods and operators are functions.
        ("Tensor.matmul", "Torch.matmul"),
        ("Tensor.__matmul__", "Torch.matmul"),
        ("Mint.div", "Tensor.__truediv__"),
        ("Primitive.fc.MatMul", "Torch.matmul"),
        ("Primitive.act.ReLU", "Functional.relu"),
    ],
)
def test_names_of_one_thing_mean_the_same(mindspore: str, torch: str) -> None:
    assert operation(mindspore, "mindspore").name == operation(torch, "pytorch").name
    assert operation(torch, "mindtorch") == operation(torch, "pytorch")


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        # In MindSpore this takes the whole order of the dimensions, and indices of one.
        ("Functional.transpose", "Torch.transpose"),
        ("Functional.select", "Torch.select"),
        ("Distributed.reduce", "Torch.sum"),
        ("Primitive.relu.Unknown", "Functional.relu"),
        ("Custom.relu", "Functional.relu"),
    ],
)
def test_names_of_different_things_do_not(mindspore: str, torch: str) -> None:
    assert operation(mindspore, "mindspore").name != operation(torch, "pytorch").name


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Functional.reshape", "Tensor.view"),
        ("Functional.transpose", "Tensor.permute"),
        ("Mint.add", "Tensor.add_"),
        ("Mint.div", "Tensor.divide_"),
        ("Mint.pow", "Tensor.__ipow__"),
        ("Mint.bitwise_or", "Tensor.__ror__"),
    ],
)
def test_what_gives_the_same_values_is_akin(one: str, other: str) -> None:
    assert operation(one, "mindspore").akin == operation(other, "pytorch").akin


@pytest.mark.parametrize(
    ("mindspore", "torch"),
    [
        ("Dense", "Linear"),
        ("SequentialCell", "Sequential"),
        ("CellList", "ModuleList"),
        ("Conv2dTranspose", "ConvTranspose2d"),
        ("HSigmoid", "Hardsigmoid"),
        ("SeLU", "SELU"),
        ("LayerNorm", "LayerNorm"),
        ("BatchNorm2d", "SyncBatchNorm"),
    ],
)
def test_classes_of_one_layer_mean_the_same(mindspore: str, torch: str) -> None:
    assert layer_kind(mindspore) == layer_kind(torch) is not None


def test_a_class_of_the_user_means_only_itself() -> None:
    assert layer_kind("MyLinear") is None


def test_the_tables_say_everything_once() -> None:
    layers = table("layers.yaml")
    assert not set(layers["same"]) & {*layers["renamed"], *layers["renamed"].values()}
