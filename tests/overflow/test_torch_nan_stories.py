"""A training that goes wrong is answered with the call at fault and the arithmetic that made its NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
from nan_stories import held_out, known
from nan_stories.running import run

STORIES = {**known.STORIES, **held_out.STORIES}


# Torch warns of two stories itself: of a deviation of one value, and of a mean of divergences.
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.sampled(least=5, each=False)
@pytest.mark.parametrize("name", STORIES)
def test_the_call_and_the_reason_are_right(tmp_path: Path, name: str) -> None:
    (told,) = run(tmp_path, {name: STORIES[name]})
    assert told.is_record and told.is_reason, told
