"""The differences of two environments, in the order in which they explain a divergence."""

from __future__ import annotations

from typing import Any

from probe.common.environment.differences import differences

ENVIRONMENT: dict[str, Any] = {
    "format": 1,
    "framework": "pytorch",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "packages": {"torch": "2.9.0", "numpy": "2.0.0"},
    "versions": {"cuda": "12.4"},
    "devices": [],
    "switches": {"matmul_tf32": True, "threads": 4},
    "layout": {},
    "seeds": {"torch": 2, "numpy": 2, "python": 2},
    "random_states": {"torch": "aa", "numpy": "bb"},
    "variables": {"NCCL_ALGO": "Ring"},
    "withheld": 3,
    "optimizers": [{"type": "AdamW", "groups": [{"lr": 0.1, "parameters": 3}, {"lr": 0.1, "parameters": 1}]}],
}


def texts(**changes: Any) -> list[str]:
    return [each.text for each in differences({**ENVIRONMENT, **changes}, ENVIRONMENT)]


def test_equal_environments_have_no_difference() -> None:
    assert texts() == []


def test_one_seed_for_all_generators_is_one_difference() -> None:
    assert texts(
        seeds={"torch": 1, "numpy": 1, "python": 1}, variables={"NCCL_ALGO": "Ring", "PYTHONHASHSEED": "1"}
    ) == [
        "seed 1 (golden: 2)",
        "PYTHONHASHSEED 1 (golden: not there)",
    ]
    assert texts(seeds={"torch": 2, "numpy": 5, "python": 2}) == ["seed of numpy 5 (golden: 2)"]


def test_the_variable_that_repeats_the_seed_is_not_named() -> None:
    one = {**ENVIRONMENT, "seeds": {"torch": 1}, "variables": {"PYTHONHASHSEED": "1"}}
    other = {**ENVIRONMENT, "seeds": {"torch": 2}, "variables": {"PYTHONHASHSEED": "2"}}
    assert [each.text for each in differences(one, other)] == ["seed 1 (golden: 2)"]


def test_a_state_that_differs_is_named_where_the_seed_does_not() -> None:
    (text,) = texts(random_states={"torch": "cc", "numpy": "bb"})
    assert text.startswith("random state of torch, from the same seed,")
    assert texts(random_states={"torch": "cc", "numpy": "bb"}, seeds={"torch": 1, "numpy": 2, "python": 2}) == [
        "seed of torch 1 (golden: 2)"
    ]


def test_a_seed_that_a_framework_drew_is_not_set_and_does_not_lead() -> None:
    """torch.initial_seed() of two processes in which nothing was seeded."""
    drawn, other = 9929030366830163614, 7935408815278348805
    switches = {"matmul_tf32": False, "threads": 4}
    assert texts(seeds={"torch": drawn}, switches=switches) == [
        "TF32 in matrix products off (golden: on)",
        "seed not set (golden: 2)",
    ]
    both = [{**ENVIRONMENT, "seeds": {"torch": seed}} for seed in (drawn, other)]
    assert [each.text for each in differences(both[0], both[1])] == ["seed not set (golden: not set)"]


def test_the_most_likely_cause_comes_first() -> None:
    found = texts(
        packages={"torch": "2.7.1", "numpy": "1.26.0"},
        switches={"matmul_tf32": False, "threads": 8},
        seeds={"torch": 1, "numpy": 1, "python": 1},
        optimizers=[{"type": "AdamW", "groups": [{"lr": 0.2, "parameters": 3}, {"lr": 0.2, "parameters": 1}]}],
        variables={},
    )
    assert found == [
        "seed 1 (golden: 2)",
        "lr 0.2 (golden: 0.1)",
        "TF32 in matrix products off (golden: on)",
        "torch 2.7.1 (golden: 2.9.0)",
        "NCCL_ALGO not there (golden: Ring)",
        "CPU threads 8 (golden: 4)",
        "numpy 1.26.0 (golden: 2.0.0)",
    ]


def test_another_build_of_one_release_is_minor() -> None:
    found = differences({**ENVIRONMENT, "packages": {"torch": "2.9.0+cpu", "numpy": "2.0.0"}}, ENVIRONMENT)
    assert [each.kind for each in found] == ["minor"]


def test_what_only_one_framework_has_is_not_compared() -> None:
    other = {
        "framework": "mindspore",
        "switches": {"mode": "graph"},
        "packages": {"mindspore": "2.7.0", "numpy": "2.0.0"},
    }
    assert texts(**other) == []


def test_a_damaged_file_of_somebody_else_is_no_error() -> None:
    assert differences({"seeds": 3, "switches": None, "optimizers": {}}, ENVIRONMENT)
