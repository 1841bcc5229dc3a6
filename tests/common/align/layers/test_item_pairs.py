"""Items of two calls that correspond, where frameworks number and name their arguments differently."""

from __future__ import annotations

from typing import Any

import made_dumps
import numpy as np
import pytest
from made_dumps import plain, tensor_of

from probe.common.align.calls import KeyedCall
from probe.common.align.layers.item_pairs import by_value, match_items
from probe.common.align.operations import operation
from probe.common.dump.reading.records import Record


def tensor(*shape: int) -> dict[str, Any]:
    return made_dumps.tensor(shape=shape)


def call(name: str, **fields: Any) -> KeyedCall:
    record = Record(name, fields, "dump.json")
    return KeyedCall(record, name, record.items())


def pairs(target: KeyedCall, golden: KeyedCall) -> dict[str, str]:
    """What follows the records in the names of items."""
    bases = [each.record.name.rpartition(".")[0].rpartition(".")[0] for each in (target, golden)]
    meanings = operation(bases[0], "mindspore"), operation(bases[1], "pytorch")
    found = match_items(target, golden, meanings)
    lengths = [len(each.record.name) + 1 for each in (target, golden)]
    return {mine[lengths[0] :]: theirs[lengths[1] :] for mine, theirs in found.items()}


def test_arguments_of_other_names_match() -> None:
    target = call("Functional.sum.0.forward", input_args=[tensor(2)], input_kwargs={"axis": plain(1)})
    golden = call("Torch.sum.0.forward", input_args=[tensor(2)], input_kwargs={"dim": plain(1)})
    assert pairs(target, golden) == {"input.0": "input.0", "input.axis": "input.dim"}


def test_tensors_match_in_their_order_where_their_positions_differ() -> None:
    inputs = [tensor(2, 4), tensor(4), tensor(4)]
    target = call("Functional.layer_norm.0.forward", input_args=inputs)
    golden = call("Functional.layer_norm.0.forward", input_args=[inputs[0], [plain(4)], *inputs[1:]])
    assert pairs(target, golden) == {"input.0": "input.0", "input.1": "input.2", "input.2": "input.3"}


def test_where_there_are_more_tensors_only_the_same_positions_match() -> None:
    target = call("Functional.linear.0.forward", input_args=[tensor(2), tensor(3), tensor(4)])
    golden = call("Functional.linear.0.forward", input_args=[tensor(2), tensor(3)])
    assert pairs(target, golden) == {"input.0": "input.0", "input.1": "input.1"}


def test_batch_normalisation_takes_its_tensors_in_another_order() -> None:
    target = call("Primitive.bn.BatchNorm.0.forward", input_args=[tensor(2, 3), *(tensor(3) for _ in range(4))])
    golden = call("Functional.batch_norm.0.forward", input_args=[tensor(2, 3), *(tensor(3) for _ in range(4))])
    # There scale, shift, mean and variance; here mean, variance, scale and shift.
    assert pairs(target, golden) == {f"input.{n}": f"input.{m}" for n, m in enumerate((0, 3, 4, 1, 2))}


def test_plain_arguments_of_other_functions_do_not_match() -> None:
    target = call("Functional.reshape.0.forward", input_args=[tensor(4), plain(2)], output=[tensor(2, 2)])
    golden = call("Tensor.flatten.0.forward", input_args=[tensor(4), plain(1)], output=[tensor(2, 2)])
    assert pairs(target, golden) == {"input.0": "input.0", "output.0": "output.0"}


def test_a_number_matches_a_tensor_of_the_same_position() -> None:
    target = call("Functional.mul.0.forward", input_args=[tensor(4), tensor()])
    golden = call("Torch.mul.0.forward", input_args=[tensor(4), plain(2.0)])
    assert pairs(target, golden) == {"input.0": "input.0", "input.1": "input.1"}


@pytest.mark.parametrize(
    ("target", "golden", "expected"),
    [
        ([(2, 4), (3, 4), (3,)], [(2, 4), (3, 4), (3,)], {0: 0, 1: 1, 2: 2}),
        ([(2, 4), (3, 4), (3,)], [(3,), (2, 4), (4, 3)], {0: 1, 2: 0}),
        # Two of one shape, and one that may be transposed.
        ([(3,), (3,), (2, 3)], [(2, 3), (3,), (3,)], {2: 0}),
        ([(2, 3), (3, 3)], [(3, 3), (2, 3)], {0: 1}),
    ],
)
def test_gradients_match_by_their_shapes(target: list[Any], golden: list[Any], expected: dict[int, int]) -> None:
    mine = call("Primitive.fc.Dense.0.backward", output=[tensor(*shape) for shape in target])
    theirs = call("Functional.linear.0.backward", output=[tensor(*shape) for shape in golden])
    assert pairs(mine, theirs) == {f"output.{n}": f"output.{m}" for n, m in expected.items()}


def test_parameters_of_other_names_match() -> None:
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
    target = call("Cell.bn.BatchNorm2d.forward.0", parameters={name: tensor(2) for name in names})
    golden = call("Module.bn.BatchNorm2d.forward.0", parameters={name: tensor(2) for name in names.values()})
    for one, other, expected in ((target, golden, names), (golden, target, {b: a for a, b in names.items()})):
        found = match_items(one, other, None)
        assert {a.rpartition(".")[2]: b.rpartition(".")[2] for a, b in found.items()} == expected


# --- two programs


def parameters(**given: Any) -> KeyedCall:
    name = f"Module.norm.{'_'.join(given)}.forward.0"
    return call(name, input_args=[tensor(2)], output=[tensor(2)], parameters=given)


def names(target: KeyedCall, golden: KeyedCall) -> dict[str, str]:
    found = by_value(target, golden)
    pairs = {mine.rpartition(".")[2]: theirs.rpartition(".")[2] for mine, theirs in found.items()}
    return {mine: theirs for mine, theirs in pairs.items() if not mine.isdigit()}


ONES, SLOPE, OTHER = (tensor_of(np.float32(array)) for array in (np.ones(8), np.arange(8), np.arange(8) ** 2))


def test_the_one_parameter_of_a_size_is_matched_under_another_name() -> None:
    """Ones are no evidence of what they are; there is nothing else that they can be."""
    assert names(parameters(weight=ONES), parameters(w=ONES)) == {"weight": "w"}
    assert names(parameters(weight=SLOPE), parameters(w=OTHER)) == {"weight": "w"}


def test_several_parameters_of_a_size_are_matched_by_what_they_hold() -> None:
    target, golden = parameters(weight=SLOPE, bias=OTHER), parameters(b=OTHER, w=SLOPE)
    assert names(target, golden) == {"weight": "w", "bias": "b"}
    assert names(parameters(weight=SLOPE, bias=SLOPE), parameters(b=ONES, w=OTHER)) == {}


def test_parameters_of_a_short_type_are_matched_with_the_nearest() -> None:
    """What is drawn in one way has nearly the same statistics, within the rounding of bfloat16."""
    first, near, second = (
        {"type": "torch.Tensor", "dtype": dtype, "shape": [8], "Max": 2.0, "Min": -2.0, "Mean": 0.1, "Norm": norm}
        for dtype, norm in (("torch.bfloat16", 4.0), ("torch.float32", 4.001), ("torch.float32", 4.05))
    )
    assert names(parameters(w=first), parameters(before=second, after=near)) == {"w": "after"}
    assert names(parameters(w=first), parameters(after=near, before=second)) == {"w": "after"}


def test_a_parameter_of_another_size_is_another_one() -> None:
    assert names(parameters(weight=SLOPE), parameters(w=tensor_of(np.zeros(9, np.float32)))) == {}
