"""What is said of names that a step did not have; the sentences are those of docs/reference/configuration.md."""

from __future__ import annotations

import time
from typing import Any

import pytest

from probe.common.config.config import Config
from probe.common.config.record_filter import RecordFilter
from probe.common.config.unmatched import Met, unmatched

CALLS = {
    "Functional.relu": 3,
    "Functional.conv2d": 1,
    "Module.body.0.act.ReLU": 2,
    "Module.head.Linear": 1,
}


def said(calls: dict[str, int] | None = None, **more: Any) -> list[str]:
    met = {name: more.pop(name, True) for name in ("first_of_scope", "last_of_scope", "records", "tensors")}
    return unmatched(Config(**more), Met(CALLS if calls is None else calls, **met))


@pytest.mark.parametrize(
    "text",
    [
        "relu", "Functional.relu.2.forward", "relu.2.b", "relu.0.", "2.forward", "forward", "act.ReLU.backward.1",
        "Module.head.Linear.parameters_grad.0", ".0.",
    ],
)  # fmt: skip
def test_a_text_in_a_possible_name_of_a_call_gets_no_line(text: str) -> None:
    assert said(names=(text,)) == []


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("rellu", '"Functional.relu"'),
        ("Functional.rellu", '"Functional.relu"'),
        ("haed", '"Module.head.Linear"'),
        ("Functional.relu.3.forward", '"Functional.relu.2.forward"'),
        ("Functional.conv2.7.backward", '"Functional.conv2d.0.backward"'),
        ("Module.body.1.act.ReLU.forward.0", '"Module.body.0.act.ReLU.forward.0"'),
    ],
)
def test_the_nearest_name_is_what_was_probably_meant(text: str, nearest: str) -> None:
    (line,) = said(names=(text,))
    assert line.startswith(f'nothing matches "{text}" of "statistics.list"; nearest names seen: {nearest}')


def test_without_a_near_name_some_that_were_seen_are_named() -> None:
    assert said(names=("zzz",)) == [
        'nothing matches "zzz" of "statistics.list"; names seen: among others "Functional.relu", "Functional.conv2d", '
        '"Module.body.0.act.ReLU".'
    ]


def test_several_texts_are_one_line_and_those_that_matched_are_not_in_it() -> None:
    (line,) = said(names=("relu", *(f"q{n}" for n in range(5))))
    assert line.startswith('nothing matches "q0", "q1", "q2" and 2 more of "statistics.list"; ')


@pytest.mark.parametrize(
    ("first", "last", "line"),
    [
        (False, False, 'nothing was collected, because "Functional.relu.9.forward", the first name of '
         '"statistics.scope", did not occur; nearest names seen: "Functional.relu.2.forward".'),
        (True, False, 'collection did not end early: "Functional.conv2d.4.forward", the last name of '
         '"statistics.scope", did not occur after it; nearest names seen: "Functional.conv2d.0.forward".'),
    ],
)  # fmt: skip
def test_of_a_scope_the_name_that_was_not_met_is_named(first: bool, last: bool, line: str) -> None:
    scope = ("Functional.relu.9.forward", "Functional.conv2d.4.forward")
    assert said(scope=scope, first_of_scope=first, last_of_scope=last, records=first) == [line]
    assert said(scope=scope) == []


def test_of_a_call_in_a_scope_that_ran_it_is_said_what_of_it_was_met() -> None:
    scope = ("Functional.relu.1.backward", "Functional.conv2d.0.forward")
    (first,) = said(scope=scope, first_of_scope=False, records=False)
    assert first.endswith('the first name of "statistics.scope", did not occur; its forward occurred.')
    (last,) = said(scope=scope, last_of_scope=False)
    assert last.endswith('the last name of "statistics.scope", did not occur after it; it occurred before.')


def test_what_other_settings_leave_out_is_said_too() -> None:
    assert said(names=("relu",), records=False) == [
        'nothing was recorded: no call selected by "statistics.list" and "statistics.scope" had a part that '
        '"statistics.data_mode" selects.'
    ]
    (line,) = said(tensor_list=("relu",), tensors=False)
    assert line.startswith('no tensor was saved: records of "statistics.tensor_list" occurred, but other settings')
    assert said(tensor_list=("rellu",), tensors=False)[0].startswith('nothing matches "rellu" of "statistics.tensor_l')


def test_a_scope_knows_whether_its_names_were_met_in_their_order() -> None:
    selection = RecordFilter((), ("Torch.a.0.forward", "Torch.b.0.forward"), frozenset(), False)
    for name in ("Torch.b.0.forward", "Torch.a.0.forward"):
        selection.begin(name, False)
        selection.end(name)
    assert (selection.first_met, selection.last_met) == (True, False)
    selection.end("Torch.b.0.forward")
    assert selection.last_met
    selection.reset()
    assert (selection.first_met, selection.last_met) == (False, False)


def test_a_step_of_very_many_calls_takes_no_time_that_is_noticed() -> None:
    calls = {f"Module.layers.{n}.block.Linear{n}": 20 for n in range(10_000)}
    begun = time.process_time()
    assert said(calls, names=("layers.3.blok",))[0].count("nearest names seen") == 1
    # 0.2 s on one core.
    assert time.process_time() - begun < 5


def test_filters_that_fit_no_call_in_common_are_both_named() -> None:
    given = {"module": "head", "api": "relu"}
    assert said(**given) == []
    assert said(records=False, **given) == [
        'nothing was recorded: no call of a function that matches "relu" of "api" ran inside a module that matches '
        '"head" of "module"; a call has to match both.'
    ]
    (line,) = said(records=False, module="head", api="rellu")
    assert line.startswith('nothing matches "rellu" of "api"')
    assert said(records=False, module="head") == [
        'nothing was recorded: "module" or "api" matches calls that were made, but other settings exclude them.'
    ]
