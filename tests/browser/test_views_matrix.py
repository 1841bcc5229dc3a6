"""The matrix of ranks and steps, several runs beside one, and the overflow view, in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written
from visualised_pages import DUMPS, FAULT, selected, visualised
from waiting import until


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of two ranks, of which rank 1 diverges in step 1; the golden run has a step more."""
    folder = tmp_path_factory.mktemp("ranks")
    for step in (0, 1):
        for rank in (0, 1):
            place = Path(f"step{step}") / f"rank{rank}"
            shutil.copytree(DUMPS / "llama", folder / "golden" / place)
            shutil.copytree(DUMPS / ("llama_nan" if step and rank else "llama"), folder / "target" / place)
    shutil.copytree(DUMPS / "llama", folder / "golden" / "step2" / "rank0")
    return visualised(folder / "page", "-tp", folder / "target", "-gp", folder / "golden")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    names = ("llama_weight", "llama_nan", "llama_three_layers")
    targets = [one for name in names for one in ("-tp", DUMPS / name)]
    return visualised(tmp_path_factory.mktemp("runs"), *targets, "-gp", DUMPS / "llama")


def test_it_opens_where_the_terminal_says_that_the_runs_diverge(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks)

    assert page.evaluate("[state.view, state.rows.info.step, state.rows.info.rank]") == ["outline", 1, 1]
    assert selected(page) == FAULT
    assert page.inner_text("#verdict h1").startswith(f"step 1, rank 1: first divergence: {FAULT}")
    assert page.is_visible(f'#lines [data-node="{FAULT}"]')
    assert page.locator("#strip [data-comparison]").count() == 4
    assert page.locator("#strip .badge").all_inner_texts() == ["=", "=", "=", "!"]
    named = page.locator("#strip [data-first]")
    assert named.count() == 1 and named.get_attribute("aria-label").startswith("step 1, rank 1")
    page.click('#strip [aria-label^="step 0, rank 1"]')
    until(page, "state.rows.info.step === 0 && state.rows.info.rank === 1")
    assert page.inner_text("#verdict h1").startswith("step 0, rank 1: ")
    assert page.get_attribute('#strip [aria-current="true"]', "aria-label").startswith("step 0, rank 1")


def test_the_matrix_names_what_each_cell_diverges_by(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks)

    page.keyboard.press("r")
    page.wait_for_selector("#view .matrix")
    cells = page.locator(".matrix .cell")
    assert cells.count() == 4
    assert FAULT in page.get_attribute('.cell[aria-label^="step 1, rank 1"]', "aria-label")
    assert page.inner_text('.cell[aria-label^="step 1, rank 1"] .badge') == "!"
    assert page.inner_text('.cell[aria-label^="step 0, rank 1"] .badge') == "="
    assert "step2" in page.inner_text(".unpaired")


def test_a_cell_is_reached_and_opened_without_a_mouse(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks, "#c=0")

    page.keyboard.press("r")
    page.focus(".matrix .cell")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    until(page, "state.view === 'outline' && state.rows.info.rank === 1 && state.rows.info.step === 1")
    assert selected(page) == FAULT


def test_the_overflow_view_lists_rows_in_order_and_filters_by_level(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks, "#c=3&node=DefaultModel")

    page.click('[data-view="overflow"]')
    page.wait_for_selector(".row-overflow[data-node]")
    shown = page.evaluate("[...document.querySelectorAll('.row-overflow[data-node]')].map((one) => one.dataset.node)")
    in_order = page.evaluate("(names) => names.map((name) => state.rows.find(name))", shown)
    assert in_order == sorted(in_order)
    # A hint is hidden where anything is worse.
    assert page.get_attribute('#view [data-level="growth"]', "aria-pressed") == "false"
    for level in ("medium", "high"):
        page.click(f'#view [data-level="{level}"]')
    count = int(page.inner_text('[data-level="critical"]').split()[1])
    until(page, f"document.querySelectorAll('.row-overflow[data-node]').length === {count}")
    assert set(page.locator(".row-overflow[data-node] .level").all_inner_texts()) <= {"critical", "growth", "\u2013"}
    first = page.get_attribute(".row-overflow[data-node]", "data-node")
    page.focus("#view .long")
    page.keyboard.press("Enter")
    until(page, "state.view === 'outline'")
    assert selected(page) == first


def test_several_runs_stand_beside_one_and_any_of_them_sorts(runs: Path, open_page: Any) -> None:
    page = open_page(runs)

    page.click('[data-view="several"]')
    page.wait_for_selector(".row-several[data-node]")
    heads = page.locator(".row-several.titles button").all_inner_texts()
    assert heads == ["execution order", "llama_weight", "llama_nan", "llama_three_layers"]
    lines = "[...document.querySelectorAll('.row-several[data-node]')]"
    page.click('.row-several.titles button:has-text("llama_weight")')
    page.wait_for_selector('[data-sort="down"]')
    falling = page.evaluate(f"{lines}.slice(0, 12).map((one) => parseFloat(one.children[1].textContent.slice(1)))")
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > 0
    page.click('.row-several.titles button:has-text("llama_weight")')
    page.wait_for_selector('[data-sort="up"]')
    rising = page.evaluate(f"{lines}.slice(0, 12).map((one) => parseFloat(one.children[1].textContent.slice(1)))")
    assert rising == [0] * 12


def test_the_overflow_view_leads_to_the_earliest_value_of_all_ranks(tmp_path: Path, open_page: Any) -> None:
    names = [f"Functional.relu.{number}.forward" for number in range(6)]
    # Of the first step the second rank breaks first; what breaks in a later step is no cause.
    breaks = {"step0/rank0": 4, "step0/rank1": 2, "step1/rank0": 0}
    for place, first in breaks.items():
        for side, number in (("target", first), ("golden", len(names))):
            values = [tensor(float("nan") if at >= number else 1.0) for at in range(len(names))]
            records = {name: call(tensor(), output=value) for name, value in zip(names, values)}
            written(tmp_path / side / place, records, dict.fromkeys(names))
    paths = ("-tp", tmp_path / "target", "-gp", tmp_path / "golden")
    page = open_page(visualised(tmp_path / "page", *paths), "#c=0")

    page.click('[data-view="overflow"]')
    page.wait_for_selector(".row-overflow[data-node]")
    assert page.locator(".row-overflow[data-node] .name").all_inner_texts() == names[4:]
    button = page.locator("#view .tools .strong")
    assert button.inner_text() == "First non-finite value: step 0, rank 1"
    button.click()
    until(page, "state.view === 'outline' && state.rows.info.rank === 1 && state.rows.info.step === 0")
    assert selected(page) == names[2]
