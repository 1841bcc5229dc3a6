"""Names of records are taken apart as they were put together, and make file names that stay in their folder."""

from __future__ import annotations

import hashlib
import os
import unicodedata
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from probe.common.dump import naming
from probe.common.dump.naming import ParsedName

WORD = st.text(st.characters(exclude_characters=".", exclude_categories=("Z", "C")), min_size=1, max_size=8)
WORD = WORD.filter(lambda text: not any(map(str.isspace, text)))
PATH = st.lists(WORD, min_size=1, max_size=4).map(".".join)
NUMBERS = st.integers(0, 10**6)


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
    assert (naming.is_forward(name), naming.is_backward(name)) == (direction == "forward", direction == "backward")
    assert not naming.is_module(name)


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


def test_names_of_single_points() -> None:
    assert naming.debug_name("loss", 2) == "loss.2.debug"


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


@given(STEMS)
@example("..")
@example("%2E")
def test_a_file_name_can_be_turned_back(stem: str) -> None:
    for folded in (False, True):
        name = naming.file_name(stem, ".pt", folded)
        # Thirty letters of four bytes each take more than a name may have, and are cut.
        if "%~" not in name:
            assert urllib.parse.unquote(name[: -len(".pt")], errors="surrogatepass") == stem


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
