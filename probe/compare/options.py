"""The way in which two dumps are compared."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from probe.common import log
from probe.common.align.dump_pairs import DumpPair
from probe.common.align.layers import load_rules
from probe.common.align.mapping import MatchOptions, check_api_mapping
from probe.common.align.name_mapping import load_api_entries, load_names
from probe.common.dump.frameworks import BACKEND_OF
from probe.common.dump.layout import has_real_data
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import MsprobeException
from probe.compare import tables
from probe.compare.judgement import Otherwise, RowRules


class Options(MatchOptions, frozen=True):
    """The user's choices: for matching as in `MatchOptions`, and for measuring.

    Args:
        post_processing: a file that says what is done to tensors before they are compared.
        algorithms: Python files with metrics of the user's own; they are executed.
        rules: rules of another tool that give rows their results; by default these follow our judgement.
        distances: write our own columns of distances behind those that other tools know.
    """

    post_processing: str | None = None
    algorithms: tuple[str, ...] = ()
    rules: RowRules | None = None
    distances: bool = False

    def absolute(self) -> Options:
        """The options for a process that runs in another folder."""
        names = ("api_mapping", "cell_mapping", "data_mapping", "layer_mapping", "post_processing")
        paths = {name: os.path.abspath(path) for name in names if (path := getattr(self, name))}
        return replace(self, algorithms=tuple(map(os.path.abspath, self.algorithms)), **paths)


# --- two dumps


class Comparison(msgspec.Struct, frozen=True):
    """Two dumps, and how they are compared.

    Raises:
        MsprobeException: these two cannot be compared, and why.
    """

    target: Dump
    golden: Dump
    options: Options
    before: tuple[str, str] | None = None
    """The paths of the dumps of the step before."""

    def __post_init__(self) -> None:
        for dump in (self.target, self.golden):
            if dump.framework not in BACKEND_OF:
                raise MsprobeException(
                    f'{dump.path}: "framework" is {dump.framework!r}; known: {", ".join(map(repr, BACKEND_OF))}.'
                )
            dump.refuse_circles()
        if self.otherwise is not None:
            self.otherwise.check(self.target, self.golden)
        if self.debug != (self.golden.level == "debug"):
            raise MsprobeException(
                f"{self.target.path} has level {self.target.level!r} and {self.golden.path} level "
                f"{self.golden.level!r}: saved values (debug.json) are compared with saved values only."
            )

    @property
    def across_frameworks(self) -> bool:
        """True if the dumps are of two frameworks."""
        return self.target.framework != self.golden.framework

    @property
    def otherwise(self) -> Otherwise | None:
        """Matching and measuring as another tool does, where that is asked for."""
        return None if self.options.rules is None else self.options.rules.otherwise

    @property
    def debug(self) -> bool:
        """True if these are saved values and not calls."""
        return self.target.level == "debug"


# --- option checks


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
        from probe.compare.tensor_rows import load_post_processing

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
        log.warning("--algorithms: its metrics need the values of tensors, and these dumps have none.")
