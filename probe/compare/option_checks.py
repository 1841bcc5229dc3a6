"""Mistakes in the options that can be known before any work, so that each is one error and not one of every pair."""

from __future__ import annotations

from collections.abc import Sequence

from probe.common import log
from probe.common.align.dump_pairs import DumpPair
from probe.common.align.layer_names import load_rules
from probe.common.align.mapping import check_api_mapping
from probe.common.align.mapping_files import load_api_entries, load_names
from probe.common.dump.layout import has_real_data
from probe.common.dump.reading.dump import read
from probe.common.errors import MsprobeException
from probe.compare.options import Options
from probe.compare.output import tables


def check(pairs: Sequence[DumpPair], options: Options, values: bool = True) -> None:
    """Check `options` against the dumps they are for; without `values`, these are compared by their statistics.

    Raises:
        MsprobeException: a file cannot be read or holds something else, or an option is not for such dumps.
    """
    _check_files(options)
    _check_api_mapping(pairs, options)
    if values:
        _check_algorithms(pairs, options)


def _check_files(options: Options) -> None:
    """Read every file that says what corresponds to what, or what is done to tensors."""
    if options.api_mapping:
        load_api_entries(options.api_mapping)
    for path in (options.cell_mapping, options.data_mapping):
        if path:
            load_names(path)
    if options.layer_mapping:
        load_rules(options.layer_mapping)
    if options.post_processing:
        from probe.compare.rows.tensor_transforms import load_post_processing

        load_post_processing(options.post_processing)


def _check_api_mapping(pairs: Sequence[DumpPair], options: Options) -> None:
    """Check that the target can have one, by the first pair that can be read: all are of one run."""
    for pair in pairs if options.api_mapping is not None else ():
        try:
            target = read(pair.target)
        except MsprobeException:
            continue  # Reported when it is compared.
        check_api_mapping(target)
        return


def _check_algorithms(pairs: Sequence[DumpPair], options: Options) -> None:
    """Load the user's metrics where they are used, so that a mistake in one is known before any work."""
    files_of_user = options.algorithms
    real_data = any(has_real_data(pair.target) for pair in pairs)
    if files_of_user or real_data:
        from probe.common.numerics import user_metrics

        user_metrics.load(files_of_user, tables.RESERVED)
    if files_of_user and not real_data:
        log.warning("the metrics of --algorithms are for real data, and these dumps hold none.")
