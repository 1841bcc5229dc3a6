"""What is found while a training runs, given the records of a dump as they came, against what is found afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.collect.describing.values import Suspects, is_finite
from probe.collect.sinks.ring.step_ring import Frame, StepRing
from probe.common.callstack import CallStacks
from probe.common.dump import journal as journals
from probe.common.dump.json_decode import number
from probe.common.dump.reading.dump import Dump, read
from probe.overflow.find_overflow import find_overflow


class NothingPending:
    def pending(self) -> int:
        return 0


def entries(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and "Max" in value:
        yield value
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from entries(each)


def with_numbers(value: Any) -> Any:
    """Fields as a running training has them, where numbers that JSON lacks are no texts."""
    if isinstance(value, dict):
        return {key: with_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_numbers(each) for each in value]
    value = number(value)
    return float(value) if value in ("nan", "inf", "-inf") else value


def frames_of(dump: Dump) -> Iterator[Frame]:
    """The frames of which a dump was made."""
    tree: Mapping[str, str | None] = dump.tree or {}
    for order, record in enumerate(dump):
        fields = with_numbers(record.fields)
        yield Frame(record.name, order, -1, tree.get(record.name), order, journals.REPLACE, fields)
    names = {record.name for record in dump}
    for name, parent in tree.items():
        if name not in names:
            yield Frame(name, 0, -1, parent, len(names), None, None)


def while_running(dump: Dump, most: int = 100_000) -> str | None:
    """The record that is found as the frames of `dump` come, of which `most` are kept."""
    suspects = Suspects()
    ring = StepRing(0, most, NothingPending(), suspects, CallStacks(), dump.rank or 0)  # type: ignore[arg-type]
    for frame in frames_of(dump):
        for entry in entries(frame.fields):
            if not is_finite(entry):
                suspects.add(entry)
        ring.add(frame)
    ring.end()
    first = ring.judgement.first
    return None if first is None else first.name


def afterwards(path: Path) -> list[str]:
    """The records of the first findings in one dump."""
    return [finding.record for finding in find_overflow(str(path)).first]


def assert_same_while_and_after(path: Path) -> None:
    expected = afterwards(path)
    assert len(expected) <= 1, "of one rank there is one first record"
    dump = read(str(path))
    assert while_running(dump) == (expected[0] if expected else None)
    # What is not kept is looked at before it goes, wherever the step is cut.
    for most in (1, 4, 7):
        assert while_running(dump, most) == (expected[0] if expected else None), f"{most} records are kept"
