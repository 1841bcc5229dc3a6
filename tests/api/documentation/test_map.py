"""The maps for developers are true: the tree of folders in CONTRIBUTING.md, and the places in where.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
WHERE = ROOT / "docs" / "development" / "where.md"
_LINE = re.compile(r"( *)([\w./]+)/(?: +(.*))?$")


# --- the tree of folders


def folders() -> set[str]:
    """The folders of ``probe/`` that hold files of ours."""
    names = (path.relative_to(ROOT).parent for path in (ROOT / "probe").rglob("*") if path.is_file())
    return {name.as_posix() for name in names if "__pycache__" not in name.parts}


def listed(text: str) -> set[str]:
    """The folders below ``probe/`` in a tree, by its indentation, and those that a description names with a slash."""
    found: set[str] = set()
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        if match := _LINE.match(line):
            depth = len(match[1])
            above = [*((other, name) for other, name in above if other < depth), (depth, match[2])]
            path = "/".join(name for _, name in above)
            found |= {path, *(f"{path}/{room}" for room in re.findall(r"\b(\w+)/(?!\w)", match[3] or ""))}
    return {path for path in found if path.split("/")[0] == "probe"}


def tree() -> str:
    """The map of CONTRIBUTING.md."""
    return re.findall(r"```text\n(probe/.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)[0]


def test_every_folder_is_on_the_map_and_nothing_else() -> None:
    there, on_map = folders(), listed(tree())
    assert sorted(there - on_map) == []
    assert sorted(on_map - there) == []


# --- where.md


def rows(text: str) -> list[str]:
    """The second cells of a table."""
    rows = [line for line in text.splitlines()[1:] if re.match(r"\| (?!subject)\w", line)]
    return [row.split(" | ", 1)[1].rstrip(" |") for row in rows]


@cache
def definitions(path: Path) -> frozenset[str]:
    """The functions, classes and names of a file, those of a class as ``Class.name`` and by themselves."""
    if path.suffix != ".py":
        return frozenset(re.findall(r"\w+", path.read_text(encoding="utf-8", errors="replace")))

    def walk(body: Sequence[ast.stmt], above: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield from (above + node.name, node.name)
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{node.name}.")
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield from (above + target.id, target.id)

    return frozenset(walk(ast.parse(path.read_text(encoding="utf-8")).body, ""))


def files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


@cache
def everything(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(folder.rglob("*")))


def problems(row: str, root: Path) -> list[str]:
    """What a row names and is not there: a path, a file next to another, a function."""
    found: list[str] = []
    sources: list[Path] = []
    names: list[str] = []
    folder: Path | None = None
    for text, after in re.findall(r"`([^`]+)`((?: next to)?)", row):
        if re.fullmatch(r"(?:probe|docs|tests)/[\w./]*", text):
            path = root / text
            if not path.exists():
                found.append(f"no path {text}")
                continue
            folder = path.parent if path.is_file() else path
            sources += files(path)
        elif re.fullmatch(r"(?:\w+/)*\w+\.(?:py|c|yaml)|(?:\w+/)+", text):
            near = (
                [folder / text]
                if after and folder is not None
                else [path for path in everything(root / "probe") if path.match(text.rstrip("/"))]
            )
            if not near or not near[0].exists():
                found.append(f"no file {text}{after}")
                continue
            for each in near:
                sources += files(each)
        elif re.fullmatch(r"_?[A-Za-z]\w*(?:\.\w+)?", text):
            names.append(text)
    known = frozenset().union(*map(definitions, sources))
    return found + [f"no {name} in the files of the row" for name in names if name not in known]


def test_what_is_named_is_where_it_is_said_to_be() -> None:
    every = {row: problems(row, ROOT) for row in rows(WHERE.read_text(encoding="utf-8"))}
    assert {row: found for row, found in every.items() if found} == {}


def test_no_question_is_answered_twice() -> None:
    questions = re.findall(r"^\| (?!subject)(\w.*?) \|", WHERE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(questions) > 20 and len(set(questions)) == len(questions)


def test_a_wrong_row_is_found(tmp_path: Path) -> None:
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "a.py").write_text("LIMIT = 1\ndef find(): ...\nclass Place:\n    def find(self): ...\n")
    assert problems("`Place.find` in `probe/a.py`, and `LIMIT`", tmp_path) == []
    assert problems("`find` in `probe/c.py`", tmp_path)[0] == "no path probe/c.py"
    assert problems("`Place.other` in `probe/a.py`", tmp_path) == ["no Place.other in the files of the row"]
    assert problems("`find` in `probe/a.py`, more in `d.py` next to it", tmp_path) == ["no file d.py next to"]
