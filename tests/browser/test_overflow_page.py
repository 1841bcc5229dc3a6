"""The page of `overflow_check`: the terminal's answer, all steps, a legend, and hints behind what is worse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from graph_dumps import call, tensor
from made_dumps import written
from waiting import until

from probe.api.cli import main

RSQRT, DIVISION, AFTER = "Torch.rsqrt.0.forward", "Torch.div.0.forward", "Torch.add.0.forward"


def test_the_page_of_overflow_check_says_what_the_terminal_says(
    tmp_path: Path, open_page: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, large in enumerate((1.0, math.inf, math.inf)):
        records = {
            RSQRT: call(tensor(1e-6), output=tensor(1e3)),
            DIVISION: call(tensor(), output=tensor(large)),
            AFTER: call(tensor(large), output=tensor(large)),
        }
        written(tmp_path / "run" / f"step{step}" / "rank0", records, dict.fromkeys(records))
    assert main(["overflow_check", "-i", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--jobs", "1"]) == 1
    said = capsys.readouterr().out.splitlines()
    [made] = (tmp_path / "out").glob("*.html")
    page = open_page(made)

    assert page.inner_text("#verdict h1").strip() == said[0] and DIVISION in said[0]
    assert page.is_visible("#plot") and page.locator("#verdict.bad").count() == 1
    page.click('[data-view="overflow"]')
    page.wait_for_selector(".row-overflow[data-node]")
    assert page.locator(".reason p").first.inner_text().strip() == said[0]
    names = page.locator(".row-overflow[data-node]")
    assert [name.get_attribute("data-node") for name in names.all()] == [DIVISION, AFTER]
    assert "normal for rsqrt" in page.inner_text(".legend")
    page.click('[data-level="growth"]')
    until(page, "document.querySelectorAll('.row-overflow[data-node]').length === 3")
    steps = page.locator(".steps button")
    assert [" ".join(text.split()) for text in steps.all_inner_texts()] == [
        "step 0, rank 0 =", "step 1, rank 0 !", "step 2, rank 0 →"
    ]  # fmt: skip
    steps.nth(2).click()
    until(page, "state.rows.info.step === 2")
    assert page.locator("#verdict.follows").count() == 1
