"""Shapes that ranks alone do not tell, found by holding two runs against each other.

It is not always known along which dimension a tensor is split: pieces ``[8, 8]`` of two ranks are of ``[16, 8]`` or of
``[8, 16]``. If the other run has the tensor whole, or in pieces of another number, one of these is the shape of both.
"""

from __future__ import annotations

from collections.abc import Sequence

from probe.common.dump.reading.items import Shape, shape_text
from probe.shards.merge import Merged, record_of


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
