"""Activations that one run alone computes, told apart by their curves."""

from __future__ import annotations

import pytest
from divergence_runs import X, call, tensor
from made_dumps import plain

from probe.common.align.row import Row
from probe.common.dump.reading.records import Record
from probe.compare.answers.activations import other_activations
from probe.compare.divergence.aligned_calls import AlignedCall
from probe.compare.divergence.search.runs import Runs
from probe.compare.result import Mode

MODULE = "Module.h.mlp.Mlp.forward.0"


def reasons(target: list[str], golden: list[str], level: str = "mix", approximate: str = "") -> list[str]:
    """What is told of two programs that call these; `approximate` is the argument of the target's first call."""
    calls = []
    for side, names in enumerate((target, golden)):
        for name in names:
            fields = call([tensor(X)], tensor(X))
            if approximate and name is target[0] and not side:
                fields["input_kwargs"] = {"approximate": plain(approximate)}
            items = Record(name, fields, "dump.json").items()
            rows = [Row(name, *((None, item) if side else (item, None)), name) for item in items]
            calls.append(AlignedCall(None, name, rows) if side else AlignedCall(name, None, rows))
    trees = dict.fromkeys(target, MODULE), dict.fromkeys(golden, MODULE)
    return [each.reason for each in other_activations(Runs(calls, Mode.STATISTICS, level, trees, False))]


GELU, TANH, SIGMOID = "Functional.gelu.0.forward", "Torch.tanh.0.forward", "Torch.sigmoid.0.forward"
SILU, ERF = "Functional.silu.0.forward", "Torch.erf.0.forward"
TOLD = "only the target computes {} for an activation; {} of the golden run has another one"


@pytest.mark.parametrize(("target", "golden"), [([GELU], [ERF]), ([SILU], [SIGMOID]), ([GELU], [GELU])])
def test_a_function_and_the_calls_that_it_is_made_of_are_one_activation(target: list[str], golden: list[str]) -> None:
    assert reasons(target, golden) == []


def test_another_curve_is_told_for_both_runs() -> None:
    assert TOLD.format("sigmoid", GELU) in reasons([SIGMOID], [GELU])
    assert len(reasons([SIGMOID], [GELU])) == 2


def test_an_argument_decides_the_curve_of_gelu() -> None:
    assert TOLD.format("tanh", ERF) in reasons([GELU], [ERF], approximate="tanh")
    assert reasons([GELU], [TANH], approximate="tanh") == []


def test_one_layer_with_another_activation_is_enough() -> None:
    said = reasons([GELU, TANH], [GELU])
    assert said == ["only the target computes tanh for an activation"]


def test_nothing_is_told_where_a_recurrent_layer_has_curves_inside() -> None:
    assert reasons([SIGMOID, TANH], ["Functional.lstm.0.forward", GELU]) == []


@pytest.mark.parametrize(("kind", "is_told"), [("QuickGELUActivation", True), ("GELU", False), ("Mystery", False)])
def test_at_l0_classes_of_layers_tell(kind: str, is_told: bool) -> None:
    target, golden = f"Module.a.act.{kind}.forward.0", "Module.b.act.GELUActivation.forward.0"
    assert bool(reasons([target], [golden], "L0")) is is_told
