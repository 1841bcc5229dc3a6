"""Boxes of a subtree, and pairs made by hand, in a real browser on recorded dumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic_page
from graph_dumps import call, tensor
from made_dumps import written
from synthetic_page import packed, unpacked
from visualised_pages import DUMPS, visualised
from waiting import until
from written_pages import WrittenPage

from probe.graph.output import PageData, write_page

LAYER = "Module.model.layers.1.LlamaDecoderLayer.forward.0"


@pytest.fixture(scope="module")
def weight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = ("-tp", str(DUMPS / "llama_weight"), "-gp", str(DUMPS / "llama"))
    return visualised(tmp_path_factory.mktemp("weight"), *paths)


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page where a layer of the target and one of the golden run have no partner."""
    folder = tmp_path_factory.mktemp("renamed")
    data = synthetic_page.synthetic(400)
    columns = unpacked(data.blocks["c0"])
    names = unpacked(data.blocks["names"])
    first = names.index("Module.model.layers.0.Layer.forward.0")
    second = names.index("Module.model.layers.1.Layer.forward.0")
    for row in range(first + 1):
        columns["golden"][row] = -1
    for row in range(first + 1, second + 1):
        columns["name"][row] = -1
    blocks = {**data.blocks, "c0": packed(columns)}
    return Path(write_page(PageData(data.manifest, blocks), str(folder / "page"), 40))


def names_of_boxes(page: Any) -> list[str]:
    return list(page.evaluate("[...document.querySelectorAll('svg .box')].map((one) => one.dataset.node)"))


def test_boxes_show_the_subtree_and_say_that_nobody_recorded_who_made_what(weight: Path, open_page: Any) -> None:
    page = open_page(weight, f"#node={LAYER}")

    page.keyboard.press("b")
    page.wait_for_selector("svg .box")
    inside = page.evaluate("[state.rows.first[state.selected], state.selected]")
    rows = page.evaluate("[...document.querySelectorAll('svg .box')].map((one) => Number(one.dataset.row))")
    assert names_of_boxes(page)[0] == LAYER
    assert min(rows) >= inside[0]
    assert max(rows) == inside[1]
    assert page.locator("svg .arc").count() == 0 and "record with sketches" in page.inner_text("#view .hint")


def test_keys_open_and_leave_a_box_and_zoom(weight: Path, open_page: Any) -> None:
    page = open_page(weight, f"#node={LAYER}")

    page.keyboard.press("b")
    page.focus("svg .box[tabindex='0']")
    page.keyboard.press("ArrowDown")
    until(page, f"state.rows.name(state.selected) !== '{LAYER}'")
    page.keyboard.press("Home")
    before = page.get_attribute("svg.boxes > g", "transform")
    page.keyboard.press("+")
    assert page.get_attribute("svg.boxes > g", "transform") != before
    closed = page.evaluate("Number([...document.querySelectorAll('.box[aria-expanded=true]')][1].dataset.row)")
    many = len(names_of_boxes(page))
    page.dblclick(f'.box[data-row="{closed}"] > rect', position={"x": 60, "y": 8})
    assert len(names_of_boxes(page)) < many
    page.keyboard.press("Enter")
    assert len(names_of_boxes(page)) == many
    page.keyboard.press("Backspace")
    assert page.evaluate("state.rows.name(state.selected)") == LAYER
    assert names_of_boxes(page)[0] != LAYER


def test_a_subtree_of_many_rows_stays_below_500_boxes(tmp_path: Path, open_page: Any) -> None:
    page = open_page(synthetic_page.write(tmp_path, 60_000), "#node=DefaultModel")

    page.keyboard.press("b")
    page.wait_for_selector("svg .box .more")
    assert len(names_of_boxes(page)) == 500


def test_exported_pairs_are_those_that_the_next_run_makes(open_page: Any, tmp_path: Path) -> None:
    def tree(part: str, first: int) -> dict[str, str | None]:
        around = f"Module.{part}.Block.forward.0"
        calls = [f"Torch.sin.{number}.forward" for number in range(first, first + 3)]
        return {**dict.fromkeys([*calls, f"Module.{part}.act.ReLU.forward.0"], around), around: None}

    run = tmp_path / "run"
    for side, part, first in (("target", "new", 0), ("golden", "old", 1)):
        made = tree(part, first)
        for rank in (0, 1):
            records = dict.fromkeys(made, call(tensor(), output=tensor()))
            written(run / side / "step2" / f"rank{rank}", records, made)
    paths = ("-tp", str(run / "target"), "-gp", str(run / "golden"))
    page = open_page(visualised(tmp_path / "first", *paths), "#c=1")
    page.evaluate("reveal(state.rows.find('Module.new.Block.forward.0'))")
    page.keyboard.press("m")
    page.evaluate("reveal(state.rows.find('Module.old.Block.forward.0'))")
    page.keyboard.press("g")
    page.click('[data-view="pairs"]')
    with page.expect_download() as download:
        page.click("text=Export JSON")
    file = tmp_path / "pairs.json"
    download.value.save_as(file)

    wanted = {
        "Module.new.Block.forward.0": "Module.old.Block.forward.0",
        "Module.new.act.ReLU.forward.0": "Module.old.act.ReLU.forward.0",
        **{f"Torch.sin.{number}.forward": f"Torch.sin.{number + 1}.forward" for number in range(3)},
    }
    again = WrittenPage(visualised(tmp_path / "second", *paths, "--pairs", str(file)))
    manual = again.manifest["reasons"].index("manual")
    for k, expected in ((0, {}), (1, wanted)):
        reasons = again.column("reason", k)
        assert dict(pair for pair, reason in zip(again.rows(k), reasons) if reason == manual) == expected


def test_a_pair_of_one_of_several_runs_is_for_that_run_alone(open_page: Any, tmp_path: Path) -> None:
    names = {"one": "Functional.relu.0.forward", "two": "Functional.silu.0.forward"}
    for run, name in {**names, "golden": "Functional.gelu.0.forward"}.items():
        written(tmp_path / run, {name: call(tensor(), output=tensor())}, {name: None})
    targets = [argument for run in names for argument in ("-tp", str(tmp_path / run))]
    paths = (*targets, "-gp", str(tmp_path / "golden"))
    page = open_page(visualised(tmp_path / "first", *paths), "#c=0")
    for k, name in enumerate(names.values()):
        page.evaluate(
            f"openComparison({k}).then(() => {{ markTarget(state.rows.find('{name}'));"
            " pairWith(state.rows.find('Functional.gelu.0.forward')); })"
        )
    page.click('[data-view="pairs"]')
    with page.expect_download() as download:
        page.click("text=Export JSON")
    download.value.save_as(tmp_path / "pairs.json")

    again = WrittenPage(visualised(tmp_path / "second", *paths, "--pairs", str(tmp_path / "pairs.json")))
    manual = again.manifest["reasons"].index("manual")
    for k, name in enumerate(names.values()):
        reasons = again.column("reason", k)
        pairs = [pair for pair, reason in zip(again.rows(k), reasons) if reason == manual]
        assert pairs == [(name, "Functional.gelu.0.forward")]


def test_a_pair_is_taken_back_and_undone(renamed: Path, open_page: Any) -> None:
    page = open_page(renamed, "#node=Module.model.layers.0.Layer.forward.0")

    page.keyboard.press("g")
    assert page.evaluate("manualPairs.length") == 0
    page.keyboard.press("m")
    page.wait_for_selector("#lines .marked")
    page.evaluate("reveal(state.rows.find('Module.model.layers.1.Layer.forward.0'))")
    page.keyboard.press("g")
    assert page.evaluate("manualPairs.length") == 1
    page.wait_for_selector("#lines .by-hand")
    page.click('[data-view="pairs"]')
    page.click(".pairs button")
    assert page.inner_text(".pairs") == "No pairs yet."
    page.click("text=Undo")
    assert page.evaluate("manualPairs.length") == 1
    page.keyboard.press("u")
    assert page.evaluate("manualPairs.length") == 0
