"""The traits of the table against what PyTorch says of its own operators, and against what its functions do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from probe.common.operations.function import ACTIVATION, ELEMENTWISE, ROUNDED_ONCE, Trait
from probe.common.operations.lookup import function, has, writes_in_place
from probe.common.operations.table import FUNCTIONS

SPARSE = {"ccol_indices", "coalesce", "col_indices", "crow_indices", "indices", "row_indices", "values"}
"""They give parts of a sparse tensor."""


def operators() -> Iterator[tuple[str, Any]]:
    """Every overload of ATen by the operator's name; those that begin with an underscore are nobody's to call."""
    for qualified in {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}:
        namespace, _, name = qualified.partition("::")
        packet = getattr(torch.ops.aten, name, None) if namespace == "aten" and not name.startswith("_") else None
        for overload in packet.overloads() if packet is not None else ():
            yield name, getattr(packet, overload)


OPERATORS = sorted(operators(), key=lambda pair: (pair[0], str(pair[1])))


def named(*traits: Trait) -> list[str]:
    return [each.name for each in FUNCTIONS if each.has(*traits)]


def of_one_tensor(name: str, value: torch.Tensor) -> list[torch.Tensor] | None:
    """What the function returns of a tensor alone; ``None`` where torch has none that takes that."""
    call: Callable[..., Any] | None = getattr(torch, name, None) or getattr(torch.Tensor, name, None)
    if not callable(call):
        return None
    try:
        found = call(value.clone())
    except (TypeError, RuntimeError):
        return None
    return [each for each in (found if isinstance(found, (tuple, list)) else [found]) if torch.is_tensor(each)]


def is_view(operator: Any) -> bool:
    aliases = [each.alias_info for each in operator._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def writes_first(operator: Any) -> bool:
    first = operator._schema.arguments[:1]
    return any(each.alias_info is not None and each.alias_info.is_write and not each.is_out for each in first)


def test_every_view_of_aten_hands_on_or_casts() -> None:
    views = {name for name, operator in OPERATORS if is_view(operator)} - SPARSE
    assert len(views) > 40
    assert {name for name in views if not has(name, Trait.HANDS_ON, Trait.CASTS)} == set()


NINE = torch.arange(1.0, 10.0).reshape(3, 3)
OF_ONE_TENSOR = [name for name in named(Trait.HANDS_ON) if of_one_tensor(name, NINE)]


@pytest.mark.parametrize("name", OF_ONE_TENSOR)
def test_what_hands_on_returns_numbers_of_its_argument(name: str) -> None:
    found = of_one_tensor(name, NINE)
    assert found and all(set(each.flatten().tolist()) <= set(NINE.flatten().tolist()) for each in found)


def test_what_ends_in_an_underscore_writes_into_its_first_argument() -> None:
    # Their own names say it, though they end otherwise.
    written = {"record_stream", "retain_grad", "set_data", "sort"}
    said = {name for name, operator in OPERATORS if writes_first(operator) and not writes_in_place(name)}
    assert said == written
    assert {name for name, operator in OPERATORS if writes_in_place(name) and not writes_first(operator)} == set()


ARGUMENTS: dict[str, tuple[Any, ...]] = {"fill_": (0.5,), "geometric_": (0.5,), "copy_": (torch.ones(3),)}


@pytest.mark.parametrize(
    "name", [name for name in named(Trait.OVERWRITES) if hasattr(torch.Tensor, name) and name != "set_"]
)
def test_what_overwrites_reads_nothing_of_its_first_argument(name: str) -> None:
    written = torch.full((3,), float("nan"))
    getattr(written, name)(*ARGUMENTS.get(name, ()))
    assert bool(written.isfinite().all())


FINITE_TO_INFINITE: dict[str, tuple[Any, ...]] = {
    "log_softmax": (torch.tensor([-3e38, 3e38]), 0), "_log_softmax": (torch.tensor([-3e38, 3e38]), 0, False),
    "logsumexp": (torch.ones(0), 0), "xlogy": (torch.ones(1), torch.zeros(1)), "log1p": (torch.tensor([-1.0]),),
    "xlog1py": (torch.ones(1), torch.tensor([-1.0])), "logdet": (torch.zeros(2, 2),), "slogdet": (torch.zeros(2, 2),),
}  # fmt: skip


# Kernels that compute log(sigmoid(x)) step by step make one, which a log-likelihood leaves as it is.
@pytest.mark.parametrize("name", sorted({*named(Trait.INFINITE)} - {"logsigmoid"}))
def test_what_is_infinite_on_purpose_is_so_of_finite_arguments(name: str) -> None:
    call = getattr(torch, name, None) or getattr(torch.special, name)
    found = call(*FINITE_TO_INFINITE.get(name, (torch.zeros(1),)))
    assert float("-inf") in torch.as_tensor(found[-1] if isinstance(found, tuple) else found).flatten().tolist()


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin", "logsumexp", "gumbel_softmax"])
def test_a_masked_call_leaves_out_minus_infinity(name: str) -> None:
    assert has(name, Trait.MASKED)
    call = getattr(torch.nn.functional, name, None) or getattr(torch, name)
    sign = -1.0 if name == "softmin" else 1.0
    found = call(sign * torch.tensor([1.0, 2.0, float("-inf")]), dim=0)
    assert not bool(found.isnan().any())


RANDOM = (Trait.DRAWS, Trait.DROPS, Trait.DRAWS_INSIDE, Trait.MAY_DROP_INSIDE)
# Operators that no function of Python has the name of.
BELOW_PYTHON = {"miopen_rnn", "normal_functional", "random", "rrelu_with_noise_functional"}


def test_what_pytorch_seeds_draws() -> None:
    seeded = {name for name, operator in OPERATORS if torch.Tag.nondeterministic_seeded in operator.tags}
    assert len(seeded) > 40
    assert {name for name in seeded if not has(name, *RANDOM)} == BELOW_PYTHON


def test_what_draws_is_seeded() -> None:
    known = {name for name, _ in OPERATORS}
    seeded = {name for name, operator in OPERATORS if torch.Tag.nondeterministic_seeded in operator.tags}
    # Made of operators that are.
    made_of_others = {
        "gumbel_softmax", "multi_head_attention_forward", "fractional_max_pool2d", "fractional_max_pool3d",
        "fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices",
    }  # fmt: skip
    assert {name for name in named(*RANDOM) if name in known and name not in seeded} <= made_of_others


@pytest.mark.parametrize("name", named(Trait.ADDS))
def test_what_adds_grows_with_the_number_of_its_terms(name: str) -> None:
    found = getattr(torch, name)(torch.ones(9), *((0,) if name == "cumsum" else ()))
    assert float(found.max()) == 9.0


@pytest.mark.parametrize("name", [each.name for each in FUNCTIONS if each.dim is not None])
def test_the_dimension_of_what_gives_indices_is_that_of_its_signature(name: str) -> None:
    dim = function(name).dim
    assert dim is not None
    schemas = [operator._schema for known, operator in OPERATORS if known == name]
    found = [argument for schema in schemas for argument in schema.arguments[dim[0] : dim[0] + 1]]
    assert "dim" in {argument.name for argument in found}
    if name not in ("max", "min", "median", "nanmedian"):  # Without `dim` these are functions of their own.
        assert dim[1] in {argument.default_value for argument in found} or name in ("cummax", "cummin")


ALONE = [
    each.name
    for each in FUNCTIONS
    if each.has(Trait.EACH_ALONE) or each.rounding in (ELEMENTWISE, ROUNDED_ONCE, ACTIVATION)
]
PARTS = torch.rand(3, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
OTHERS: dict[str, tuple[Any, ...]] = {
    "clamp": (0.3, 0.6), "clamp_max": (0.5,), "clamp_min": (0.5,), "threshold": (0.5, 0.1),
    "masked_fill": (PARTS[1] > 0.5, 7.0), "prelu": (torch.full((1,), 0.25, dtype=torch.float64),),
}  # fmt: skip
"""What a function takes besides its first tensor, where that is not one or two tensors more."""


def made_alone(name: str) -> tuple[Callable[..., Any], list[Any]] | None:
    """A function with arguments that it takes; ``None`` where torch has none of the name."""
    owners = (torch, torch.nn.functional, torch.Tensor)
    found = [call for call in (getattr(owner, name, None) for owner in owners) if callable(call)]
    choices = [(PARTS[0], *OTHERS[name])] if name in OTHERS else [tuple(PARTS[:count]) for count in (1, 2, 3)]
    if name == "where":
        choices = [(PARTS[0] > 0.5, PARTS[1], PARTS[2])]
    for call in found:
        for arguments in choices:
            try:
                call(*arguments)
            except (TypeError, RuntimeError):
                continue
            return call, list(arguments)
    return None


@pytest.mark.parametrize("name", [name for name in ALONE if made_alone(name) is not None])
def test_what_is_made_alone_is_the_same_in_parts(name: str) -> None:
    known = made_alone(name)
    assert known is not None
    call, arguments = known
    whole = call(*arguments)
    if whole.shape != (4, 6):
        assert name == "glu", "which is judged as a whole, for its result has another shape"
        return
    parts = [
        call(
            *(value.reshape(-1)[part] if torch.is_tensor(value) and value.numel() > 1 else value for value in arguments)
        )
        for part in (slice(0, 7), slice(7, 24))
    ]
    torch.testing.assert_close(torch.cat(parts), whole.reshape(-1), rtol=1e-12, atol=0, equal_nan=True)
