"""The panel beside the rows: every digit, both stacks, and all of it as Markdown for an issue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written
from waiting import until

from probe.api.cli import main

CALL, MODULE = "Functional.relu.0.forward", "Module.block.Block.forward.0"
OWN, LOSS, LINEAR, MAIN = (
    f"File {path}, line {line}, in {name}, \n {code}"
    for path, line, name, code in (
        ("train/model.py", 31, "forward", "x = relu(x)"),
        ("train/model.py", 58, "loss", "x = relu(x) | y"),
        ("/env/site-packages/torch/nn/linear.py", 134, "forward", "F.linear(x)"),
        ("train/main.py", 7, "main", "step()"),
    )
)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A call with a value of each kind that tells both sides apart in its last digits only."""
    folder = tmp_path_factory.mktemp("detail")
    for side, mean, large, frames in (
        ("target", 0.123456789012, 2**60, [LINEAR, OWN, MAIN]),
        ("golden", 0.123456789013, 2**60 + 1, [LINEAR, LOSS, MAIN]),
    ):
        double = {**tensor(dtype="torch.float64"), "Mean": mean}
        whole = {**tensor(dtype="torch.int64"), "Max": large}
        records = {CALL: call(tensor(), double, output=whole), MODULE: call(tensor(), output=tensor())}
        tree = {CALL: MODULE, MODULE: None}
        written(folder / side / "step3" / "rank1", records, tree, {"0": [[CALL, MODULE], frames]})
    paths = ("-tp", str(folder / "target"), "-gp", str(folder / "golden"))
    assert main(["graph_visualize", *paths, "-o", str(folder / "out")]) == 0
    [made] = (folder / "out").glob("*.html")
    return made


def lines_of(page: Any, item: str) -> list[str]:
    """The lines of an item in the panel, below the one with its name."""
    return list(
        page.evaluate(
            """(item) => {
          const rows = [...document.querySelectorAll("#detail tr")];
          const at = rows.findIndex((row) => row.matches(".item") && row.textContent.includes(item));
          const next = rows.findIndex((row, place) => place > at && row.matches(".item"));
          return rows.slice(at + 1, next < 0 ? undefined : next).map((row) => row.innerText);
        }""",
            item,
        )
    )


def test_values_that_differ_in_the_last_digit_are_two(page_file: Path, open_page: Any) -> None:
    page = open_page(page_file, f"#node={CALL}")

    page.wait_for_selector("#detail table")
    (same,) = lines_of(page, "input.0")
    assert same.startswith("both")
    mine, other = lines_of(page, "input.1")
    assert "0.123456789012" in mine and "0.123456789013" in other
    mine, other = lines_of(page, "output.0")
    assert str(2**60) in mine and str(2**60 + 1) in other
    assert page.locator("#detail td mark").all_inner_texts() == ["2", "3", "6", "7"]


def test_frames_that_differ_are_marked_and_own_ones_come_first(page_file: Path, open_page: Any) -> None:
    page = open_page(page_file, f"#node={CALL}")

    page.wait_for_selector("#detail .frames")
    frames = page.locator("#detail .frames li")
    assert sorted(frames.evaluate_all("(all) => all.map((one) => one.className)")) == ["", "", "added", "removed"]
    for sign, frame in (("added", OWN), ("removed", LOSS)):
        assert page.get_attribute(f"#detail .frames li.{sign}", "title") == frame


def test_markdown_is_all_that_an_issue_needs(page_file: Path, open_page: Any) -> None:
    page = open_page(page_file, f"#node={CALL}")

    page.wait_for_selector("#detail .frames")
    page.click("text=Copy as Markdown")
    until(page, "document.getElementById('say').textContent.startsWith('Copied')")
    text = page.evaluate("navigator.clipboard.readText()")
    info = page.evaluate("state.rows.info")
    for path in (info["target"]["path"], info["golden"]["path"]):
        assert f"`{path}`" in text
    for said in ("step 3, rank 1", f"`{CALL}`", "**"):
        assert said in text
    for number in ("0.123456789012", "0.123456789013", str(2**60), str(2**60 + 1)):
        assert number in text
    head, *cells = (line.replace("\\|", "") for line in text.split("\n") if line.startswith("|"))
    assert {line.count("|") for line in cells} == {head.count("|")}
    assert len(cells) == 1 + 2 * 3
    stacks = [part.strip().split("\n") for part in text.split("````")[1::2]]
    for own, frames in zip((OWN, LOSS), stacks):
        codes = [frame.split("\n")[1].strip() for frame in (LINEAR, own, MAIN)]
        assert sorted(frame.rpartition(": ")[2] for frame in frames) == sorted(codes)


def test_markdown_of_one_run_has_one_side(tmp_path: Path, open_page: Any) -> None:
    hostile = "Functional.re`l|u.0.forward"
    records = {hostile: call(tensor(), output=tensor(2.5))}
    written(tmp_path / "run", records, {hostile: None}, {"0": [[hostile], [LINEAR, MAIN]]})
    assert main(["graph_visualize", "-tp", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 0
    [made] = (tmp_path / "out").glob("*.html")
    page = open_page(made)

    text = page.evaluate("asMarkdown(0)")
    assert text.startswith(f"### `` {hostile} ``\n")
    assert "golden" not in text
    head, *cells = (line.replace("\\|", "") for line in text.split("\n") if line.startswith("|"))
    assert len(cells) == 1 + 2 and {line.count("|") for line in cells} == {head.count("|")}
    assert text.count("````") == 2 and text.index("linear.py") < text.rindex("main.py")
