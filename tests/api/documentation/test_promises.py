"""The page on msProbe's promises: its rows name tests that are there, flags that are taken, and keys that are read."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from probe.api.cli import command_named
from probe.api.monitoring.first import TrainerMon
from probe.common.config.config import KEYS, TASKS, WITHOUT_EFFECT
from probe.common.config.fields import keys_of
from probe.monitor.settings import FirstSettings

TESTS = Path(__file__).parents[2]
PAGE = (TESTS.parent / "docs" / "coming-from-msprobe.md").read_text(encoding="utf-8")
PARTS = dict(re.findall(r"^### (.*)\n((?:(?!###? ).*\n)*)", PAGE, re.MULTILINE))
CELLS = {
    # Behind the headings of the columns.
    title: [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    for title, text in PARTS.items()
}
ROWS = [row for rows in CELLS.values() for row in rows]


def test_every_row_has_a_promise_an_answer_and_a_test_that_is_there() -> None:
    assert len(ROWS) >= 200
    for row in ROWS:
        assert len(row) == 3, row
        (shown,) = re.findall(r"`([\w/.]+)`$", row[2])
        shown = shown.replace("cases/", "reference/torch/cases/") if shown.startswith("cases/") else shown
        assert (TESTS / shown).exists(), shown


def takes(command: str, flag: str) -> bool:
    """True if a command has the flag."""
    parser = argparse.ArgumentParser()
    command_named(command).prepare_parser(parser)
    return flag in parser._option_string_actions


@pytest.mark.parametrize("title", [title for title in CELLS if "`msprobe " in title])
def test_every_flag_that_is_not_refused_is_taken(title: str) -> None:
    of_title = re.findall(r"`msprobe (\w+)`", title)[0]
    for promise, answer, _ in CELLS[title]:
        if not answer.startswith(("no:", "answered")) and "-m " not in promise:
            named = re.match(r"`(\w+) -", promise)
            flags = re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", promise)
            assert [flag for flag in flags if not takes(named[1] if named else of_title, flag)] == [], promise


def test_every_key_is_one_that_is_read() -> None:
    known = {*KEYS, *TASKS, *WITHOUT_EFFECT}
    for promise, _, _ in CELLS["In `config.json`"]:
        for name in re.findall(r"`([a-z]\w+)`", promise.partition(":")[0]):
            assert name in known, name
    monitors = keys_of(FirstSettings)
    inside = {"input", "output", "input_grad", "output_grad", "cc_codeline", "cc_pre_hook", "cc_log_only"}
    for promise, _, _ in CELLS["`TrainerMon`"]:
        for name in re.findall(r"`([a-z_0-9]+)`", promise.partition(":")[0]):
            assert name in monitors or name in inside or hasattr(TrainerMon, name) or "actv" in promise, name
