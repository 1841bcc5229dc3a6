"""Everything two paths hold, compared and written."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any

from probe.common import files, log
from probe.common.errors import MsprobeException
from probe.compare import proposals, table_files
from probe.compare.comparing import Comparison
from probe.compare.first_difference import (
    Entry,
    Rank,
    differences_as_json,
    first_differences,
    of_rank,
    rank_as_json,
)
from probe.compare.locating import Place, locate
from probe.compare.mapping_files import write_names
from probe.compare.options import Options
from probe.compare.reading import read
from probe.compare.result import ComparisonResult


def compare(
    target: str, golden: str, output: str | None = None, options: Options | None = None, xlsx: bool = False
) -> Iterator[ComparisonResult]:
    """Compare two files or folders; each pair of ranks and steps gives one result.

    Args:
        target: the run under test: dump.json, debug.json, a step's folder, or a folder of steps.
        golden: the run it is held against, in the same form.
        output: folder for the tables, made where it is missing; ``None`` writes none.
        options: how to match and judge.
        xlsx: write a workbook and not CSV.

    Raises:
        MsprobeException: the two cannot be compared; with several ranks, one that cannot be read is logged and left
            out, and this is raised when none can.
    """
    places = locate(target, golden)
    stamp = time.strftime("%Y%m%d%H%M%S")
    if output is not None:
        files.make_folder(output)
    done = 0
    for place in places:
        try:
            result = _one(place, options or Options())
        except MsprobeException as error:
            if len(places) == 1:
                raise
            log.error(f"{place.step} {place.label} is left out: {error}".lstrip())
            continue
        if output is not None:
            folder = os.path.join(output, place.step) if place.step else output
            files.make_folder(folder)
            result.tables = table_files.write(result, os.path.join(folder, stem(result, stamp)), xlsx)
            if result.data_mapping is not None:
                write_names(_mapping_file(folder, "data_mapping", result, stamp), result.data_mapping)
            if result.proposal is not None:
                result.layer_mapping = _mapping_file(folder, "layer_mapping", result, stamp)
                proposals.write(result.layer_mapping, result.proposal, result.target, result.golden)
        done += 1
        yield result
    if not done:
        raise MsprobeException(f"{target} and {golden}: no pair of ranks could be compared.")


def _mapping_file(folder: str, name: str, result: ComparisonResult, stamp: str) -> str:
    return os.path.join(folder, "_".join(part for part in (name, result.label, stamp) if part) + ".yaml")


@dataclass(frozen=True)
class Analysis:
    """The first differences of one step, and the files that tell of them."""

    step: str
    found: list[tuple[Rank, Entry]]
    files: list[str]


def analyse(target: str, golden: str, output: str, options: Options | None = None) -> Iterator[Analysis]:
    """Find where the ranks of each step part first.

    Raises:
        MsprobeException: the two cannot be compared.
    """
    stamp = time.strftime("%Y%m%d%H%M%S")
    for step, places in groupby(locate(target, golden), key=attrgetter("step")):
        folder = os.path.join(output, step) if step else output
        files.make_folder(folder)
        ranks = [
            of_rank(_number(place.label, index), _one(place, options or Options(), values=False))
            for index, place in enumerate(places)
        ]
        written = []
        for rank in ranks:
            written.append(os.path.join(folder, f"compare_result_rank{rank.number}_{stamp}.json"))
            _write_json(written[-1], rank_as_json(rank))
        found = first_differences(ranks)
        if found:
            written.append(os.path.join(folder, f"diff_analyze_{time.time_ns()}.json"))
            _write_json(written[-1], differences_as_json(found))
        yield Analysis(step, found, written)


def _number(label: str, index: int) -> int:
    digits = label.removeprefix("rank")
    return int(digits) if digits.isdigit() else index


def _write_json(path: str, content: Any) -> None:
    with files.replacing(path) as stream:
        stream.write(json.dumps(content).encode())


def _one(place: Place, options: Options, values: bool = True) -> ComparisonResult:
    result = Comparison(read(place.target), read(place.golden), options).run(values)
    result.label, result.step = place.label, place.step
    return result


def stem(result: ComparisonResult, stamp: str) -> str:
    """The name of a table's file without its suffix."""
    prefix = "debug_compare_result" if result.debug else "compare_result"
    return "_".join(part for part in (prefix, result.label, stamp) if part)
