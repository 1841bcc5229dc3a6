"""Every function that is recorded has a line in the table, or stands in the reviewed list of those without a trait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import probe.backends
from probe.common.collectives.calls import IN_PLACE, RETURNING
from probe.common.operations import table
from probe.common.operations.lookup import function
from probe.common.operations.table import FUNCTIONS

BACKENDS = Path(probe.backends.__file__).parent
# MSAdapter records what PyTorch's list has.
LISTS = sorted(BACKENDS.glob("*/hooks/api_list.yaml"))
COLLECTIVES = {"distributed", "mint_distributed"}
"""Families that have a table of their own: probe/common/collectives/calls.py."""
REVIEWED = Path(__file__).with_name("without_trait.txt")


def listed(path: Path) -> set[str]:
    """The functions of a list by their names in the table."""
    families = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {
        function(f"{content['prefix']}.{name}").name
        for family, content in families.items()
        if family not in COLLECTIVES
        for name in content["names"]
    }


def reviewed() -> list[str]:
    lines = REVIEWED.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_the_lists_of_both_frameworks_are_found() -> None:
    assert [path.parts[-3] for path in LISTS] == ["mindspore", "torch"]
    assert all(len(listed(path)) > 300 for path in LISTS)


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parts[-3])
def test_every_listed_function_has_a_line_or_was_reviewed(path: Path) -> None:
    known = {each.name for each in FUNCTIONS}
    missing = sorted(listed(path) - known - set(reviewed()))
    assert missing == [], f"give these a line in {table.__name__}, or put them into {REVIEWED.name}"


def test_the_reviewed_list_has_nothing_else() -> None:
    names = reviewed()
    assert len(names) == len(set(names))
    assert sorted(set(names) & {each.name for each in FUNCTIONS}) == []
    assert sorted(set(names) - set().union(*map(listed, LISTS))) == []


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.parts[-3])
def test_every_listed_collective_is_in_the_table_of_collectives(path: Path) -> None:
    families = yaml.safe_load(path.read_text(encoding="utf-8"))
    for family in COLLECTIVES & families.keys():
        # mindspore.communication returns its results, and is called Distributed in records as well.
        returning = path.parts[-3] == "mindspore" and family == "distributed"
        known = RETURNING if returning else IN_PLACE
        assert set(families[family]["names"]) <= known.keys(), family


LINE = '    _("frob", T.MASKED, T.RELATIVE, T.DRAWS, also="frobnicate", primitive="Frob", rounding=EXACT),\n'
PROGRAM = """
import sys, types
from pathlib import Path
import probe.common.operations.function

source, name = Path(sys.argv[1]).read_text(encoding="utf-8"), "probe.common.operations.table"
start = source.index('    _("abs"')
module = sys.modules[name] = types.ModuleType(name)
exec(source[:start] + sys.argv[2] + source[start:], module.__dict__)

from probe.common.align.operations import operation
from probe.common.numerics.error_bounds import Terms, condition
from probe.common.operations.function import Trait
from probe.common.operations.lookup import names_with
from probe.common.nonfinite.lineages import is_masked
from probe.calls.verdict.bounds import known_of

print(operation("Primitive.layer.Frob", "mindspore").akin, operation("Mint.frobnicate_", "mindspore").akin)
print(condition("frob_", Terms(), None, None))
print(is_masked("Functional.frobnicate.0.forward"))
print(known_of("Aten.frob.Tensor", "forward").kind)
print("frobnicate" in names_with(Trait.DRAWS))
"""


def test_a_new_function_is_one_line_for_every_question() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(table.__file__), LINE], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["frob", "frob", "1.0", "True", "exact", "True"]
