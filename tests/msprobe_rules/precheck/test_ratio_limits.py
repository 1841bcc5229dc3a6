"""The limits of an API hold for its operator and in-place forms."""

from __future__ import annotations

from probe.msprobe_rules.precheck.ratio_limits import ratio_limits


def test_limits_go_by_level() -> None:
    assert ratio_limits("Functional.silu")["max_rel"] == 10
    assert ratio_limits("Functional.embedding")["max_rel"] == 5
    assert ratio_limits("Torch.addmm")["rmse"] == ratio_limits("Tensor.__rmatmul__")["rmse"] == 1.2


def test_the_release_does_not_know_gelu_by_its_name() -> None:
    assert ratio_limits("Functional.gelu", as_written=True)["max_rel"] == 10
    assert ratio_limits("Functional.gelu")["max_rel"] == 2
