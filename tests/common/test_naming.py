"""Names of records are taken apart as they were put together, and make file names that stay in their folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from probe.common import naming
from probe.common.naming import ParsedName

QUICK = settings(deadline=None, max_examples=500)
WORD = st.text(st.characters(exclude_characters=".", exclude_categories=("Z", "C")), min_size=1, max_size=8)
WORD = WORD.filter(lambda text: not any(map(str.isspace, text)))
PATH = st.lists(WORD, min_size=1, max_size=4).map(".".join)
NUMBERS = st.integers(0, 10**6)


@QUICK
@given(WORD, WORD, NUMBERS, st.sampled_from(["forward", "backward"]))
@example("Torch", "7", 3, "forward")
@example("Tensor", "forward", 0, "backward")
def test_api_names_are_taken_apart_as_they_were_made(prefix: str, api: str, number: int, direction: str) -> None:
    assume(prefix not in ("Module", "Cell"))
    name = naming.api_name(f"{prefix}.{api}", number, direction)
    assert name == f"{prefix}.{api}.{number}.{direction}"
    parsed = ParsedName(f"{prefix}.{api}", number, direction, False)
    assert naming.parse(name) == parsed
    assert naming.record_name(parsed) == name
    assert naming.function_name(name) == api
    assert not naming.is_module(name)


@QUICK
@given(
    st.sampled_from(["Module", "Cell"]),
    PATH,
    WORD,
    NUMBERS,
    st.sampled_from(["forward", "backward", "parameters_grad"]),
)
@example("Module", "0.forward.1", "Linear", 0, "forward")
@example("Module", "a.3.backward", "forward", 2, "parameters_grad")
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


def test_names_of_single_points() -> None:
    assert naming.debug_name("loss", 2) == "loss.2.debug"


# --- file names

CHARACTERS = st.one_of(st.characters(exclude_categories=()), st.sampled_from("./\\%\0\n 0123456789ABCDEFabc"))
STEMS = st.text(CHARACTERS, min_size=1, max_size=40)


@QUICK
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


@QUICK
@given(STEMS, STEMS)
@example("a/b", "a%2Fb")
@example("a\n", "a%0A")
@example("a", "a\n")
@example("%", "%25")
@example("\ud800", "%ED%A0%80")
def test_two_stems_never_share_a_file(first: str, second: str) -> None:
    assume(first != second)
    assert naming.file_name(first, ".pt") != naming.file_name(second, ".pt")


def test_file_names_of_a_usual_model_are_its_record_names() -> None:
    stem = "Module.layers.0.self_attn-v2.Linear.forward.0.input.0"
    assert naming.file_name(stem, ".pt") == stem + ".pt"
    assert naming.file_name("Module.schicht_ä.漢.0", ".npy") == "Module.schicht_ä.漢.0.npy"


def test_the_escapes_are_those_of_the_documentation() -> None:
    assert naming.file_name("a/b\\c%d\0e\nf\x7f", ".pt") == "a%2Fb%5Cc%25d%00e%0Af%7F.pt"


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for stem in ("x" * 252, "ä" * 126, "x" * 100 + "/" * 50):
            (Path(folder) / naming.file_name(stem, ".pt")).touch()
    for stem, size in [("x" * 253, 256), ("x" * 300, 303), ("ä" * 127, 257), ("/" * 100, 303)]:
        with pytest.raises(ValueError, match=f"{size} bytes is longer than 255"):
            naming.file_name(stem, ".pt")
