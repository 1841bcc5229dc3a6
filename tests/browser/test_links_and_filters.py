"""Filters, the links that hold them, and links that ask for what is not there, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import synthetic_page
from synthetic_page import packed, unpacked
from waiting import until

from probe.graph.output import PageData, write_page

ROWS = 400
TARGET_ONLY, GOLDEN_ONLY = range(40), range(60, 80)


def made() -> tuple[PageData, dict[str, Any]]:
    """Two ranks; the rows of rank 0 have everything that can be filtered, those of rank 1 only what every page has."""
    data = synthetic_page.synthetic(ROWS)
    columns = unpacked(data.blocks["c0"])
    columns["level"] = [row % 6 for row in range(ROWS)]
    columns["golden_level"] = [5 if row % 50 == 0 else 0 for row in range(ROWS)]
    columns["reason"] = [1 + row % 5 for row in range(ROWS)]
    columns["micro"] = [row * 3 // ROWS for row in range(ROWS)]
    for side, rows in (("golden", TARGET_ONLY), ("name", GOLDEN_ONLY)):
        for row in rows:
            columns[side][row], columns["reason"][row], columns["status"][row] = -1, 0, synthetic_page.ALONE
    [info] = data.manifest["comparisons"]
    counts = [columns["status"].count(one) for one in range(len(synthetic_page.STATUSES))]
    ranks = [{**info, "counts": counts, "micro_steps": 3}, {**info, "rank": 1}]
    second = {name.replace("c0", "c1", 1): block for name, block in data.blocks.items() if name.startswith("c0")}
    blocks = {**data.blocks, **second, "c0": packed(columns)}
    return PageData({**data.manifest, "comparisons": ranks}, blocks), columns


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_page(made()[0], str(tmp_path_factory.mktemp("ranks") / "page"), 40))


def passing(page: Any) -> list[int]:
    """The lines that are shown because they pass the filters themselves, not for what is inside of them."""
    found = page.evaluate("Array.from(lines.subarray(0, lineCount)).filter((row) => passes(row))")
    return sorted(found)


NAMES = unpacked(synthetic_page.synthetic(ROWS).blocks["names"])
Filter = Callable[[dict[str, Any], int], bool]
FILTERS: dict[str, tuple[str, str, Filter]] = {
    "kind": ("kind", "1", lambda columns, row: columns["kind"][row] == 1),
    "direction": ("direction", "backward", lambda columns, row: ".backward" in NAMES[row]),
    "overflow level": ("level", "5", lambda columns, row: 5 in (columns["level"][row], columns["golden_level"][row])),
    "pair reason": ("reason", "2", lambda columns, row: columns["reason"][row] == 2),
    "target only": ("side", "target", lambda columns, row: row in TARGET_ONLY),
    "golden only": ("side", "golden", lambda columns, row: row in GOLDEN_ONLY),
    "both sides": ("side", "both", lambda columns, row: row not in (*TARGET_ONLY, *GOLDEN_ONLY)),
    "micro step": ("micro", "1", lambda columns, row: columns["micro"][row] == 1),
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_shows_its_rows_and_is_in_the_address(name: str, ranks: Path, open_page: Any) -> None:
    key, value, holds = FILTERS[name]
    _, columns = made()
    expected = [row for row in range(ROWS) if holds(columns, row)]
    page = open_page(ranks)

    page.click(".menu summary")
    page.select_option(f"[data-filter={key}]", value)
    assert 0 < len(expected) < ROWS
    assert passing(page) == expected
    assert page.inner_text("#count") == f"{len(expected)} of {ROWS} rows"
    until(page, f"location.hash.includes('{key}={value}')")
    page.reload()
    until(page, "document.documentElement.dataset.ready === '1'")
    assert passing(page) == expected
    assert page.evaluate(f"document.querySelector('[data-filter={key}]').value") == value


def test_a_status_is_hidden_by_its_chip_and_by_its_key(ranks: Path, open_page: Any) -> None:
    _, columns = made()
    page = open_page(ranks)

    page.click(f'#statuses [data-status="{synthetic_page.SAME}"]')
    page.keyboard.press(str(synthetic_page.EXPLAINED))
    expected = [row for row in range(ROWS) if columns["status"][row] in (synthetic_page.ALONE, synthetic_page.DIVERGED)]
    assert passing(page) == expected
    assert page.locator('#statuses [aria-pressed="false"]').count() == 2
    until(page, "location.hash.includes('hide=1+2')")
    assert passing(open_page(ranks, "#" + page.url.split("#")[1])) == expected


def test_filters_hold_together_with_a_search(ranks: Path, open_page: Any) -> None:
    _, columns = made()
    link = "#level=5&reason=2&side=both&kind=1&micro=0&range=0+300&q=functional&only=1&hide=4"
    keys = ("overflow level", "pair reason", "both sides", "kind")
    page = open_page(ranks, link)

    expected = [
        row for row in range(301)
        if all(FILTERS[key][2](columns, row) for key in keys) and columns["micro"][row] == 0
        and "functional" in NAMES[row].lower()
    ]  # fmt: skip
    assert expected and passing(page) == expected
    page.click("#bar button:text-is('Clear')")
    page.keyboard.press("/")
    page.keyboard.press("Escape")
    until(page, "!passed && !found")
    until(page, "!/level|q=|only|range/.test(location.hash)")


def test_another_comparison_keeps_no_filter_that_means_nothing_there(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks, "#micro=1&range=10+20&level=5&kind=1&q=linear")

    page.select_option("#comparison", "1")
    until(page, "state.rows.k === 1 && searched === 'linear'")
    assert page.evaluate("[filter.from, filter.to, filter.micro, filter.level, filter.kind]") == [-1, -1, "", "", "1"]
    assert page.evaluate("hits.length > 0 && lineCount > 100")
    until(page, "location.hash.includes('c=1') && !/micro|range|level/.test(location.hash)")


BROKEN = {
    "#%E0%A4%A": "node=",
    "#node=no.such.call": "node=no.such.call",
    "#no.such.call": "node=no.such.call",
    "#c=99": "c=99",
    "#c=one": "c=one",
    "#hide=77": "hide=77",
    "#hide=x": "hide=x",
    "#range=5": "range=5",
    "#range=20+10": "range=20 10",
    "#range=0+4000": "range=0 4000",
    "#kind=7": "kind=7",
    "#micro=x": "micro=x",
}


def test_a_link_to_what_is_not_there_says_so_and_shows_the_rest(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks)
    shown = "[state.rows.k, state.selected, lineCount, passed === null]"
    plain = page.evaluate(shown)

    for link, named in BROKEN.items():
        page.evaluate(f"location.hash = {link!r}")
        until(page, f"document.querySelector('[role=alert]')?.textContent.includes('asks for {named}')")
        assert page.locator("[role=alert]").count() == 1, link
        assert page.evaluate(shown) == plain, link
        # The next link is read as if nothing had happened.
        page.evaluate("location.hash = '#node=DefaultModel&kind=1'")
        until(page, "state.rows.name(state.selected) === 'DefaultModel' && filter.kind === '1'")
        assert page.locator("[role=alert]").count() == 0, link


def test_a_link_is_followed_though_an_address_was_about_to_be_written(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks)

    # The address is written between a link and its event: Chromium sometimes drops the event of one that is replaced.
    page.evaluate(
        """() => {
          window.replaced = [];
          const [replace, wait] = [history.replaceState.bind(history), setTimeout];
          history.replaceState = (...to) => (replaced.push(location.hash), replace(...to));
          let write;
          window.setTimeout = (does, ms) => ((write = does), wait(does, ms));
          select(5);
          window.setTimeout = wait;
          location.hash = '#node=DefaultModel';
          write();
        }"""
    )
    assert page.evaluate("replaced") == []
    until(page, "state.rows.name(state.selected) === 'DefaultModel'")
    until(page, "replaced.length > 0")
    assert page.evaluate("[replaced, location.hash]") == [["#node=DefaultModel"], "#node=DefaultModel"]


def test_a_search_that_cannot_be_made_says_what_is_allowed(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks)

    for query in ("/[/", "foo:bar", "err>much", "shape:"):
        page.fill("#search", "linear")
        until(page, "hits.length > 0")
        page.fill("#search", query)
        page.keyboard.press("Enter")
        until(page, "document.getElementById('hits').textContent.startsWith('Not understood')")
        assert "/regex/, shape:, dtype:, stack:" in page.inner_text("#hits")
        assert page.evaluate("hits.length === 0 && found === null")
        until(page, f"new URLSearchParams(location.hash.slice(1)).get('q') === {query!r}")
    again = open_page(ranks, "#" + page.url.split("#")[1])
    assert "Not understood" in again.inner_text("#hits")
    assert again.evaluate("lineCount") > 0


def test_of_two_comparisons_that_are_asked_for_the_last_is_shown(ranks: Path, open_page: Any) -> None:
    page = open_page(ranks)

    # The first one takes longer than the second.
    page.evaluate(
        """() => {
          const whole = block('c1');
          blocks.set('c1', new Promise((done) => setTimeout(() => done(whole), 300)));
          window.both = Promise.all([openComparison(1), openComparison(0)]);
        }"""
    )
    assert page.evaluate("both") == [False, True]
    assert page.evaluate("[state.rows.k, byId('comparison').value]") == [0, "0"]


def test_a_comparison_that_cannot_be_read_leaves_the_other_one(tmp_path: Path, open_page: Any) -> None:
    data, _ = made()
    blocks = {name: block for name, block in data.blocks.items() if name != "c1"}
    page = open_page(Path(write_page(PageData(data.manifest, blocks), str(tmp_path / "page"), 40)))

    page.select_option("#comparison", "1")
    until(page, "document.querySelector('[role=alert]')?.textContent.includes('c1')")
    assert page.evaluate("[state.rows.k, byId('comparison').value]") == [0, "0"]
    page.focus("#scroll")
    page.keyboard.press("Home")
    assert page.evaluate("state.rows.name(state.selected)") == "DefaultModel"


def test_details_that_are_missing_are_named_once(tmp_path: Path, open_page: Any) -> None:
    data, _ = made()
    blocks = {name: block for name, block in data.blocks.items() if name != "c0d0"}
    page = open_page(Path(write_page(PageData(data.manifest, blocks), str(tmp_path / "page"), 40)))

    until(page, "document.querySelector('[role=alert]')?.textContent.includes('c0d0')")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    page.wait_for_timeout(100)
    assert page.locator("[role=alert]").count() == 1
