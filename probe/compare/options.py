"""The way in which two dumps are compared."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from probe.common.align.options import MatchOptions
from probe.compare.rules import RowRules


@dataclass(frozen=True)
class Options(MatchOptions):
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
