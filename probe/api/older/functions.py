"""Functions that scripts for older releases of msProbe call, in the words of today's commands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probe.common import log
from probe.common.errors import MsprobeException


def compare(
    input_param: Mapping[str, Any],
    output_path: str,
    stack_mode: bool = False,
    auto_analyze: bool = True,
    fuzzy_match: bool = False,
) -> None:
    """Compare two dumps as ``msprobe compare --xlsx`` does.

    Args:
        input_param: ``npu_json_path`` and ``bench_json_path``, the ``dump.json`` of each run, and
            ``is_print_compare_log``, a line for each pair of tensors.
        output_path: The folder for the table.
        stack_mode, auto_analyze: Accepted and without effect: the stacks and the first divergence are always given.
        fuzzy_match: Match calls by their order and not by their numbers.

    Raises:
        MsprobeException: a path is missing, or the two cannot be compared.
    """
    pair = [input_param.get(key) for key in ("npu_json_path", "bench_json_path")]
    if not all(isinstance(path, str) and path for path in pair):
        raise MsprobeException(
            f'compare: input_param is {dict(input_param)!r}; allowed: a dict with the paths "npu_json_path" and '
            '"bench_json_path".'
        )
    target, golden = map(str, pair)
    _compare(target, golden, output_path, fuzzy_match, bool(input_param.get("is_print_compare_log", False)))


def compare_distributed(npu_dump_dir: str, bench_dump_dir: str, output_path: str, **options: Any) -> None:
    """Compare the ranks of a step as ``msprobe compare --xlsx`` does, or all steps of two runs.

    Args:
        npu_dump_dir, bench_dump_dir: The folder of a step of each run, or of all steps.
        output_path: The folder for the tables.
        options: ``fuzzy_match`` and ``is_print_compare_log``; others are accepted and have no effect.

    Raises:
        MsprobeException: the two cannot be compared.
    """
    is_logged = bool(options.get("is_print_compare_log", False))
    _compare(npu_dump_dir, bench_dump_dir, output_path, bool(options.get("fuzzy_match", False)), is_logged)


def _compare(target: str, golden: str, output: str, is_fuzzy: bool, is_logged: bool) -> None:
    # Whoever only collects waits for none of this.
    from probe.api.questions.rules import row_rules
    from probe.compare.options import Options
    from probe.compare.output.summary_text import styled_lines
    from probe.compare.runner import summaries

    options = Options(rules=row_rules(None), fuzzy=is_fuzzy)
    for text, _ in styled_lines(list(summaries(target, golden, output, options, True, tensor_log=is_logged))):
        print(text)


@dataclass(frozen=True)
class CSV2DBConfig:
    """The arguments of `csv2db`.

    Args:
        monitor_path: The output folder of a monitor.
        time_start, time_end, data_type_list: Accepted and without effect, with a warning: all rows are converted.
        process_num: Accepted and without effect.
        output_dirpath: The folder for the file; by default that of the monitor.
    """

    monitor_path: str
    time_start: str | None = None
    time_end: str | None = None
    process_num: int = 1
    data_type_list: Sequence[str] | None = None
    output_dirpath: str | None = None


def csv2db(config: CSV2DBConfig) -> None:
    """Write the rows of a monitor to an SQLite file as ``msprobe data2db`` does.

    Raises:
        MsprobeException: the folder has no rows of a monitor, or the file cannot be written.
    """
    from probe.api.questions.rules import monitor_database

    for name in ("time_start", "time_end", "data_type_list"):
        if getattr(config, name) is not None:
            log.warning(f"csv2db: {name} has no effect; all rows of {config.monitor_path} are converted.", once=name)
    source = os.path.expanduser(config.monitor_path)
    log.info(monitor_database()(source, os.path.expanduser(config.output_dirpath or source), None))
