"""Which calls 'list', 'scope', 'data_mode' and patterns leave, and what is said of names that a step did not have."""

from __future__ import annotations

from typing import Any

import pytest

from probe.common.config.config import Config
from probe.common.config.record_filter import RecordFilter, RecordPatterns
from probe.common.config.unmatched import Met, unmatched
from probe.common.dump.naming import parse

# --- which calls `list`, `scope`, `data_mode` and `risk_level` leave, in all combinations, against a table

ALL: frozenset[str] = frozenset()

# A small program: what begins (+) and ends (-) in order; o is a module, the rest are APIs.
A, B, C, D = ("Torch.a.0.forward", "Torch.b.0.forward", "Torch.c.0.forward", "Torch.d.0.forward")
OUTER, INNER = "Module.o.O.forward.0", "Module.o.i.I.forward.0"
PROGRAM = [("+", A), ("-", A), ("+", OUTER), ("+", B), ("-", B), ("+", INNER), ("+", C), ("-", C), ("-", INNER)]
PROGRAM += [("-", OUTER), ("+", D), ("-", D)]
LETTER = {A: "a", B: "b", C: "c", D: "d", OUTER: "o", INNER: "i"}


def kept(selection: RecordFilter) -> tuple[str, str]:
    """The letters of the calls that are wanted at their beginning, and at their end, in the program's order."""
    begun, ended = [], []
    for what, name in PROGRAM:
        parsed = parse(name)
        assert parsed is not None
        if what == "+" and selection.begin(name, parsed.is_module):
            begun.append(LETTER[name])
        elif what == "-" and selection.end(name):
            ended.append(LETTER[name])
    return "".join(begun), "".join(ended)


# names, scope, keep_inside -> wanted at the beginning, wanted at the end
TABLE = [
    ((), (), False, "aobicd", "abciod"),
    # list
    (("Torch.b",), (), False, "b", "b"),
    ((".b", ".d."), (), False, "bd", "bd"),
    (("Module.o",), (), False, "oi", "io"),
    (("Torch",), (), False, "abcd", "abcd"),
    (("no such name",), (), False, "", ""),
    (("forward",), (), False, "aobicd", "abciod"),
    # list at level mix: what runs inside a module that is named comes with it
    (("Module.o.O",), (), True, "obic", "bcio"),
    (("Module.o.i",), (), True, "ic", "ci"),
    (("Torch.b",), (), True, "b", "b"),
    (("Module.o.i", "Torch.d"), (), True, "icd", "cid"),
    # scope, both ends included
    ((), (A, A), False, "a", "a"),
    ((), (A, D), False, "aobicd", "abciod"),
    ((), (B, C), False, "bic", "bc"),
    ((), (D, D), False, "d", "d"),
    ((), (INNER, INNER), False, "ic", "ci"),
    ((), (OUTER, OUTER), False, "obic", "bcio"),
    ((), (C, D), False, "cd", "ciod"),
    ((), (A, B), False, "aob", "ab"),
    ((), (A, "Torch.never.0.forward"), False, "aobicd", "abciod"),
    ((), ("Torch.never.0.forward", D), False, "", ""),
    # both: inside the range and named
    (("Torch",), (B, C), False, "bc", "bc"),
    (("Torch.a",), (B, C), False, "", ""),
    (("Module",), (B, D), False, "i", "io"),
    (("Module.o.i",), (B, D), True, "ic", "ci"),
    (("Module.o.O",), (B, D), True, "", "o"),
]


@pytest.mark.parametrize(("names", "scope", "inside", "begun", "ended"), TABLE)
def test_calls_that_a_filter_leaves(
    names: tuple[str, ...], scope: tuple[str, ...], inside: bool, begun: str, ended: str
) -> None:
    selection = RecordFilter(names, scope, ALL, inside)
    for step in range(2):
        assert kept(selection) == (begun, ended), f"step {step}"
        selection.reset()
    assert selection.everything == (not names and not scope)


@pytest.mark.parametrize(
    ("module", "api", "begun", "ended"),
    [
        ("o", None, "obic", "bcio"),
        ("o.i", None, "ic", "ci"),
        ("I", None, "ic", "ci"),
        (INNER, None, "ic", "ci"),
        (None, "[bd]", "bd", "bd"),
        (None, "Torch.*", "abcd", "abcd"),
        ("o", "c", "c", "c"),
        ("o", "a", "", ""),
        ("nothing", None, "", ""),
    ],
)
def test_calls_that_patterns_leave(module: str | None, api: str | None, begun: str, ended: str) -> None:
    selection = RecordFilter((), (), ALL, True, RecordPatterns.of(module, api))
    for step in range(2):
        assert kept(selection) == (begun, ended), f"step {step}"
        selection.reset()
    assert not selection.everything
    listed = RecordFilter(("Torch",), (), ALL, True, RecordPatterns.of(module, api))
    assert kept(listed)[0] == "".join(letter for letter in begun if letter in "abcd"), "both filters have to agree"


# --- what is said of names that a step did not have; the sentences are those of docs/reference/configuration.md

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


def test_what_other_settings_leave_out_is_said_too() -> None:
    assert said(names=("relu",), records=False) == [
        'nothing was recorded: no call selected by "statistics.list" and "statistics.scope" had a part that '
        '"statistics.data_mode" selects.'
    ]
    (line,) = said(tensor_list=("relu",), tensors=False)
    assert line.startswith('no tensor was saved: records of "statistics.tensor_list" occurred, but other settings')
    assert said(tensor_list=("rellu",), tensors=False)[0].startswith('nothing matches "rellu" of "statistics.tensor_l')
