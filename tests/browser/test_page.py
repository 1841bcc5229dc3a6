"""What a person does with the page, in a real browser, on the recorded pair with one weight shifted by 0.01."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import synthetic_page
from visualised_pages import DUMPS, FAULT, selected, visualised
from waiting import until

ROWS = "#lines [data-node]"


@pytest.fixture(scope="module")
def weight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return visualised(tmp_path_factory.mktemp("weight"), "-tp", DUMPS / "llama_weight", "-gp", DUMPS / "llama")


def lines(page: Any) -> int:
    return int(page.evaluate("lineCount"))


def test_it_opens_at_the_first_divergence_and_says_so(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    assert selected(page) == FAULT
    assert FAULT in page.inner_text("#verdict h1")
    assert page.is_visible(f'{ROWS}[data-node="{FAULT}"][aria-selected="true"]')
    page.wait_for_selector("#detail table")
    assert "0.441" in page.inner_text("#detail")
    assert "303 nodes" in page.inner_text("#sides")
    assert "diverged 1" in page.inner_text("#statuses")


SEARCHES = (
    ("layers.1 up_proj", 3, "up_proj"),
    ("/linear\\.1[0-9]\\./", 3, "linear.1"),
    ("shape:[64,32]", 4, ""),
    ("dtype:f32", 50, ""),
    ("err>0.4", 1, ""),
    ("stack:linear.py:134", 5, ""),
)


def test_search_finds_by_names_shapes_dtypes_errors_and_stacks(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    for query, least, name in SEARCHES:
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type(query)
        until(page, f"searched === {query!r}")
        assert page.evaluate("hits.length") >= least
        assert f"of {page.evaluate('hits.length')} hits" in page.inner_text("#hits")
        page.keyboard.press("Enter")
        first = selected(page)
        assert name in first
        page.keyboard.press("Enter")
        page.keyboard.press("Shift+Enter")
        assert selected(page) == first


def test_enter_right_behind_the_last_letter_goes_to_a_hit(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    page.keyboard.press("/")
    page.keyboard.type("lm_head")
    page.keyboard.press("Enter")
    until(page, "state.rows.name(state.selected).includes('lm_head')")
    # A search that is still being made does not lend its hits to the text that was typed since.
    page.evaluate("filter.query = 'embed_tokens'; window.jump = nextHit(1); filter.query = 'up_proj'")
    page.evaluate("jump")
    assert "lm_head" in selected(page)
    page.keyboard.press("Enter")
    until(page, "state.rows.name(state.selected).includes('up_proj')")


def test_rows_open_and_close(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    page.click("#all")
    assert lines(page) == 303
    page.click("#bar button:text-is('1')")
    assert lines(page) < 20
    page.click("#bar button:text-is('problems')")
    assert page.evaluate("lineOf(state.rows.info.first)") >= 0
    page.keyboard.press("Home")
    page.focus("#scroll")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert lines(page) == 1
    page.keyboard.press("ArrowRight")
    assert lines(page) > 1


def test_the_plot_jumps_and_a_drag_filters_until_escape(weight: Path, open_page: Any) -> None:
    page = open_page(weight)
    box = page.locator("#plot").bounding_box()

    page.mouse.click(box["x"] + box["width"] * 0.9, box["y"] + 10)
    assert page.evaluate("state.selected") > 260
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 10, steps=3)
    page.mouse.up()
    assert page.evaluate("[filter.from, filter.to]") == [60, 90]
    assert page.inner_text("#count") == "31 of 303 rows"
    page.keyboard.press("Escape")
    assert page.inner_text("#count") == ""


def test_a_range_is_chosen_in_the_plot_with_the_keyboard(weight: Path, open_page: Any) -> None:
    page = open_page(weight, "#Functional.linear.3.forward")
    start = page.evaluate("state.selected")

    page.focus("#plot")
    for key in ("Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("[filter.from, filter.to, state.selected]") == [start - 2, start, start - 2]
    assert page.inner_text("#count") == "3 of 303 rows"
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#count") == "3 of 303 rows"
    page.keyboard.press("Escape")
    assert page.inner_text("#count") == ""


def test_the_visible_rows_are_saved_as_csv(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    with page.expect_download() as waiting:
        page.click("#bar button:text-is('CSV')")
    rows = list(csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text("utf-8"))))
    assert len(rows) == lines(page)
    [fault] = [row for row in rows if row["target"] == FAULT]
    assert fault["status"] == "diverged"
    assert float(fault["in_error"]) == pytest.approx(0.441)


def test_everything_is_reached_with_the_keyboard(weight: Path, open_page: Any) -> None:
    page = open_page(weight)
    assert page.evaluate("document.activeElement.id") == "scroll"

    page.keyboard.press("ArrowDown")
    assert selected(page) != FAULT
    walked = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        walked.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"detail", "plot", "search", "only", "scroll", "CSV", "Copy name"} <= walked
    page.focus("#scroll")
    page.keyboard.press("?")
    assert page.is_visible("dialog[open]")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog")
    row = page.locator(f"{ROWS}[aria-selected=true]")
    assert row.get_attribute("role") == "treeitem"
    assert int(row.get_attribute("aria-level")) > 1


def test_it_is_dark_where_the_system_is(weight: Path, open_page: Any) -> None:
    page = open_page(weight, color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"

    dark = page.evaluate(colour)
    assert sum(map(int, dark[4:-1].split(","))) < 150
    page.click("[aria-label='Light or dark']")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"
    page.reload()
    until(page, "document.documentElement.dataset.ready === '1'")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"


def test_the_focus_comes_back_from_another_view(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    page.keyboard.press("b")
    until(page, "byId('view').contains(document.activeElement)")
    page.keyboard.press("b")
    until(page, "document.activeElement.id === 'scroll'")
    page.click("[data-view=boxes]")
    until(page, "byId('view').contains(document.activeElement)")
    page.click("[data-view=outline]")
    until(page, "document.activeElement.id === 'scroll'")
    page.keyboard.press("Home")
    assert selected(page) == "DefaultModel"


def test_without_a_divergence_it_stands_on_the_first_row(tmp_path: Path, open_page: Any) -> None:
    page = open_page(visualised(tmp_path, "-tp", DUMPS / "bert_bf16", "-gp", DUMPS / "bert"))

    assert page.evaluate("state.selected") == 0
    assert page.is_visible(f"{ROWS}[aria-selected=true]")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("lineOf(state.selected) === lineOf(0) + 1")


@pytest.mark.parametrize("width", [1280, 1920])
def test_verdict_paths_and_values_are_read_whole(weight: Path, open_page: Any, width: int) -> None:
    page = open_page(weight, width=width)
    page.wait_for_selector("#detail table")

    cut = page.evaluate(
        """() => [...document.querySelectorAll(
            '#verdict h1, #verdict p, .row.first .name:nth-child(2), #detail .item div')]
          .filter((one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 3)
          .map((one) => one.textContent)"""
    )
    assert cut == []
    lines = page.locator("#verdict p").all_inner_texts()
    assert any("return F.linear(input, self.weight, self.bias)" in line for line in lines)
    # The end of a path tells two runs apart; the largest values stand in the panel without scrolling.
    ends = page.evaluate(
        """() => [...document.querySelectorAll('.side code')].map((one) => {
          const text = one.querySelector('bdi').firstChild;
          const end = document.createRange();
          end.setStart(text, text.length - '/llama/dump.json'.length);
          end.setEnd(text, text.length);
          const [outer, inner] = [one.getBoundingClientRect(), end.getBoundingClientRect()];
          return outer.left <= inner.left && inner.right <= outer.right + 1;
        })"""
    )
    assert ends == [True, True]
    panel = page.locator("#detail").bounding_box()
    norm = page.locator("#detail td:has-text('1.025155')").bounding_box()
    assert norm["x"] + norm["width"] <= panel["x"] + panel["width"]


def test_it_prints_the_verdict_the_plot_the_rows_and_the_details(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    page.wait_for_selector("#detail table")
    page.emulate_media(media="print")
    for shown in ("#verdict h1", "#plot", "#detail table", f'{ROWS}[data-node="{FAULT}"]'):
        assert page.is_visible(shown), shown
    for hidden in ("#bar", "#verdict h1 > button:not(.inline)", "#detail .tools"):
        assert not page.is_visible(hidden), hidden
    title = page.inner_text("#verdict h1").strip()
    assert title == f"first divergence: {FAULT} in model.layers.1.mlp.up_proj (Linear)"
    assert page.evaluate(
        """() => {
          const rows = byId('outline').getBoundingClientRect();
          const detail = byId('detail').getBoundingClientRect();
          return rows.bottom <= detail.top && detail.width > innerWidth * 0.9
            && byId('detail').scrollHeight <= detail.height + 1
            && document.documentElement.scrollWidth <= innerWidth;
        }"""
    )
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_one_run_alone_has_no_second_side(tmp_path: Path, open_page: Any) -> None:
    page = open_page(visualised(tmp_path, "-tp", DUMPS / "llama"))

    assert not page.is_visible("#plot")
    page.click("#all")
    assert lines(page) == 303
    page.fill("#search", "up_proj")
    until(page, "hits.length > 0")
    page.keyboard.press("Enter")
    page.wait_for_selector("#detail table")
    text = page.inner_text("body") + str(page.locator("#scroll").inner_html())
    assert not any(word in text for word in ("no data", "diverged", "diverge", "same"))
    assert (
        page.locator("#lines .badge, #detail .badge").all_inner_texts()
        == [""] * page.locator("#lines .badge, #detail .badge").count()
    )
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert "suspect" not in page.inner_text("dialog")


def test_hostile_names_are_text(tmp_path: Path, open_page: Any) -> None:
    name = '</script><img src=x onerror="document.title=1"><b>\u202e' + "x" * 10000
    page = open_page(synthetic_page.write(tmp_path, 200, hostile=name))

    page.click("#all")
    page.keyboard.press("f")
    page.evaluate("reveal(0)")
    until(page, "document.querySelector('#detail h2')?.textContent.includes('onerror')")
    assert page.locator("img").count() == 0
    assert page.title() == "synthetic"


def test_a_page_without_data_says_what_to_do(tmp_path: Path, open_page: Any) -> None:
    text = synthetic_page.write(tmp_path, 200).read_text("utf-8")
    empty = tmp_path / "empty.html"
    empty.write_text(text.replace('id="manifest"', 'id="other"'), "utf-8")

    assert "msprobe graph_visualize" in open_page(empty).inner_text("[role=alert]")


def test_a_folder_of_blocks_is_read_from_its_files(tmp_path: Path, open_page: Any) -> None:
    index = synthetic_page.write(tmp_path, 5000, megabytes=0)
    page = open_page(index)

    assert index.name == "index.html"
    page.wait_for_selector("#detail table")
    assert page.evaluate("document.querySelectorAll('#lines [data-node]').length") > 10
