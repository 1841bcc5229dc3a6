"""The source around calls on the page, and the roots of two checkouts."""

from __future__ import annotations

from pathlib import Path

from probe.graph.page.code import code_of, roots


def test_the_roots_of_two_checkouts_are_what_stands_before_the_files_that_both_have() -> None:
    assert roots({"/a/repo/train.py", "/a/repo/net/model.py"}, {"/b/x/repo/train.py", "/b/x/repo/net/model.py"}) == (
        "/a/", "/b/x/"
    )  # fmt: skip
    # One odd file, a copy elsewhere, changes nothing.
    mine, theirs = {"/a/r/one.py", "/a/r/two.py", "/tmp/helper.py"}, {"/b/r/one.py", "/b/r/two.py", "/home/helper.py"}
    assert roots(mine, theirs) == ("/a/", "/b/")
    # The same files: what is below the folder that they share.
    assert roots({"/a/r/one.py"}, {"/a/r/one.py", "/a/r/net/two.py"}) == ("/a/r/", "/a/r/")
    assert roots({"/a/one.py"}, {"/b/other.py"}) == ("/", "/")
    assert roots((), ()) == ("", "")


def frame(file: Path, line: int, code: str) -> str:
    return f"File {file}, line {line}, in forward, \n {code}"


def test_code_is_shown_of_a_file_that_still_has_the_line_there_and_of_no_other(tmp_path: Path) -> None:
    source = tmp_path / "model.py"
    source.write_text("\n".join(f"line({number})" for number in range(1, 11)), encoding="utf-8")
    secret = tmp_path / "secret.txt"
    secret.write_text("password\n", encoding="utf-8")
    same, moved = frame(source, 5, "line(5)"), frame(source, 6, "line(5)")
    other, gone, last = frame(secret, 1, "password"), frame(tmp_path / "gone.py", 1, "x"), frame(source, 10, "line(10)")
    library = "File /env/site-packages/torch/nn/linear.py, line 3, in forward, \n return F.linear(x)"
    stacks = {"a": [library, same], "b": [moved], "c": [other], "d": [gone], "e": [last], "f": []}

    found = code_of(stacks, None)

    around = {same: (2, [f"line({number})" for number in range(2, 9)]), last: (7, [f"line({n})" for n in range(7, 11)])}
    assert found.target == around
    assert found.golden == {}
