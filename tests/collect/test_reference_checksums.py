"""Which dump of a reference run the calls of a process are held against."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from made_dumps import call, write

from probe.collect.sinks.journal.reference_checksums import ReferenceChecksums

CALL = "Torch.relu.0.forward"


def fields(checksum: str) -> dict[str, object]:
    return call([{"md5": "00000000"}], [{"md5": checksum}])


def reference(path: Path, checksum: str, written: int) -> None:
    write(path, {CALL: fields(checksum)}, level="L1")
    os.utime(path / "dump.json", (written, written))


@pytest.mark.parametrize("later", ["proc7", "proc9"])
def test_a_process_without_a_rank_is_held_against_the_run_that_wrote_last(tmp_path: Path, later: str) -> None:
    for process in ("proc7", "proc9"):
        same = process == later
        reference(tmp_path / "step0" / process, "aaaaaaaa" if same else "bbbbbbbb", 20 if same else 10)
    checksums = ReferenceChecksums(str(tmp_path), -1)
    checksums.load("step0/proc123")
    assert not checksums.differs(CALL, fields("aaaaaaaa"))
    assert checksums.differs(CALL, fields("bbbbbbbb"))


def test_a_process_without_a_rank_is_held_against_no_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference(tmp_path / "step0" / "rank0", "aaaaaaaa", 10)
    checksums = ReferenceChecksums(str(tmp_path), -1)
    checksums.load("step0/proc123")
    assert "has no dump of step0/proc123" in capsys.readouterr().err
    assert not checksums.differs(CALL, fields("bbbbbbbb"))
    checksums.load("step0/rank0")
    assert checksums.differs(CALL, fields("bbbbbbbb"))
