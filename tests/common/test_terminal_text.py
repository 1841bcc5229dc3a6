"""Text from elsewhere is printed as one line that commands no terminal."""

from __future__ import annotations

import io

import pytest

from probe.common.errors import DumpFormatError, MsprobeException
from probe.common.terminal_text import print_text, printable


@pytest.mark.parametrize("text", ["", "Torch.relu.0.forward", "a b\\c", "层.卷积", "/data/\u3000x/é.json"])
def test_what_can_be_shown_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("character", "shown"),
    [
        ("\n", "\\n"),
        ("\r", "\\r"),
        ("\t", "\\t"),
        ("\x00", "\\x00"),
        ("\x1b", "\\x1b"),  # begins a command to the terminal
        ("\x7f", "\\x7f"),
        ("\x9b", "\\x9b"),  # the same in one character
        ("\x85", "\\x85"),  # a line break, as the next two
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
        ("\u202e", "\\u202e"),  # turns what follows round
        ("\ud800", "\\ud800"),  # cannot be printed at all
    ],
)
def test_what_a_terminal_would_obey_is_escaped(character: str, shown: str) -> None:
    assert printable(f"a{character}b") == f"a{shown}b"


def test_said_text_is_one_line() -> None:
    stream = io.StringIO()
    print_text("a\nb", stream)
    assert stream.getvalue() == "a\\nb\n"


@pytest.mark.parametrize("kind", [MsprobeException, DumpFormatError])
def test_an_error_is_one_line_wherever_it_is_shown(kind: type[MsprobeException]) -> None:
    assert str(kind("record a\nb")) == "record a\\nb"
