"""`GradComparator`: the gradients of two runs compared by their signs, under the names of msProbe."""

from __future__ import annotations

from probe.common import log
from probe.monitor.gradients.comparing import RankSimilarity, compare_runs, lines_of
from probe.monitor.gradients.results import write_results


class GradComparator:
    """Compares what task ``grad_probe`` wrote of two runs with ``grad_level`` ``L1`` or ``L2``."""

    @staticmethod
    def compare_distributed(dump_path1: str, dump_path2: str, output_path: str) -> list[RankSimilarity]:
        """Write the similarity of the gradients of each parameter and step, and a picture of each parameter.

        Args:
            dump_path1, dump_path2: The ``dump_path`` of each run.
            output_path: The folder for the results, made if it is missing; with ``rank<R>`` if there are several ranks.

        Returns:
            The similarities of each rank.

        Raises:
            MsprobeException: a path is no folder of the task, or the runs have nothing in common.
        """
        found = compare_runs(dump_path1, dump_path2)
        write_results(output_path, found)
        for line in lines_of(found):
            log.info(line)
        return found
