"""State that an optimizer keeps from step to step is judged where a call returned it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from made_dumps import call, tensor_of, write

from probe.common.dump.reading.dump import read
from probe.common.dump.reading.items import Item
from probe.compare.divergence.between_steps import BetweenSteps

RECORD, OTHER = "Tensor.addcmul_.0.forward", "Tensor.addcmul_.1.forward"


def test_values_that_one_call_of_the_step_before_returned_on_both_sides_are_kept(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(4, 8))
    folders = []
    for side, factor in (("target", 1.0), ("golden", 3.0)):
        for step in (0, 1):
            made = {RECORD: values * factor, OTHER: values * factor * 7}
            records = {name: call([], [tensor_of(each)]) for name, each in made.items()}
            folders.append(write(tmp_path / side / f"step{step}" / "rank0", records))
    between = BetweenSteps((str(folders[0]), str(folders[2])), ())
    target, golden = read(str(folders[1])), read(str(folders[3]))

    def returned(record: str) -> tuple[Item, Item]:
        return target.items(target[record])[0], golden.items(golden[record])[0]

    (one, other), (one_of_next, other_of_next) = returned(RECORD), returned(OTHER)
    assert between.are_kept(one, other) and between.are_kept(one_of_next, other_of_next)
    assert not between.are_kept(one, other_of_next), "another call returned that"
    assert not between.are_kept(one, one), "the golden run never had it"
