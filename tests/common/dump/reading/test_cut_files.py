"""Files of a dump that are cut short: what is whole is read, what is cut is missing and said to be."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from probe.api import cli
from probe.common.dump.reading.dump import Dump, read
from probe.common.errors import DumpFormatError

LLAMA = Path(__file__).parents[3] / "graph" / "cases" / "dumps" / "llama"
NAMES = [record.name for record in read(LLAMA)]


def copy(folder: Path) -> Path:
    return Path(shutil.copytree(LLAMA, folder))


def cut(path: Path, at: int) -> Path:
    path.write_bytes(path.read_bytes()[:at])
    return path


def whole(content: bytes) -> list[str]:
    """The records that are whole in the beginning of a file with a line for each bracket, by the way it is laid out."""
    return [json.loads(line.rpartition(b":")[0]) for line, ends in _lines_of_records(content) if ends]


def _lines_of_records(content: bytes) -> list[tuple[bytes, bool]]:
    found: list[tuple[bytes, bool]] = []
    for line in content.split(b"\n"):
        if line.startswith(b'  "') and line.rstrip().endswith(b"{"):
            found.append((line, False))
        elif line.rstrip(b",") == b"  }" and found:
            found[-1] = found[-1][0], True
    return found


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize("layout", ["lines", "one line"])
def test_wherever_a_file_is_cut_the_first_whole_records_are_read_or_it_is_refused(tmp_path: Path, layout: str) -> None:
    parsed = json.loads((LLAMA / "dump.json").read_bytes())
    content = json.dumps(parsed, indent=1 if layout == "lines" else None).encode()
    path = tmp_path / "dump.json"
    random_numbers = random.Random(19)
    places = [random_numbers.randrange(len(content)) for _ in range(40)]
    places += [random_numbers.randrange(2000) for _ in range(20)] + list(range(len(content) - 12, len(content)))
    seen = set()
    for place in places:
        path.write_bytes(content[:place])
        try:
            dump = read(path)
        except DumpFormatError as error:
            assert str(path) in str(error)
            assert place < content.index(NAMES[1].encode())
            continue
        seen.add(len(dump))
        assert (dump.died, dump.cut_at) == (True, place)
        assert [record.name for record in dump] == NAMES[: len(dump)]
        for record in dump:
            assert record.fields == parsed["data"][record.name]
        # The next one is not whole, which its layout tells where it has one.
        if len(dump) < len(NAMES):
            rest = content[:place].partition(b'"' + NAMES[len(dump)].encode() + b'":')[2]
            with pytest.raises(ValueError):
                json.JSONDecoder().raw_decode(rest.decode(errors="replace").lstrip())
        if layout == "lines":
            assert whole(content[:place]) == NAMES[: len(dump)]
    assert len(seen) > 25


@pytest.mark.parametrize("name", ["construct.json", "stack.json"])
def test_what_is_cut_off_beside_the_records_is_missing_and_said_to_be(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy(tmp_path / "dump")
    size = (folder / name).stat().st_size // 2
    cut(folder / name, size)
    dump, complete = read(folder), read(LLAMA)

    def beside(of: Dump) -> dict[str, object]:
        return dict((of.tree if name == "construct.json" else of.stacks) or {})

    found = beside(dump)
    assert 0 < len(found) < len(beside(complete))
    assert all(beside(complete)[key] == value for key, value in found.items())
    assert not dump.died and len(dump) == len(NAMES)
    assert f"{folder / name} is cut off at byte {size}" in capsys.readouterr().err


@pytest.fixture
def short(tmp_path: Path) -> Path:
    folder = copy(tmp_path / "short")
    cut(folder / "dump.json", (folder / "dump.json").stat().st_size * 2 // 3)
    return folder


def test_compare_says_where_the_file_is_cut(short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", "-tp", str(short), "-gp", str(LLAMA), "-o", str(tmp_path / "out")]) == 0
    records = len(read(short))
    more = len(NAMES) - records
    said = capsys.readouterr().out
    size = (short / "dump.json").stat().st_size
    last = NAMES[records - 1]
    assert f"the target is cut off at byte {size}; it ends at {last}; the golden run has {more} more records" in said
    assert "no divergence in what both runs have" in said


def test_show_and_overflow_check_read_it(short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size, records = (short / "dump.json").stat().st_size, len(read(short))
    assert cli.main(["show", str(short)]) == 0
    assert f"{records} records, cut off at byte {size}" in capsys.readouterr().out
    run = tmp_path / "run" / "step0" / "rank0"
    run.parent.mkdir(parents=True)
    short.rename(run)
    assert cli.main(["overflow_check", "-i", str(run.parent), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert f"its dump is cut off at byte {size} of which {records} records were read" in said.out + said.err
