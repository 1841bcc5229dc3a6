"""Two runs with sketches in a real browser: colours by distance, and the way back to what feeds a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import Run, chain, tensor, write
from made_dumps import plain
from visualised_pages import DUMPS, selected, visualised
from waiting import until

FAULT, BEFORE, AFTER, OTHER = (
    f"{name}.forward" for name in ("Functional.linear.3", "Torch.tanh.2", "Torch.tanh.3", "Torch.tanh.5")
)
MASKED = "Torch.softmax.0.forward"
MODEL = "Module.Net.forward.0"


def run(constant: float, beta: float) -> Run:
    """The chain, a call with a plain argument, and one that takes a mask; one product is scaled."""
    records = chain(at=3, constant=constant)
    records[OTHER]["input_kwargs"] = {"beta": plain(beta)}
    scores = np.zeros((4, 8), np.float32)
    scores[:, 5:] = -np.inf
    records[MASKED] = {"input_args": [tensor(scores)], "input_kwargs": {}, "output": [tensor(np.exp(scores) / 5)]}
    # The whole of it, so that there are boxes.
    records[MODEL] = {"input_args": [], "input_kwargs": {}, "output": [records[MASKED]["output"][0]]}
    return records


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    for side, *settings in (("target", 1.5, 2.0), ("golden", 1.0, 1.0)):
        records = run(*settings)
        write(folder / side / "step0" / "rank0", records, {name: MODEL for name in records if name != MODEL})
    return visualised(folder / "page", "-tp", folder / "target", "-gp", folder / "golden", "-oc")


COLOURS = """(theme) => {
  setTheme(theme === "dark");
  const style = getComputedStyle(document.documentElement);
  const part = (n) => (n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
  const light = (text) => {
    const isShort = text[0] === "#";
    const parts = isShort ? [...text.slice(1)].map((one) => 17 * parseInt(one, 16)) : text.match(/\\d+/g);
    const [r, g, b] = parts.map((n) => part(n / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const lights = (...names) => names.map((name) => light(style.getPropertyValue(name)));
  return Array.from({ length: SHADES + 1 }, (_, at) => lights(`--d${at}`, `--on${at}`));
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_rows_have_the_colours_of_one_scale_that_has_a_legend(measured: Path, open_page: Any, theme: str) -> None:
    page = open_page(measured)

    assert selected(page) == FAULT
    assert page.locator("#scale span").all_inner_texts() == ["1", "1e-2", "1e-4", "1e-6", "1e-8"]
    assert page.inner_text("#scale b") == "distance" and "no distances" not in page.inner_text("#statuses")
    given, returned = page.locator(f'#lines [data-node="{FAULT}"] > .num').all()
    # A third of what is returned is another one, which is near the top of the scale; the inputs are the same.
    assert given.get_attribute("style") is None and given.inner_text() == "0"
    assert returned.inner_text() == "0.333" and "var(--d15)" in (returned.get_attribute("style") or "")
    assert "0.333" in page.inner_text("#detail .apart") and "inputs and rounding explain" in page.inner_text("#detail")

    colours = page.evaluate(COLOURS, theme)
    lights = [back for back, _ in colours]
    assert lights == sorted(lights, reverse=theme == "light"), "the further, the further from the page, also in grey"
    assert all((max(pair) + 0.05) / (min(pair) + 0.05) >= 4.5 for pair in colours)


def test_keys_and_clicks_walk_from_the_divergence_to_what_feeds_it(measured: Path, open_page: Any) -> None:
    page = open_page(measured)

    page.wait_for_selector("#lines .edge")
    marks = page.locator("#lines .edge")
    around = "(all) => all.map((one) => one.closest('[data-node]').dataset.node)"
    assert marks.all_inner_texts() == ["→●", "●→"] and marks.evaluate_all(around) == [BEFORE, AFTER]
    page.keyboard.press("d")
    until(page, f"state.rows.name(state.selected) === '{AFTER}'")
    page.keyboard.press("a")
    until(page, f"state.rows.name(state.selected) === '{FAULT}'")
    assert page.inner_text("#say") == f"This made input.0 of {AFTER}: distance 0.333."
    page.keyboard.press("a")
    until(page, f"state.rows.name(state.selected) === '{BEFORE}'")
    assert page.inner_text("#say").startswith(f"All that goes into {FAULT} agrees.")
    page.click(f'#detail .link:has-text("{FAULT}")')
    until(page, f"state.rows.name(state.selected) === '{FAULT}'")
    page.click(f'#detail .from button:has-text("{BEFORE}")')
    until(page, f"state.rows.name(state.selected) === '{BEFORE}'")
    page.keyboard.press("?")
    assert "against the flow" in page.inner_text("dialog")


def test_search_finds_arguments_and_an_other_argument_is_called_so(measured: Path, open_page: Any) -> None:
    page = open_page(measured)

    for query, wanted in (
        ("beta", [OTHER]),
        ("linear.0", ["Functional.linear.0.forward"]),
        ("input.1 linear.2", ["Functional.linear.2.forward"]),
        ("weight linear.2", ["Functional.linear.2.forward"]),
    ):
        page.evaluate("(query) => { filter.query = query; return search(); }", query)
        assert page.evaluate("hits.map((row) => state.rows.name(row))") == wanted
    page.evaluate("filter.query = 'beta'; search().then(() => nextHit(1))")
    page.wait_for_selector("#detail .item.hit")
    assert "input.beta argument differs" in page.inner_text("#detail .item.hit")
    assert page.locator(f'#lines [data-node="{OTHER}"] .num em').inner_text() == "arg"


def test_what_an_input_held_before_the_call_is_counted(measured: Path, open_page: Any) -> None:
    page = open_page(measured, f"#node={MASKED}")

    page.wait_for_selector("#detail .held")
    assert page.inner_text("#detail .held") == (
        "Not finite before the call: input.0: -inf (12 of 32 elements are not finite or beyond 2^100)"
    )


def test_arcs_between_boxes_are_the_recorded_ones(measured: Path, open_page: Any) -> None:
    page = open_page(measured, f"#node={FAULT}")

    page.keyboard.press("b")
    page.wait_for_selector("svg .arc.selected")
    ends = page.locator("svg .arc.selected").evaluate_all(
        "(all) => all.map((one) => one.dataset.ends.split(' ').map((row) => state.rows.name(row)))"
    )
    assert ends == [[BEFORE, FAULT], [FAULT, AFTER]]


def test_without_sketches_statuses_have_the_colours_and_the_page_says_so(tmp_path: Path, open_page: Any) -> None:
    page = open_page(visualised(tmp_path, "-tp", DUMPS / "llama_weight", "-gp", DUMPS / "llama"))

    assert "no distances measured: colours by status" in page.inner_text("#statuses")
    assert page.locator("#lines .num[style]").count() == 0
    page.keyboard.press("a")
    until(page, "byId('say').textContent.includes('record with sketches')")
