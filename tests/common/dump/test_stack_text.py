"""The one parser of frames: texts of this tool, of Python, of msProbe, and texts that are no frames."""

from __future__ import annotations

import pytest

from probe.common.dump.stack_text import ParsedFrame, is_same_line, parse_frame, short_frame, users_line


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


def test_another_text_is_no_frame() -> None:
    assert [parse_frame(text) for text in ("", "train.py:3", "a File /x, line 3, in f", "\n")] == [None] * 4
    assert short_frame("some\n  text") == "some text"


def test_one_line_in_two_folders_is_the_same() -> None:
    one, other = (f"File {folder}/train.py, line 3, in f, \n g( x)" for folder in ("/a", "C:\\b"))
    assert is_same_line(one, other.replace("/train", "\\train"))
    assert not is_same_line(one, one.replace("line 3", "line 4")) and not is_same_line(one, "no frame")
    assert is_same_line("no frame", "no frame")


def test_the_users_line_is_outside_of_the_framework() -> None:
    stack = ["File /x/site-packages/torch/nn/modules/linear.py, line 1, in forward", "File /x/model.py, line 7, in g"]
    assert users_line(stack) == stack[1]
    assert users_line(stack[:1]) == stack[0]
    # A model library beside the framework, in an environment that is called like it.
    library = ["File /envs/torch/lib/python3.11/site-packages/transformers/models/llama.py, line 65, in forward, x"]
    assert users_line([*stack[:1], *library, *stack[1:]]) == library[0]
