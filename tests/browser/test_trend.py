"""The trend page in a real browser: it opens at the row that began, and its menus, keys and two runs work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from monitor_rows import MadeTraining, changed, write_first_layout
from waiting import until

from probe.api.cli import main


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trend")
    for run, is_faulty in (("bad", True), ("good", False)):
        for rank in range(2):
            training, steps = MadeTraining(0, rank), []
            for step in range(40):
                rows = training.step(step)
                if is_faulty and step == 25:
                    changed(rows, "actv_grad", "blocks.3.output", 300)
                steps.append(rows)
            write_first_layout(folder / run, steps, rank)
    assert main(["trend", str(folder / "bad"), str(folder / "good"), "-o", str(folder / "page"), "-q"]) == 0
    return next((folder / "page").glob("*.html"))


def test_it_opens_at_the_first_difference_and_follows_keys(page_file: Path, open_page: Any) -> None:
    page = open_page(page_file)
    until(page, "lines[0]?.length > 0 && state.row === 'blocks.3.output'")
    assert page.evaluate("[state.family, state.row, state.step, state.run]") == ["actv_grad", "blocks.3.output", 25, 0]
    assert "first: step 25, rank 0: blocks.3.output" in page.inner_text("#verdict")
    assert page.locator("#alerts button").count() == 1 and "ranks 0, 1" in page.inner_text("#alerts")
    # The cell of the spike in the bad run alone.
    value = page.evaluate("maps[0].state.measure(lines[0][7], 25)")
    assert value > 2 and abs(page.evaluate("maps[1].state.measure(lines[1][7], 25)")) < 0.3
    # The spike is more than 100 times the median: the scale goes to 1000 times, and its marks say so.
    colours = page.locator("#bar-of-colours small")
    factors = ["0.001", "0.01", "0.1", "1", "10", "100", "1000"]
    assert [text[1:] for text in colours.all_inner_texts()] == factors
    page.select_option('[aria-label="family"]', "grad_reduced")
    until(page, "byId('bar-of-colours').lastChild.textContent.slice(1) === '2'")
    assert page.evaluate("[maps[0].state.rowTitle, maps[0].state.limits[1] < 0.31]") == ["parameter", True]
    page.select_option('[aria-label="family"]', "actv_grad")
    page.keyboard.press("f")
    until(page, "state.row === 'blocks.3.output' && maps[0].state.rowTitle === 'module'")

    page.keyboard.press("ArrowDown")
    until(page, "state.row === 'blocks.4.input'")
    page.keyboard.press("r")
    until(page, "lines[0].length === 2")
    page.keyboard.press("r")
    page.fill("#search", "blocks.0")
    until(page, "lines[0].length === 2 && lines[0][0].label === 'blocks.0.input'")
    page.select_option('[aria-label="values"]', "other")
    until(page, "state.mode === 'other'")
    assert page.evaluate("maps[0].state.measure(lines[0][0], 3)") == pytest.approx(0, abs=1e-3)
