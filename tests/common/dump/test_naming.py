"""Names of records and their files, and the lines of stacks."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from probe.common.dump import naming
from probe.common.dump.naming import ParsedName
from probe.common.dump.stack_text import ParsedFrame, parse_frame

# --- names of records are taken apart as they were put together, and make file names that stay in their folder

WORD = st.text(st.characters(exclude_characters=".", exclude_categories=("Z", "C")), min_size=1, max_size=8)
WORD = WORD.filter(lambda text: not any(map(str.isspace, text)))
PATH = st.lists(WORD, min_size=1, max_size=4).map(".".join)
NUMBERS = st.integers(0, 10**6)


@given(
    st.sampled_from(["Module", "Cell"]),
    PATH,
    WORD,
    NUMBERS,
    st.sampled_from(["forward", "backward", "parameters_grad"]),
)
@example("Module", "0.forward.1", "Linear", 0, "forward")
@example("Module", "a.3.backward", "forward", 2, "parameters_grad")
@example("Module", "layers.3.post_feedforward_layernorm", "Norm", 0, "backward")
def test_module_names_are_taken_apart_as_they_were_made(
    root: str, path: str, class_name: str, number: int, direction: str
) -> None:
    base = naming.module_base(root, path, class_name)
    name = naming.module_name(base, number, direction)
    assert name == f"{root}.{path}.{class_name}.{direction}.{number}"
    parsed = ParsedName(base, number, direction, True)
    assert naming.parse(name) == parsed
    assert naming.record_name(parsed) == name
    assert naming.function_name(name) == ""
    assert naming.is_module(name)
    assert (naming.is_forward(name), naming.is_backward(name)) == (direction == "forward", direction == "backward")


@pytest.mark.parametrize(
    "name",
    [
        "",
        "relu",
        "Torch.relu",
        "Torch.relu.0",
        "Torch.relu.forward.0",
        "Torch.relu.-1.forward",
        "Torch.relu.0.sideways",
        "Torch.relu.0.forward.",
        "Torch.relu.0.forward\n",
        "Torch.relu.\u0663.forward",
        "Torch.re lu.0.forward",
        "Module.fc.0.forward",
        "Module.fc.Linear.forward.x",
        "Module.fc.Linear.forward.0\n",
        "Module.forward.0",
        "x.0.debug",
    ],
)
def test_other_texts_are_no_record_names(name: str) -> None:
    assert naming.parse(name) is None


# --- file names

CHARACTERS = st.one_of(st.characters(exclude_categories=()), st.sampled_from("./\\%\0\n 0123456789ABCDEFabc"))
STEMS = st.text(CHARACTERS, min_size=1, max_size=40)


@given(STEMS)
@example("../../etc/passwd")
@example("..")
@example("/")
@example("a\0b")
@example("line\n")
@example("C:\\x")
@example("\ud800")
def test_a_file_name_stays_in_its_folder(stem: str) -> None:
    name = naming.file_name(stem, ".pt")
    assert os.path.basename(name) == name and name not in (".", "..") and "\\" not in name
    assert name.endswith(".pt") and name.isprintable()
    name.encode()


FITS = ("x" * 252, "ä" * 126, "x" * 100 + "/" * 50)
TOO_LONG = ("x" * 253, "x" * 300, "x" * 299 + "y", "ä" * 127, "/" * 100, "x" + "漢" * 300)


def test_a_name_that_is_too_long_is_cut_and_stays_its_own(tmp_path: Path) -> None:
    for stem in (*FITS, *TOO_LONG):
        (tmp_path / naming.file_name(stem, ".pt")).touch(exist_ok=False)
    assert all("%~" not in naming.file_name(stem, ".pt") for stem in FITS)
    for stem in TOO_LONG:
        name = naming.file_name(stem, ".pt")
        digest = hashlib.blake2b(stem.encode(), digest_size=16).hexdigest()
        assert name.endswith(f"%~{digest}.pt") and 250 <= len(name.encode()) <= 255


CASES = st.text(st.sampled_from("aAbBéÉe\u0301ßs%0\u017f\u0131iI4Kk\u212a"), min_size=1, max_size=12)


@given(CASES, CASES)
@example("Fc", "fc")
@example("\xe9", "e\u0301")
@example("K", "\u212a")
def test_where_case_does_not_count_two_stems_share_no_file_either(first: str, second: str) -> None:
    assume(first != second)

    def seen(stem: str) -> str:
        return unicodedata.normalize("NFD", naming.file_name(stem, ".pt", folded=True)).casefold()

    assert seen(first) != seen(second)


@pytest.mark.parametrize("stem", [".", ".."])
def test_without_a_suffix_a_name_is_not_a_way_out_of_its_folder(stem: str) -> None:
    assert naming.file_name(stem, "") == stem.replace(".", "%2E")


# --- the one parser of frames: texts of this tool, of Python, of msProbe, and texts that are no frames


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("File /a/train.py, line 15, in forward, \n h = f(x)", ("/a/train.py", 15, "forward", "h = f(x)")),
        ("File /a/train.py, line 15, in forward, \n f(\n  x)\n", ("/a/train.py", 15, "forward", "f(\n  x)")),
        ('  File "/a b/train.py", line 3, in <module>\n    main()', ("/a b/train.py", 3, "<module>", "main()")),
        ("File C:\\a,b\\m.py, line 3, in f, code, more", ("C:\\a,b\\m.py", 3, "f", "code, more")),
        ("File /a/train.py, line 3, in f, \n ", ("/a/train.py", 3, "f", "")),
        ('File /a/"b".py, line 3, in f, x', ('/a/"b".py', 3, "f", "x")),
        ("File /a/x.py", ("/a/x.py", 0, "", "")),
    ],
)
def test_a_frame_has_a_path_a_line_a_function_and_its_source(text: str, expected: tuple[str, int, str, str]) -> None:
    found = parse_frame(text)
    assert isinstance(found, ParsedFrame) and found[:4] == expected
    assert text[found.start : found.start + len(found.path)] == found.path
