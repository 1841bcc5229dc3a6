"""What a person sees who has never seen such a page: nothing that can be misread, and no key that leads nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written
from visualised_pages import DUMPS, FAULT, selected, visualised
from waiting import until

WEIGHT = ("-tp", DUMPS / "llama_weight", "-gp", DUMPS / "llama")


@pytest.fixture(scope="module")
def weight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return visualised(tmp_path_factory.mktemp("weight"), *WEIGHT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three targets, in an order that is not that of their names."""
    names = ("llama_weight", "llama_three_layers", "llama_nan")
    targets = [one for name in names for one in ("-tp", DUMPS / name)]
    return visualised(tmp_path_factory.mktemp("runs"), *targets, "-gp", DUMPS / "llama")


def test_each_of_several_targets_has_a_button_to_its_own_first_divergence(runs: Path, open_page: Any) -> None:
    page = open_page(runs)

    assert page.locator("#strip .group").all_inner_texts()
    page.click('[data-view="several"]')
    page.wait_for_selector(".row-several[data-node]")
    heads = page.locator(".row-several.titles button").all_inner_texts()[1:]
    assert heads == ["llama_weight", "llama_three_layers", "llama_nan"]
    strip = page.evaluate("matrixLines().map(([name]) => name.split(',')[0])")
    assert strip == heads
    firsts = page.evaluate(
        """Promise.all(besides().map(async ({ k, info }) =>
          `${runName(info.run)}: ${(await readRows(k)).name(info.first)}`))"""
    )
    buttons = page.locator("#view .tools button")
    assert buttons.all_inner_texts() == firsts
    # The list begins where the first of them diverges.
    earliest = page.locator(".row-several .num.here").first
    assert earliest.is_visible()
    buttons.nth(2).click()
    until(page, "state.view === 'outline' && state.rows.k === 2")
    assert f"llama_nan: {selected(page)}" == firsts[2]


def test_what_one_side_lacks_differs_by_no_size(tmp_path: Path, open_page: Any) -> None:
    name, other = "Functional.attention.0.forward", "Functional.attention.1.forward"
    for side, mask, value in (("target", tensor(), float("nan")), ("golden", None, 1.0)):
        records = {name: call(tensor(), mask, output=tensor()), other: call(tensor(), output=tensor(value))}
        written(tmp_path / side, records, dict.fromkeys(records))
    page = open_page(visualised(tmp_path / "page", "-tp", tmp_path / "target", "-gp", tmp_path / "golden"))

    shown = """(name) => {
      const row = state.rows.find(name);
      return [String(state.rows.in[row]), String(state.rows.out[row])];
    }"""
    assert page.evaluate(shown, name) == ["0", "0"]
    # A value that is not finite on one side alone does differ without end.
    assert page.evaluate(shown, other) == ["0", "Infinity"]
    page.evaluate("(name) => reveal(state.rows.find(name))", name)
    until(page, f"document.querySelector('#detail h2')?.textContent.includes('{name}')")
    assert "inf" not in page.locator("#detail .item:has-text('input.1')").inner_text()


def test_the_help_says_which_number_hides_which_status(weight: Path, open_page: Any) -> None:
    page = open_page(weight)

    page.keyboard.press("?")
    lines = page.evaluate(
        """[...document.querySelectorAll("dialog .judged dt")].map((one) =>
          [one.querySelector("kbd")?.textContent ?? "", one.nextSibling.textContent.split(":")[0]])"""
    )
    assert lines == [["", "no data"], *([str(at), name] for at, name in enumerate(
        ("same", "explained", "follows", "structure", "one side only", "suspect", "diverged"), start=1))]  # fmt: skip
    page.keyboard.press("Escape")
    page.keyboard.press("7")
    assert page.get_attribute('#statuses [data-status="7"]', "aria-pressed") == "false"


def test_where_the_golden_run_alone_is_not_finite_o_says_so_and_leads_there(tmp_path: Path, open_page: Any) -> None:
    page = open_page(visualised(tmp_path, "-tp", DUMPS / "llama", "-gp", DUMPS / "llama_nan"))

    page.keyboard.press("Home")
    page.keyboard.press("o")
    until(page, "byId('say').textContent.includes('golden run')")
    assert selected(page) == FAULT
    page.click('[data-view="overflow"]')
    page.wait_for_selector(".row-overflow[data-node]")
    assert "this is the first one of the golden run" in page.inner_text("#view .tools")


def test_without_values_one_thing_is_said(tmp_path: Path, open_page: Any) -> None:
    name = "Functional.relu.0.forward"
    for side in ("target", "golden"):
        written(tmp_path / side, {name: call()}, {name: None}, task="structure")
    paths = ("-tp", tmp_path / "target", "-gp", tmp_path / "golden")
    page = open_page(visualised(tmp_path / "page", *paths), f"#node={name}")

    until(page, "document.querySelector('#detail h2') !== null")
    assert page.evaluate("state.rows.info.mode") == "structure"
    said = page.inner_text("#detail")
    assert "Both runs make this call; no values were collected." in said
    assert "same values" not in said and "No values were recorded" not in said
    assert "same values" not in page.locator("#head").inner_html() + page.locator("#lines").inner_html()


def test_the_end_of_a_path_begins_with_the_folder_of_the_run(tmp_path: Path, open_page: Any) -> None:
    long = "fine_tuning_of_the_large_model_with_warmup_and_clipping"
    name = "Functional.relu.0.forward"
    sides = (tmp_path / "one" / long, tmp_path / "other" / long)
    for side in sides:
        written(side / "step0" / "rank0", {name: call(tensor(), output=tensor())}, {name: None})
    page = open_page(visualised(tmp_path / "page", "-tp", sides[0], "-gp", sides[1]))

    shown = page.locator(".side code")
    # Of two folders of one name it is the one around them that tells them apart.
    end = f"{long}/step0/rank0/dump.json"
    assert shown.all_inner_texts() == [f"\u2026/one/{end}", f"\u2026/other/{end}"]
    assert shown.first.get_attribute("title") == str(sides[0] / "step0" / "rank0" / "dump.json")
    inside = """(all) => all.map((one) => {
      const [path, around] = [one.getBoundingClientRect(), byId("sides").getBoundingClientRect()];
      return path.left >= around.left && path.right <= around.right + 1;
    })"""
    assert shown.evaluate_all(inside) == [True, True]
    assert page.evaluate("byId('head').scrollHeight - byId('head').clientHeight") < 5
