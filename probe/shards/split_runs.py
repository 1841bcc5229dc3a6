"""The steps and ranks of runs that are split, as their folders have them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from probe.common.align.dump_pairs import beside_one_step
from probe.common.dump.reading.dump import Dump, read
from probe.common.dump.reading.items import Shape, shape_text
from probe.common.dump.reading.runs import find_dumps, warn_of_left_out
from probe.common.errors import FileCheckException, MsprobeException
from probe.shards.merge import Merged, record_of


class StepFolders(NamedTuple):
    """The folders of one step, whose ranks are merged."""

    target: str
    golden: Optional[str]  # noqa: UP045 (evaluated, on Python 3.9 too)
    """``None`` where there is one run."""
    name: str
    """The name of the step below the folder of the target; empty where that is the step itself."""


def check_folders(paths: Sequence[str]) -> None:
    """Check that ranks can be below these paths.

    Raises:
        FileCheckException: one is a file.
    """
    for path in paths:
        if os.path.isfile(path):
            raise FileCheckException(f"{path} is not a folder; give that of a step with its ranks, or of all steps.")


def common_steps(target: str, golden: str | None) -> tuple[list[StepFolders], list[str]]:
    """The steps of two runs that are merged, or those of one, and a sentence for each that is left alone.

    Raises:
        MsprobeException: the runs have no step in common, or one path is the folder of a step and the other holds
            several.
    """
    if golden is None:
        return [StepFolders(step, None, name) for name, step in _steps(target).items()], []
    steps, others = beside_one_step((target, golden), (_steps(target), _steps(golden)))
    if len(steps) == len(others) == 1:
        # One step of each, whatever its number.
        others = dict(zip(steps, others.values()))
    found = [StepFolders(step, others[name], name) for name, step in steps.items() if name in others]
    if not found:
        raise MsprobeException(f"{target} and {golden} have no step in common.")
    alone = [
        f"{step} has no counterpart in the {side} {path}: it is not compared."
        for mine, theirs, side, path in ((steps, others, "golden run", golden), (others, steps, "target", target))
        for name, step in mine.items()
        if name not in theirs
    ]
    return found, alone


def _steps(path: str) -> Mapping[str, str]:
    """The folder of each step at a path, by its name below it."""
    found = find_dumps(path)
    warn_of_left_out(found)
    return {"": path} if found.is_one else {found.name_of_step(each): each.step_folder for each in found.dumps}


def dumps_of(step: str) -> dict[int, Dump]:
    """The dumps of all ranks of a step.

    Raises:
        MsprobeException: there is none.
    """
    dumps = {rank: read(path) for rank, path in rank_folders(step).items()}
    if not dumps:
        raise MsprobeException(f"{step} holds no rank folders; give the folder of a step with its ranks.")
    return dumps


def rank_folders(step: str) -> dict[int, str]:
    """The folder of each rank of a step; that of a run of one process, which has no rank, is the one of rank 0."""
    found = find_dumps(step)
    if found.is_one:
        return {}
    # A folder ``rank`` without a number is that of rank 0.
    ranks = {each.rank or 0: each.path for each in found.dumps if not each.process}
    return ranks if ranks or len(found.dumps) > 1 else {0: found.dumps[0].path}


def fit_shapes(copy: Merged, other: Merged) -> None:
    """Give tensors of which it is not known along which dimension they are split the shape that fits the other run.

    A tensor keeps the shape of one piece where none fits or several do, and where both runs have the same pieces.
    """
    runs = (copy, other)
    for name in dict.fromkeys(name for run in runs for name, how in run.items.items() if how.fields is not None):
        if _pieces(copy, name) == _pieces(other, name):
            continue
        common = _possible_shapes(copy, name) & _possible_shapes(other, name)
        if len(common) == 1:
            (shape,) = common
            for run in runs:
                _set_shape(run, name, shape)


def _possible_shapes(run: Merged, name: str) -> set[Shape]:
    """The shapes that an item can have as a whole."""
    how = run.items.get(name)
    if how is not None and how.fields is not None:
        pieces = _pieces(run, name)
        return {_joined(pieces, axis) for axis in range(len(pieces[0])) if _differ_in_no_other(pieces, axis)}
    record = record_of(name, run.dump)
    items = run.dump.items(run.dump[record]) if record else []
    return {item.shape for item in items if item.name == name and item.shape is not None}


def _pieces(run: Merged, name: str) -> list[Shape]:
    """The shapes of the pieces of an item; none of one that every rank has whole."""
    how = run.items.get(name)
    return [] if how is None else [part.shape or () for part in how.parts]


def _differ_in_no_other(pieces: Sequence[Shape], axis: int) -> bool:
    return len({(piece[:axis], piece[axis + 1 :]) for piece in pieces}) == 1


def _joined(pieces: Sequence[Shape], axis: int) -> Shape:
    first = pieces[0]
    return (*first[:axis], sum(piece[axis] for piece in pieces), *first[axis + 1 :])


def _set_shape(run: Merged, name: str, shape: Shape) -> None:
    how = run.items.get(name)
    if how is None or how.fields is None:
        return
    pieces = _pieces(run, name)
    how.fields["shape"] = list(shape)
    (axis,) = (axis for axis, size in enumerate(shape) if size != pieces[0][axis])
    record = record_of(name, run.dump)
    sentence = (
        f"{name[len(record) + 1 :]}: pieces {', '.join(map(shape_text, pieces))} along dimension {axis} are "
        f"{shape_text(shape)}, which fits the other run."
    )
    said = run.sentences[record]
    said[said.index(how.sentences[-1])] = sentence
    how.sentences[-1] = sentence
