"""Names and defaults of arguments are those of the signatures."""

from __future__ import annotations

from typing import Any

import pytest

from probe.common.operations.signatures import argument_name, is_default

SDPA = "Functional.scaled_dot_product_attention.0.forward"


@pytest.mark.parametrize(
    ("record", "item", "value", "width", "expected"),
    (
        ("Functional.layer_norm.0.forward", "input.4", 1e-5, 64, True),
        ("Functional.layer_norm.0.forward", "input.eps", 1e-6, 64, False),
        ("Functional.dropout.0.forward", "input.p", 0.5, None, True),
        ("Functional.dropout.0.forward", "input.training", True, None, True),
        ("Functional.dropout.0.forward", "input.training", False, None, False),
        (SDPA, "input.scale", 0.25, 16, True),
        (SDPA, "input.scale", 0.25, None, False),
        ("Torch.addmm.0.forward", "input.beta", 1, None, True),
        ("Functional.cross_entropy.0.forward", "input.reduction", "mean", None, True),
        ("Functional.cross_entropy.0.forward", "input.reduction", "sum", None, False),
        ("Functional.unheard_of.0.forward", "input.1", 0.0, None, False),
    ),
)
def test_defaults_are_those_of_the_signatures(
    record: str, item: str, value: Any, width: int | None, expected: bool
) -> None:
    assert is_default(record, item, value, width) is expected


def test_names_of_arguments_have_no_defaults_in_them() -> None:
    assert argument_name("Functional.layer_norm.0.forward", "input.4") == "eps"
    assert argument_name("Torch.addmm.0.forward", "input.4") == "input.4"  # Arguments without a position follow.
