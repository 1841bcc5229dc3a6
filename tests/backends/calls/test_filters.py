"""data_mode, list, scope, risk_level, step, rank and token_range."""

from __future__ import annotations

from typing import Any

import dumped
import pytest
from programs import BATCH, Names, batch, block_network, collect, collect_calls

# --- data_mode


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    ("mode", "forward", "backward"),
    [
        (["forward"], "io", ""),
        (["backward"], "", "io"),
        (["input"], "i", "i"),
        (["output"], "o", "o"),
        (["forward", "input"], "i", ""),
        (["backward", "output"], "", "o"),
        (["forward", "backward"], "io", "io"),
        (["input", "output"], "io", "io"),
        (["forward", "backward", "input"], "i", "i"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else None,
)
def test_data_mode_keeps_the_chosen_halves(
    runs: Any, backend: Any, level: str, mode: list[str], forward: str, backward: str
) -> None:
    dump = collect(runs, backend, level, data_mode=mode)
    modules, apis = (4, 3) if level == "mix" else (4, 0) if level == "L0" else (0, 3)
    assert len(dump.forward) == (modules + apis if forward else 0)
    assert len(dump.backward) == (modules + apis if backward else 0)
    for name in dump.forward:
        expected = {"input_args", "input_kwargs"} if "i" in forward else set()
        expected |= {"output"} if "o" in forward else set()
        expected |= {"parameters"} if "o" in forward and name.startswith(backend.root) else set()
        assert set(dump.data[name]) == expected, name
    for name in dump.backward:
        expected = {"input"} if "i" in backward else set()
        expected |= {"output"} if "o" in backward else set()
        assert set(dump.data[name]) == expected, name
    with_gradients = bool(modules) and (bool(backward) or "forward" not in mode)
    assert len(dump.parameter_gradients) == (2 if with_gradients else 0)
    assert len(dump.tree) == (2 * (modules + apis) if level != "L1" else 0)


# --- list


@pytest.mark.parametrize(
    ("level", "wanted", "expected"),
    [
        ("L1", ["{relu}", "nothing has this name"], [
            "{relu}.0.forward", "{relu}.0.backward", "{relu}.1.forward", "{relu}.1.backward",
        ]),
        # The numbers stay, and there are no regular expressions.
        ("L1", ["{linear}.3"], ["{linear}.3.forward", "{linear}.3.backward"]),
        ("L1", [".*", "Func.ional"], []),
        # A listed module keeps what runs inside it at mix, and is alone at L0.
        ("mix", ["{body}.forward.0"], [
            "{linear}.0.forward", "{fc}.forward.0", "{relu}.0.forward", "{act}.forward.0", "{body}.forward.0",
        ]),
        ("L0", ["{body}.forward.0"], ["{body}.forward.0"]),
    ],
    ids=["a text", "a number", "no expressions", "a module at mix", "a module at L0"],
)  # fmt: skip
def test_list_keeps_names_that_contain_a_text(
    runs: Any, backend: Any, level: str, wanted: list[str], expected: list[str]
) -> None:
    words = {**vars(Names(backend)), **{name: backend.apis[name].base for name in ("linear", "relu")}}
    dump = collect(runs, backend, level, times=2, **{"list": [text.format(**words) for text in wanted]})
    assert dump.names == [text.format(**words) for text in expected]


# --- module, api


def test_a_module_pattern_keeps_everything_inside_forward_and_backward(runs: Any, backend: Any) -> None:
    names, linear, relu = Names(backend), backend.apis["linear"].base, backend.apis["relu"].base
    path = names.body.split(".")[1]
    dump = collect(runs, backend, "mix", module=path)
    whole = collect(runs, backend, "mix")
    expected = [
        name
        for name in whole.names
        if name.startswith((names.body, f"{backend.root}.{path}.", f"{linear}.0.", f"{relu}.0."))
    ]
    assert dump.names == expected
    assert f"{linear}.0.backward" in dump.names and f"{names.body}.backward.0" in dump.names


def test_an_api_pattern_keeps_calls_of_functions_only(runs: Any, backend: Any) -> None:
    linear = backend.apis["linear"].base
    dump = collect(runs, backend, "mix", api=f"*{linear.rpartition('.')[2]}")
    assert set(dump.names) == {f"{linear}.{n}.{direction}" for n in (0, 1) for direction in ("forward", "backward")}


# --- scope


def test_scope_at_l1_keeps_everything_between_two_calls(runs: Any, backend: Any) -> None:
    absolute, relu, x = backend.apis["abs"].base, backend.apis["relu"].base, batch(backend)

    def call() -> None:
        for name in ("abs", "relu", "abs", "relu", "abs", "relu"):
            backend.apis[name].call(x)

    scope = [f"{absolute}.1.forward", f"{absolute}.2.forward"]
    dump = collect_calls(runs, None, call, "L1", scope=scope)
    assert dump.names == [scope[0], f"{relu}.1.forward", scope[1]]
    for name in dump.names:
        assert set(dump.data[name]) == {"input_args", "input_kwargs", "output"}, "both ends are included completely"


def test_scope_of_modules_reaches_from_the_first_begin_to_the_last_end(runs: Any, backend: Any) -> None:
    names = Names(backend)
    dump = collect(runs, backend, "L0", scope=[f"{names.act}.forward.0", f"{names.head}.forward.0"])
    assert dump.forward == [f"{names.act}.forward.0", f"{names.body}.forward.0", f"{names.head}.forward.0"]
    # The body was entered before the range began.
    assert set(dump.data[f"{names.body}.forward.0"]) == {"output", "parameters"}
    for base in (names.act, names.head):
        record = dump.data[f"{base}.forward.0"]
        assert set(record) == {"input_args", "input_kwargs", "output", "parameters"}
    assert dump.backward == []


def test_a_scope_of_one_module_keeps_what_runs_inside_it(runs: Any, backend: Any) -> None:
    names, linear, relu = Names(backend), backend.apis["linear"].base, backend.apis["relu"].base
    whole = f"{names.body}.forward.0"
    dump = collect(runs, backend, "mix", scope=[whole, whole])
    inside = [f"{linear}.0.forward", f"{names.fc}.forward.0", f"{relu}.0.forward", f"{names.act}.forward.0"]
    assert dump.names == [*inside, whole]


def test_a_scope_that_reaches_into_the_backward(runs: Any, backend: Any) -> None:
    names = Names(backend)
    dump = collect(runs, backend, "L0", scope=[f"{names.head}.forward.0", f"{names.head}.backward.0"])
    assert [name for name in dump.names if ".parameters_grad" not in name] == [
        f"{names.head}.forward.0",
        f"{names.head}.backward.0",
    ]
    assert dump.parameter_gradients == [f"{names.head}.parameters_grad.0"]


def test_list_is_applied_inside_scope(runs: Any, backend: Any) -> None:
    names = Names(backend)
    whole = f"{names.body}.forward.0"
    dump = collect(runs, backend, "L0", scope=[whole, whole], **{"list": [names.act, names.head]})
    assert dump.names == [f"{names.act}.forward.0"]


def test_a_scope_opens_again_in_the_next_step(runs: Any, backend: Any) -> None:
    base = backend.apis["abs"].base
    debugger = runs.new(scope=[f"{base}.1.forward", f"{base}.1.forward"])
    x = batch(backend)
    for _ in range(2):
        debugger.start()
        for _ in range(3):
            backend.apis["abs"].call(x)
        debugger.stop()
        debugger.step()
    assert runs.read(0).names == runs.read(1).names == [f"{base}.1.forward"]


# --- risk_level


def risky(runs: Any, backend: Any, **settings: Any) -> list[str]:
    debugger, x = runs.new(**settings), batch(backend)
    y = backend.transposed(x)
    debugger.start()
    backend.apis["matmul"].call(x, y)
    backend.apis["abs"].call(x)
    backend.apis["concat"].call([x, x])
    debugger.stop()
    bases = {api.base: name for name, api in backend.apis.items()}
    return [bases[name.rsplit(".", 2)[0]] for name in runs.read().names]


@pytest.mark.parametrize(
    ("level", "expected"),
    [("ALL", ["core", "middle", "low"]), ("FOCUS", ["core", "middle"]), ("CORE", ["core"])],
)
def test_risk_level_chooses_classes_of_apis(runs: Any, backend: Any, level: str, expected: list[str]) -> None:
    assert backend.risk == {"core": "matmul", "middle": "abs", "low": "concat"}
    assert risky(runs, backend, risk_level=level) == [backend.risk[kind] for kind in expected]


def test_risk_level_is_ignored_where_a_list_is_given(runs: Any, backend: Any) -> None:
    assert risky(runs, backend, risk_level="CORE", **{"list": [backend.apis["concat"].base]}) == ["concat"]


def test_risk_level_does_not_concern_modules(runs: Any, backend: Any) -> None:
    dump = collect(runs, backend, "mix", risk_level="CORE")
    linear, relu = backend.apis["linear"].base, backend.apis["relu"].base
    assert len([name for name in dump.forward if name.startswith(backend.root)]) == 4
    assert f"{linear}.1.forward" in dump.names and f"{relu}.0.forward" not in dump.names


# --- step, rank, token_range


def steps(runs: Any, backend: Any, count: int, **settings: Any) -> Any:
    debugger = runs.new(**settings)
    for _ in range(count):
        debugger.start()
        backend.apis["abs"].call(batch(backend))
        debugger.stop()
        debugger.step()
    return debugger


@pytest.mark.parametrize(
    ("wanted", "found"),
    [([], [0, 1, 2, 3]), ([1], [1]), (["1-2"], [1, 2]), ([3, "0", 0], [0, 3]), ([7], [])],
    ids=str,
)
def test_only_wanted_steps_leave_something_on_disk(runs: Any, backend: Any, wanted: Any, found: list[int]) -> None:
    steps(runs, backend, 4, step=wanted)
    assert dumped.folders(runs.path) == [f"step{number}/procN" for number in found]


def test_after_the_last_wanted_step_collection_ends_for_good(
    runs: Any, backend: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    debugger = steps(runs, backend, 2, step=[0])
    text = "All wanted data has been collected"
    said = capsys.readouterr().err
    assert said.count(text) == 1
    assert "msprobe ends successfully." in said.splitlines()[-1]
    before = backend.api_objects()
    debugger.start()
    during = backend.api_objects()
    assert all(during[name] is before[name] for name in before), "nothing is attached any more"
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    assert text not in capsys.readouterr().err
    assert dumped.folders(runs.path) == ["step0/procN"]


def test_set_init_step_numbers_the_first_step(runs: Any, backend: Any) -> None:
    debugger = runs.new(step=[5])
    debugger.set_init_step(4)
    for _ in range(3):
        debugger.start()
        backend.apis["abs"].call(batch(backend))
        debugger.stop()
        debugger.step()
    assert dumped.folders(runs.path) == ["step5/procN"]


def test_a_rank_given_to_start_names_the_folder(runs: Any, backend: Any) -> None:
    debugger = runs.new(rank=[3])
    debugger.start(rank_id=3)
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    debugger.step()
    # Only the first one counts.
    debugger.start(rank_id=7)
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    assert dumped.folders(runs.path) == ["step0/rank3", "step1/rank3"]


@pytest.mark.parametrize("rank_id", [None, 2])
def test_other_ranks_leave_nothing_on_disk(runs: Any, backend: Any, rank_id: int | None) -> None:
    debugger = runs.new(rank=[0, 1])
    debugger.start(rank_id=rank_id)
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    debugger.step()
    assert not runs.path.exists() or not list(runs.path.iterdir())


@pytest.mark.parametrize(("token_range", "passes"), [([0, 0], 1), ([1, 2], 2), ([2, 9], 2), ([4, 5], 0)])
def test_token_range_counts_forward_passes_of_the_model(
    runs: Any, backend: Any, token_range: list[int], passes: int
) -> None:
    debugger, model, names = runs.new(level="L0"), block_network(backend), Names(backend)
    debugger.start(model, token_range=token_range)
    for _ in range(4):
        model(batch(backend))
    debugger.stop()
    # Numbers start with the first pass that is collected.
    assert [name for name in runs.read().names if name.startswith(names.head)] == [
        f"{names.head}.forward.{n}" for n in range(passes)
    ]


def test_outside_the_token_range_apis_are_not_collected_either(runs: Any, backend: Any) -> None:
    debugger, model = runs.new(level="mix"), block_network(backend)
    debugger.start(model, token_range=[1, 1])
    backend.apis["abs"].call(batch(backend))
    for _ in range(3):
        model(batch(backend))
    backend.apis["abs"].call(batch(backend))
    debugger.stop()
    apis = [name for name in runs.read().names if not name.startswith(backend.root)]
    assert apis == [
        f"{backend.apis[name].base}.{number}.forward" for name, number in (("linear", 0), ("relu", 0), ("linear", 1))
    ]


@pytest.mark.parametrize("raises", [False, True])
def test_what_follows_the_last_token_belongs_to_it_until_the_next_forward_begins(
    runs: Any, backend: Any, raises: bool
) -> None:
    debugger, model, absolute = runs.new(level="mix"), block_network(backend), backend.apis["abs"]
    debugger.start(model, token_range=[0, 1])
    for token in range(4):
        if token == 2 and raises:
            with pytest.raises(Exception, match=r"."):
                model(backend.tensor(BATCH[:, :3]))
        else:
            model(batch(backend))
        absolute.call(batch(backend))  # as a script samples from the logits
    debugger.stop()
    dump, names = runs.read(), Names(backend)
    assert [name for name in dump.names if absolute.base in name] == [f"{absolute.base}.{n}.forward" for n in range(2)]
    assert [name for name in dump.names if names.head in name] == [f"{names.head}.forward.{n}" for n in range(2)]
