"""The meaning of the merging flags."""

from __future__ import annotations

import os
from collections.abc import Sequence

from probe.common.dump.layout import holds_records
from probe.common.errors import MsprobeException
from probe.graph.options import GraphOptions
from probe.graph.page.prefixes import Prefixes
from probe.graph.run import Plan, title
from probe.graph.tasks.located import GraphLocation
from probe.graph.tasks.merged import MergedGraphTask
from probe.shards.merge import folder_of, merged, write
from probe.shards.split import Split
from probe.shards.split_runs import check_folders, common_steps, dumps_of


def planned_merging(
    targets: Sequence[str], goldens: Sequence[str], options: GraphOptions, splits: Sequence[Split]
) -> Plan:
    """The comparisons of runs whose ranks are merged.

    Args:
        targets, goldens: one folder, of a step or of all steps; of the golden run one or none.
        options: how dumps are shown.
        splits: how the target is split, and the golden run.

    Raises:
        MsprobeException: the paths do not go together.
    """
    if len(targets) > 1 or len(goldens) > 1:
        raise MsprobeException("--rank_size merges the ranks of one run or two; give -tp once, and -gp at most once.")
    check_folders((*targets, *goldens))
    steps, unpaired = common_steps(targets[0], goldens[0] if goldens else None)
    locations = [GraphLocation(each.target, each.golden, step=each.name) for each in steps]
    cut = Prefixes(options.strip_paths)
    name = title(list(map(cut.path, targets)), list(map(cut.path, goldens)))
    unpaired = [cut.text(sentence, (*targets, *goldens)) for sentence in unpaired]
    return Plan([MergedGraphTask(location, options, splits=tuple(splits)) for location in locations], unpaired, name)


def write_merged(targets: Sequence[str], goldens: Sequence[str], splits: Sequence[Split], output: str) -> list[str]:
    """Write the merged dumps of a run to ``step<S>/rank<R>`` below `output`; returns these folders.

    Raises:
        MsprobeException: the ranks cannot be merged, two runs are given, or one of the folders holds a dump. Nothing is
            written then.
    """
    if goldens or len(targets) != 1:
        raise MsprobeException("--file_type json writes the merged dumps of one run; give -tp once, and no -gp.")
    steps, _ = common_steps(targets[0], None)
    copies = [copy for step in steps for copy in merged(dumps_of(step.target), splits[0], step.target)]
    folders = [folder_of(copy, output) for copy in copies]
    for folder in folders:
        # It may be that of the run itself.
        if os.path.isdir(folder) and holds_records(folder):
            raise MsprobeException(f"{folder} holds a dump already; give another folder with -o.")
        if folders.count(folder) > 1:
            raise MsprobeException(f"{targets[0]} has two dumps for {folder}; give one of its steps with -tp.")
    for copy, folder in zip(copies, folders):
        write(copy, folder)
    return folders
