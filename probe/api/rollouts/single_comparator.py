"""``SingleComparator``: the folders of two `SingleSave` compared."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Union

from probe.api.questions.rules import saved_table_rules

if TYPE_CHECKING:
    from probe.rollout.tables import Tables

Path = Union[str, "os.PathLike[str]"]


class SingleComparator:
    """Compares what `SingleSave` wrote in two programs."""

    @classmethod
    def compare(
        cls,
        dir1: Path,
        dir2: Path,
        output_path: Path = "./msprobe_compare_output",
        num_processes: int = 8,
        *,
        rules: str | None = None,
        headers: str = "msprobe",
    ) -> Tables:
        """Write a workbook ``<key>.xlsx`` for each value.

        Args:
            dir1: The folder of one program.
            dir2: The folder of the other one.
            output_path: The folder for the tables.
            num_processes: At most so many processes work.
            rules: ``probe`` (default) or ``msprobe``, for the tables of msProbe 26.2 with its defects. The variable
                ``MSPROBE_RULES`` is the default.
            headers: ``msprobe`` for its headings, or ``english``.

        Raises:
            MsprobeException: an argument is wrong, or a folder cannot be read.

        Example:
            >>> tables = SingleComparator.compare("rollout", "training")  # doctest: +SKIP
            >>> tables.found  # doctest: +SKIP
            True
        """
        from probe.rollout.tables import compare_saved

        first, second, output = (os.fspath(path) for path in (dir1, dir2, output_path))
        return compare_saved(
            first, second, output, rules=saved_table_rules(rules), headers=headers, num_processes=num_processes
        )
