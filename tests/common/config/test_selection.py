"""Which calls `list`, `scope`, `data_mode` and `risk_level` leave, in all combinations, against a table."""

from __future__ import annotations

import itertools

import pytest

from probe.common.config.record_filter import RecordFilter, RecordPatterns, wanted_by_risk
from probe.common.dump.naming import parse

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


def test_the_backward_of_a_call_inside_a_module_is_wanted_when_no_module_is_open() -> None:
    selection = RecordFilter((), (), ALL, True, RecordPatterns.of("o.i", None))
    kept(selection)
    backwards = [name.replace("forward", "backward") for name in (A, B, C, D)]
    assert [selection.begin(name, False) for name in backwards] == [False, False, True, False]
    assert [selection.possible(name) for name in backwards] == [False, False, True, False]
    assert selection.now("Module.o.i.fc.Linear.parameters_grad.0")
    assert not selection.now("Module.o.fc.Linear.parameters_grad.0")


def test_a_step_begins_closed_again() -> None:
    selection = RecordFilter((), (B, "Torch.never.0.forward"), ALL, False)
    assert not selection.now(A)
    kept(selection)
    assert selection.now(A), "the range was never closed"
    selection.reset()
    assert not selection.now(A)


def test_records_without_duration_belong_to_an_open_range_and_the_list() -> None:
    grad = "Module.o.O.parameters_grad.0"
    assert RecordFilter((), (), ALL, False).now(grad)
    assert RecordFilter(("O.param",), (), ALL, False).now(grad)
    assert not RecordFilter(("Torch",), (), ALL, False).now(grad)
    selection = RecordFilter(("Module",), (OUTER, OUTER), ALL, False)
    seen = [selection.now(grad)]
    selection.begin(OUTER, True)
    seen.append(selection.now(grad))
    selection.end(OUTER)
    assert [*seen, selection.now(grad)] == [False, True, False]


def test_what_cannot_be_wanted_is_known_before() -> None:
    name = "Torch.a.0.backward"
    assert RecordFilter((), (A, B), ALL, False).possible(name)
    assert RecordFilter(("Torch.a",), (), ALL, False).possible(name)
    assert not RecordFilter(("Torch.b",), (), ALL, False).possible(name)
    assert not RecordFilter(("forward",), (), ALL, False).possible(name)
    assert RecordFilter(("Torch.b",), (), ALL, True).possible(name), "it could run inside a module that is named"


@pytest.mark.parametrize(
    "words",
    [set(words) for n in range(5) for words in itertools.combinations(["forward", "backward", "input", "output"], n)],
    ids=lambda words: "-".join(sorted(words)) or "none",
)
def test_data_mode_names_directions_and_halves(words: set[str]) -> None:
    selection = RecordFilter((), (), frozenset(words), False)
    # A kind of word that is not given at all does not restrict.
    directions = words & {"forward", "backward"} or {"forward", "backward"}
    halves = words & {"input", "output"} or {"input", "output"}
    assert (selection.forward, selection.backward) == ("forward" in directions, "backward" in directions)
    assert (selection.inputs, selection.outputs) == ("input" in halves, "output" in halves)
    assert selection.parameter_gradients == ("backward" in directions)


@pytest.mark.parametrize(
    ("level", "classes"),
    [("ALL", ["core", "middle", "low"]), ("FOCUS", ["core", "middle"]), ("CORE", ["core"])],
)
def test_risk_levels(level: str, classes: list[str]) -> None:
    assert [name for name in ("core", "middle", "low") if wanted_by_risk(level, name)] == classes
