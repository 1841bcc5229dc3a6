"""updates.npz: what the optimizers of a step did, one optimizer's step after the other.

An archive with three members, which ``numpy.load`` opens without pickles:

    gradient      float32, a row of 64 sums for each parameter of each update: the sketch of the gradient as the
                  optimizer took it; a row of NaN where there is none
    update        float32, in the same rows: the sketch of the update
    updates.json  the text of an object: "version" of this file, "sketch_version" of the sketches, and "updates", a list
                  with an object for each step of an optimizer

Such an object has the class of the optimizer (``optimizer``), its number (``index``), the settings of its ``groups``,
``skipped``, and lists with a value for each parameter, in the order of the rows:

    names            the name in the model
    notes            what cannot be told and why, or null
    group            the index of the group
    state_step       the steps that the optimizer has counted for the parameter; NaN where it counts none
    elements         the number of elements
    gradient_norm    the norm of the gradient as the optimizer took it
    parameter_norm   the norm of the parameter after the update
    excluded         the number of elements that the sketch of the gradient leaves out

The sketch of the update is the sketch of the parameter after it, less that of the parameter before it. The text is read
by Python's json, because NaN stands in it, which msgspec does not read.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import msgspec

from probe.common import files
from probe.common.dump.layout import UPDATES_FILE
from probe.common.dump.sketch_file import DAMAGED, LANES, NO_SKETCH, ROW, SKETCH, array_header, member_of, read_member
from probe.common.errors import DumpFormatError

if TYPE_CHECKING:
    # Dumps are read without numpy where nothing is asked of it.
    from numpy.typing import NDArray

    from probe.common.interfaces import Entry
    from probe.common.numerics.sketch import Distance, Sketch

VERSION = 1
"""The version of the file. 1: the first one (2026-11)."""
_COLUMNS = ("names", "notes", "group", "state_step", "elements", "gradient_norm", "parameter_norm", "excluded")
_SKETCHES = ("gradient", "update")
_TEXT = "updates.json"
_NUMBERS = (int, float)
_ROUNDING = 2.0**-24
"""The unit roundoff of float32."""

Count = Union[int, float, "Entry", None]
"""A number, or the entry of a tensor of one element, whose statistics may come later."""


class UpdateRow(NamedTuple):
    """One parameter in an update; entries may wait for their statistics."""

    name: str
    group: int
    state_step: Count
    gradient: Entry
    before: Entry
    after: Entry


class UpdateFrame(NamedTuple):
    """One step of an optimizer, as it is recorded."""

    optimizer: str
    """The class of the optimizer."""
    number: int
    """The index of the optimizer among those of the process, in the order of their first steps."""
    groups: list[dict[str, Any]]
    skipped: bool | Entry
    rows: list[UpdateRow]

    def content(self) -> dict[str, Any]:
        """The frame of a journal; every entry must have its statistics now."""
        rows = self.rows
        return {
            "optimizer": self.optimizer,
            "index": self.number,
            "groups": self.groups,
            "skipped": self.skipped if isinstance(self.skipped, bool) else bool(_number(self.skipped)),
            "names": [row.name or f"parameters.{row.group}.{at}" for at, row in enumerate(rows)],
            "notes": [_note(row) for row in rows],
            "group": [row.group for row in rows],
            "state_step": [_number(row.state_step) for row in rows],
            "elements": [math.prod(row.after["shape"]) for row in rows],
            "gradient_norm": [_norm(row.gradient) for row in rows],
            "parameter_norm": [_norm(row.after) for row in rows],
            "excluded": [_excluded(row.gradient) for row in rows],
            "gradient": b"".join(row.gradient.get(SKETCH, NO_SKETCH)[:ROW] for row in rows),
            "update": _differences(rows),
        }


def _number(count: Count) -> float:
    value = count.get("Max") if isinstance(count, dict) else count
    return float(value) if isinstance(value, _NUMBERS) else math.nan


def _norm(entry: Entry) -> float:
    value = entry.get("Norm")
    return float(value) if isinstance(value, _NUMBERS) else math.nan


def _excluded(entry: Entry) -> int:
    import numpy as np

    packed = entry.get(SKETCH, b"")
    return int(np.frombuffer(packed, "<f4", 1, ROW)[0]) if len(packed) > ROW else 0


def _note(row: UpdateRow) -> str | None:
    found = []
    for word, entry in (("gradient", row.gradient), ("parameter", row.after)):
        if SKETCH not in entry:
            found.append(f"the {word} has no sketch: {entry.get('not_supported') or 'it is not dense'}")
    if "placements" in row.after:
        found.append(f"the local part of {', '.join(map(str, row.after['placements']))}")
    return "; ".join(found) or None


def _differences(rows: Sequence[UpdateRow]) -> bytes:
    """The sketches of the updates; the difference is rounded once, to float32."""
    import numpy as np

    before, after = (
        np.frombuffer(b"".join(entry.get(SKETCH, NO_SKETCH)[:ROW] for entry in entries), "<f4")
        for entries in ([row.before for row in rows], [row.after for row in rows])
    )
    found: bytes = (after.astype(np.float64) - before).astype("<f4").tobytes()
    return found


# --- read


class UpdatedParameter(msgspec.Struct, frozen=True):
    """The update of one parameter by one step of an optimizer."""

    name: str
    """The name in the model, such as ``layers.0.weight``."""
    group: int
    """The index of its group in `Update.groups`."""
    state_step: float | None
    """The steps that the optimizer has counted for it, this one included; ``None`` where it counts none."""
    elements: int
    gradient_norm: float
    """The norm of the gradient as the optimizer took it, after clipping and unscaling; NaN where it has none."""
    parameter_norm: float
    """The norm of the parameter after the update."""
    gradient: Sketch | None
    """The sketch of that gradient; ``None`` where there is none, as `note` says."""
    update: Sketch | None
    """The sketch of the parameter after the update less the parameter before it."""
    note: str | None
    """The reason why a sketch is missing, or of which tensor this is a part; ``None`` where there is nothing to say."""

    @property
    def update_norm(self) -> Distance | None:
        """The norm of the update: an estimate with a standard error of 9 %, and an interval that holds 99 % of them.

        With up to 64 elements it is exact to the rounding of the sums to float32. `Distance.relative` is relative to
        the parameter after the update.
        """
        if self.update is None:
            return None
        import numpy as np

        from probe.common.numerics.sketch import Distance, Sketch, distance

        found = distance(self.update, Sketch(np.zeros(LANES, np.float32)), self.elements)
        rounding = 2 * _ROUNDING * self.parameter_norm
        relative = found.estimate / self.parameter_norm if self.parameter_norm else math.inf
        return Distance(found.estimate, max(0.0, found.low - rounding), found.high + rounding, relative)


class Update(msgspec.Struct, frozen=True):
    """One step of an optimizer."""

    optimizer: str
    """The class of the optimizer."""
    index: int
    """The number of the optimizer, in the order in which the optimizers of the process stepped first."""
    groups: list[dict[str, Any]]
    """The settings of each group, such as ``lr`` and ``weight_decay``."""
    skipped: bool
    """True if a gradient scaler has skipped the update, because a gradient was not finite."""
    parameters: list[UpdatedParameter]
    """The parameters with a gradient, in the order of the groups."""

    def __getitem__(self, name: str) -> UpdatedParameter:
        for each in self.parameters:
            if each.name == name:
                return each
        raise KeyError(name)


def updates_of_frames(frames: Sequence[Mapping[str, Any]]) -> list[Update]:
    """The updates of frames as `UpdateFrame.content` gives them.

    Raises:
        KeyError, TypeError, ValueError: a frame is damaged.
    """
    import numpy as np

    found = []
    for frame in frames:
        sketches = (np.frombuffer(frame[key], "<f4").reshape(len(frame["names"]), LANES) for key in _SKETCHES)
        rows = [_parameter(*row) for row in zip(*(frame[key] for key in _COLUMNS), *sketches)]
        found.append(Update(frame["optimizer"], frame["index"], frame["groups"], frame["skipped"], rows))
    return found


def _parameter(
    name: str, note: str | None, group: int, state_step: float, elements: int, gradient_norm: float,
    parameter_norm: float, excluded: int, gradient: NDArray[Any], update: NDArray[Any],
) -> UpdatedParameter:  # fmt: skip
    from probe.common.numerics.sketch import Sketch

    return UpdatedParameter(
        name,
        int(group),
        None if math.isnan(state_step) else float(state_step),
        int(elements),
        float(gradient_norm),
        float(parameter_norm),
        None if gradient[0] != gradient[0] else Sketch(gradient, int(excluded)),
        None if update[0] != update[0] else Sketch(update),
        note,
    )


# --- files


def write(folder: str, frames: Sequence[Mapping[str, Any]], journal: str = "") -> None:
    """Write the file into `folder` from the frames of the file `journal`; without an update, remove an earlier one.

    Raises:
        DumpFormatError: a frame is damaged; the message names `journal`.
        OSError: the file cannot be written.
    """
    path = os.path.join(folder, UPDATES_FILE)
    if not frames:
        if os.path.lexists(path):
            os.unlink(path)
        return
    from probe.common.numerics import sketch

    try:
        updates = [{key: value for key, value in frame.items() if key not in _SKETCHES} for frame in frames]
        text = json.dumps({"version": VERSION, "sketch_version": sketch.VERSION, "updates": updates})
        sketches = {key: b"".join(frame[key] for frame in frames) for key in _SKETCHES}
    except (KeyError, TypeError, ValueError) as error:
        raise DumpFormatError(f"{journal}: a step of an optimizer is not readable: {error!r}.") from None
    with files.replacing(path) as stream, zipfile.ZipFile(stream, "w") as archive:
        for key, rows in sketches.items():
            archive.writestr(member_of(f"{key}.npy"), array_header(len(rows) // ROW) + rows)
        archive.writestr(member_of(_TEXT), text)


def read(folder: str) -> list[Update]:
    """The updates of the dump in `folder`; none where it has no such file, or one of another version.

    Raises:
        DumpFormatError: the file is damaged; the message names it.
    """
    path = os.path.join(folder, UPDATES_FILE)
    if not os.path.isfile(path):
        return []
    from probe.common.numerics import sketch

    try:
        with files.open_for_reading(path) as stream, zipfile.ZipFile(stream) as archive:
            content = json.loads(read_member(archive, stream, _TEXT))
            if (content["version"], content["sketch_version"]) != (VERSION, sketch.VERSION):
                return []
            frames = content["updates"]
            ends = [0, *itertools.accumulate(len(frame["names"]) for frame in frames)]
            header = array_header(ends[-1])
            head = len(header)
            for key in _SKETCHES:
                file = read_member(archive, stream, f"{key}.npy")
                if len(file) != head + ends[-1] * ROW or file[:head] != header:
                    raise ValueError("its parts have other lengths")
                for frame, start, end in zip(frames, ends, ends[1:]):
                    frame[key] = file[head + start * ROW : head + end * ROW]
        if any(len(frame[key]) != len(frame["names"]) for frame in frames for key in _COLUMNS):
            raise ValueError("its parts have other lengths")
        return updates_of_frames(frames)
    except (*DAMAGED, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise DumpFormatError(f"{path} is damaged: {error}. Collect the dump again, or delete this file.") from None
