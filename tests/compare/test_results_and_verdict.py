"""The results of rows and the verdict say one thing, and the table has the distances that the verdict was made from."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.common.align.dump_pairs import locate
from probe.common.dump.reading.dump import read
from probe.common.parallel.tasks import Where
from probe.compare.comparison import compare_dumps
from probe.compare.options import Options
from probe.compare.output.summary import first_of, summarise
from probe.compare.output.tables import DISTANCE, EXPLAINED
from probe.compare.result import ComparisonResult
from probe.compare.runner import summaries
from probe.msprobe_rules.compare.rows import DOCUMENTED_ROWS

Dumps = Callable[[str], Path]
CASES = [
    ("pairs", "attention-llama@mix"),
    ("pairs", "scale-llama@L0"),
    ("pairs", "nan-llama@mix"),
    ("pairs", "learning-rate-llama@L0"),
    ("pairs", "no-zero-grad-llama@L0"),
    ("fused", "llama-keys_and_values_swapped-float32@mix"),
    ("precision", "bfloat16-transposed-o-llama8@L0"),
    ("field", "missing_gradient-frozen-right@L0"),
    ("field", "epsilon-larger-usual@L0"),
]


def _items(result: ComparisonResult, *results: str) -> list[str]:
    items = ((row.target or row.golden, row) for row in result.rows if row.result in results)
    return [item.name for item, _ in items if item is not None]


@pytest.mark.parametrize(("of", "case"), CASES, ids=[case for _, case in CASES])
def test_results_of_rows_do_not_contradict_the_verdict(dumps_of: Dumps, of: str, case: str) -> None:
    run = dumps_of(of) / case
    for pair in locate(str(run / "target"), str(run / "golden")):
        result = compare_dumps(read(pair.target), read(pair.golden), before=pair.before)
        divergence = result.divergence
        shown = [] if divergence is None else [divergence.first.item]
        # What a side lacks has the result "one side only", whatever it means.
        alone = set(_items(result, "one side only"))
        assert _items(result, "diverged") == [item for item in shown if item not in alone]
        suspects = [] if divergence is None else [each.item for each in divergence.suspects if each.item]
        assert set(_items(result, "suspect")) == set(suspects) - set(shown) - alone
        assert (summarise(result).answer == "divergence") == (divergence is not None)
        for row in result.rows:
            if row.result == "same":
                assert not row.relative_difference, row
            elif row.result == "explained" and row.explained is not None and divergence is None:
                assert (row.relative_difference or 0.0) <= row.explained, row
            elif row.result == "diverged" and row.explained is not None:
                assert row.relative_difference is not None and row.relative_difference > row.explained, row


def test_the_table_has_distances_behind_the_other_columns(dumps_of: Dumps, tmp_path: Path) -> None:
    run = dumps_of("pairs") / "scale-llama@L0"
    found = list(summaries(str(run / "target"), str(run / "golden"), str(tmp_path), where=Where(1)))
    first = first_of(found)
    assert first is not None and first.divergence is not None
    with open(first.tables[0], newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    assert list(lines[0])[-2:] == [DISTANCE, EXPLAINED]
    (diverged,) = [line for line in lines if line["Result"] == "diverged"]
    assert diverged["NPU Name"] == first.divergence.first.item
    assert float(diverged[DISTANCE]) == pytest.approx(first.divergence.first.found, rel=1e-2)
    kinds = Counter(bool(line[DISTANCE]) for line in lines)
    assert kinds[True] > kinds[False]


def test_tables_of_other_rules_have_no_column_more(dumps_of: Dumps, tmp_path: Path) -> None:
    run = dumps_of("pairs") / "scale-llama@L0"
    options = Options(rules=DOCUMENTED_ROWS)
    found = next(summaries(str(run / "target"), str(run / "golden"), str(tmp_path), options, where=Where(1)))
    with open(found.tables[0], newline="", encoding="utf-8") as stream:
        head = next(csv.reader(stream))
    assert DISTANCE not in head and EXPLAINED not in head
