"""Two checkouts of one program, one of which differs in a line: the card, the code, folded layers, getting around."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written
from visualised_pages import selected, visualised
from waiting import until

LAYERS = 6
FAULT = "Torch.sigmoid.3.forward"
LONG = "Tensor.__mul__." + "x" * 1500 + ".0.forward"
BEFORE, AFTER = "def forward(self, x):\n    h = self.up(x)\n", "\n    return x + h\n"


def checkout(folder: Path, line: str, above: str) -> list[str]:
    """A file of one run, and the stack of the call in it."""
    file = folder / "repo" / "model.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{above}{BEFORE}    {line}{AFTER}")
    number = f"{above}{BEFORE}".count("\n") + 1
    main = f"File {folder}/repo/train.py, line 7, in main, \n step()"
    return [f"File {file}, line {number}, in forward, \n {line}", main]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page; the run under test scales what goes into the sigmoid of layer 3, and has a line more above it."""
    folder = tmp_path_factory.mktemp("checkouts")
    stacks = (
        checkout(folder / "mine", "h = sigmoid(h * 2)", "# new\n"),
        checkout(folder / "theirs", "h = sigmoid(h)", ""),
    )
    for side, frames, factor in zip(("target", "golden"), stacks, (1.5, 1.0)):
        norm, records, tree = 1.0, {}, {}
        for layer in range(LAYERS):
            module, name = f"Module.layers.{layer}.Block.forward.0", f"Torch.sigmoid.{layer}.forward"
            out = norm * 2 * (factor if layer == 3 else 1)
            records[name] = call(tensor(norm), output=tensor(out))
            records[module] = call(tensor(norm), output=tensor(out))
            tree.update({name: module, module: None})
            norm = out
        records[LONG], tree[LONG] = call(tensor(norm), output=tensor(norm)), None
        names = [name for name in records if name.startswith("Torch")]
        written(folder / side / "step0" / "rank0", records, tree, {"0": [names, frames]})
    return visualised(folder / "page", "-tp", folder / "target", "-gp", folder / "golden")


@pytest.mark.parametrize("width", [1024, 1440])
def test_the_card_has_four_lines_and_the_line_of_code_once(made: Path, open_page: Any, width: int) -> None:
    page = open_page(made, width=width, height=700)

    assert selected(page) == FAULT
    lines = page.locator("#verdict > *")
    assert lines.count() == 4
    assert page.inner_text("#verdict h1").startswith(f"first divergence: {FAULT} in layers.3 (Block)")
    assert sum(box["height"] for box in (line.bounding_box() for line in lines.all())) < 4 * 26
    code = page.locator("#verdict .frame")
    assert code.inner_text().startswith("repo/model.py:4 (golden: 3) in forward")
    assert code.locator("ins").all_inner_texts() == [" * 2"] and code.locator("del").count() == 0
    # Both are the same program in two folders: of the frames only the line that differs is marked.
    page.wait_for_selector("#detail .code")
    assert [one.strip() for one in page.locator("#detail .frames .added").all_text_contents()] == [
        "+ repo/model.py:4 in forward  h = sigmoid(h * 2)"
    ]
    assert page.locator("#detail .code li.call").all_text_contents() == [
        "3-     h = sigmoid(h)",
        "4+     h = sigmoid(h * 2)",
    ]
    # What is judged is red, and what only follows is not.
    assert page.locator("#lines .num.s-bad").count() == 1
    contrast = """(all) => all.map((one) => {
      const part = (n) => (n <= 0.03928 ? n / 12.92 : ((n + 0.055) / 1.055) ** 2.4);
      const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map((n) => part(n / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const back = getComputedStyle(document.body).backgroundColor;
      return (light(back) + 0.05) / (light(getComputedStyle(one).color) + 0.05); })"""
    letters = page.locator("#lines .badge:is(.s-none, .s-good, .s-neutral)")
    assert letters.count() > 1 and min(letters.evaluate_all(contrast)) >= 4.5


def test_equal_layers_are_one_line_until_one_of_them_is_asked_for(made: Path, open_page: Any) -> None:
    page = open_page(made)

    folded = page.locator("#lines .fold")
    assert [text.strip() for text in folded.all_inner_texts()] == ["▸layers 0 to 2: same Block.forward"]
    page.keyboard.press("/")
    page.keyboard.type("sigmoid.1.")
    until(page, "hits.length === 1")
    page.keyboard.press("Enter")
    assert selected(page) == "Torch.sigmoid.1.forward"
    # Only hits keeps the chosen row, and Escape clears all of it from anywhere.
    page.evaluate("reveal(state.rows.find('Torch.sigmoid.5.forward'))")
    page.check("#only")
    assert selected(page) == "Torch.sigmoid.5.forward" and page.inner_text("#count") == "2 of 14 rows"
    page.keyboard.press("3")
    page.locator("#detail").focus()
    page.keyboard.press("Escape")
    until(page, "found === null && !isFiltered() && filter.query === '' && !byId('only').checked")
    page.evaluate("unfolded.clear(); opened.fill(0); opened[state.rows.length - 1] = 1; layOut()")
    until(page, "document.querySelector('#lines .fold') !== null")
    page.locator("#lines .fold .twist").first.click()
    until(page, "document.querySelector('#lines .fold') === null")
    assert page.locator('#lines [data-node="Module.layers.2.Block.forward.0"]').is_visible()


def test_panes_are_resized_the_strip_tells_and_the_screen_is_a_picture(made: Path, open_page: Any) -> None:
    page = open_page(made, f"#node={LONG}")

    # Parts that are written from the right keep their places in a name.
    parts = page.evaluate("nameText('Functional.\u05d0\u05d1.5.forward').map((one) => one.tagName ?? one)")
    assert parts == ["BDI", ".", "BDI", ".", "BDI", ".", "BDI"]
    # A name of 1,500 letters leaves room for everything else.
    page.wait_for_selector("#detail table")
    assert page.locator("#detail h2").bounding_box()["height"] < 90
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    before = page.locator("#detail").bounding_box()["width"]
    split = page.locator("#split").bounding_box()
    page.mouse.move(split["x"] + 3, split["y"] + 100)
    page.mouse.down()
    page.mouse.move(split["x"] - 97, split["y"] + 100)
    page.mouse.up()
    assert abs(page.locator("#detail").bounding_box()["width"] - before - 100) < 10
    page.focus("#column")
    name = page.locator("#lines .name").first
    narrow = name.bounding_box()["width"]
    page.keyboard.press("ArrowRight")
    until(page, f"document.querySelector('#lines .name').getBoundingClientRect().width > {narrow}")
    # The next page has these sizes too, until a double click puts one back.
    sizes = "[byId('detail'), document.querySelector('#lines .name')].map((one) => Math.round(one.offsetWidth))"
    chosen = page.evaluate(sizes)
    page.reload()
    until(page, "document.documentElement.dataset.ready === '1' && document.querySelector('#lines .name') !== null")
    assert page.evaluate(sizes) == chosen
    page.dblclick("#split")
    until(page, f"Math.abs(byId('detail').offsetWidth - {before}) < 2")
    box = page.locator("#plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    assert "outputs 0.333" in page.inner_text("#hover")
    page.click("#bar >> text=Picture")
    until(page, "byId('say').textContent.startsWith('The picture')")
    size = page.evaluate(
        """async () => {
          const blob = await screenPicture();
          const drawn = await createImageBitmap(blob);
          const canvas = new OffscreenCanvas(drawn.width, drawn.height);
          const brush = canvas.getContext("2d");
          brush.drawImage(drawn, 0, 0);
          const colours = new Set();
          const { data } = brush.getImageData(0, 0, drawn.width, 100);
          for (let at = 0; at < data.length; at += 4) colours.add(data[at] * 65536 + data[at + 1] * 256 + data[at + 2]);
          return [drawn.width, drawn.height, colours.size > 20];
        }"""
    )
    assert size == [1280, 800, True]
