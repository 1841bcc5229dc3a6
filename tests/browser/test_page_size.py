"""Pages of 100,000 rows, and how large a page is before there is data on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import synthetic_page
from waiting import until

ROWS = 107_755
# Growth with the square of the rows is a hundred times the goal; cores beside other tests are up to ten times slower.
PATIENCE = 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_page.write(tmp_path_factory.mktemp("large"), ROWS)


def milliseconds(page: Any, script: str) -> float:
    """How long a script takes until what it changed is drawn."""
    timed = (
        f"async () => {{ const start = performance.now(); await (async () => {{ {script} }})(); drawNow(); "
        "return performance.now() - start; }"
    )
    return float(page.evaluate(timed))


def test_a_large_page_is_quick(large: Path, open_page: Any) -> None:
    page = open_page(large)
    times = {
        "jump": milliseconds(page, "firstDivergence()"),
        "open all": milliseconds(page, "openTo(999)"),
        "search": milliseconds(page, "filter.query = 'layers.1000 block.3'; await search(); nextHit(1)"),
        "filter": milliseconds(page, "toggleStatus(1)"),
        # What one search reads the others do not: stacks, types, names.
        **{
            query: milliseconds(page, f"filter.query = {query!r}; await search()")
            for query in ("stack:linear.py:134", "dtype:f32", "shape:[2,16]", "/layers.*mul/")
        },
    }
    ready = page.evaluate("performance.getEntriesByName('ready')[0].startTime")
    print({"ready": round(ready), **{name: round(time) for name, time in times.items()}})

    assert page.evaluate("state.rows.length") == ROWS
    assert ready < 500 * PATIENCE
    assert {name: time for name, time in times.items() if time > 100 * PATIENCE} == {}
    assert page.evaluate("document.querySelectorAll('*').length") < 2000


def test_scrolling_stays_smooth(large: Path, open_page: Any) -> None:
    page = open_page(large)

    page.evaluate("openTo(999)")
    frames = page.evaluate(
        """async () => {
          const times = [];
          let last = performance.now();
          for (let frame = 0; frame < 60; frame++) {
            scroller().scrollTop += 5000;
            await new Promise(requestAnimationFrame);
            const now = performance.now();
            times.push(now - last);
            last = now;
          }
          return times.sort((one, other) => one - other);
        }"""
    )
    print({"median frame": round(frames[30]), "worst frame": round(frames[-1])})
    assert frames[30] < 60 * PATIENCE


def test_above_the_height_that_browsers_allow_every_line_is_still_reached(large: Path, open_page: Any) -> None:
    page = open_page(large)

    # What happens above 700,000 rows, on a page that a test can afford.
    page.evaluate("MOST_ROWS = 5000")
    page.evaluate("openTo(999)")
    assert page.evaluate("byId('space').clientHeight") == 5000 * 22
    page.focus("#scroll")
    page.keyboard.press("End")
    until(page, "document.querySelector('#lines [aria-selected=true]') !== null")
    page.keyboard.press("PageUp")
    page.evaluate("reveal(54321)")
    until(page, "document.querySelector('#r54321')?.getBoundingClientRect().top > 0")
    page.evaluate("scroller().scrollTop = 1e9")
    until(page, "topLine() + scroller().clientHeight / ROW >= lineCount - 1")


def test_the_page_without_data_is_small(tmp_path: Path) -> None:
    page = synthetic_page.write(tmp_path, 100)
    data = sum(map(len, synthetic_page.synthetic(100).blocks.values()))

    assert page.stat().st_size - data < 60_000
