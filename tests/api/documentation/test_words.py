"""Words that a test can hold: terms, docstrings, messages, headings, pages of the site."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from probe.compare.judgement import RESULTS
from probe.overflow.overflow_report import KINDS

ROOT = Path(__file__).parents[3]
DOCS = sorted(ROOT.glob("docs/**/*.md"))
API = sorted([*ROOT.glob("probe/api/**/*.py"), *ROOT.glob("msprobe/**/*.py")])
CODE = sorted([*ROOT.glob("probe/**/*.py"), *ROOT.glob("msprobe/**/*.py")])
QUESTIONS = {
    "What", "Whatever", "Whether", "Which", "Where", "How", "When", "Who", "Whose", "Why", "That", "Of", "As", "If",
}  # fmt: skip


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def terms() -> list[str]:
    rows = re.findall(r"^\| ([^|]+) \|", text_of("docs/glossary.md"), re.MULTILINE)
    return [term for row in rows if row not in ("word", "---") for term in row.split(", ")]


def test_every_term_is_defined_once() -> None:
    assert [term for term, number in Counter(terms()).items() if number > 1] == []
    assert set(terms()) >= {
        "record", "item", "call", "module", "step", "rank", "target", "golden", "divergence", "difference", "effect",
        "case", "journal", "relative error", "tolerance", "unmatched", "rounding error", "checkpoint",
    }  # fmt: skip


def test_the_words_that_commands_print_are_explained() -> None:
    # Read, and not imported: numpy takes seconds.
    statuses = set(re.findall(r'^[A-Z_]+ = "([a-z ]+)"', text_of("probe/calls/verdict/subject.py"), re.MULTILINE))
    verdicts = re.findall(
        r"^\| `([a-z ]+)` \|", text_of("docs/precheck.md").partition("## How a call")[0], re.MULTILINE
    )
    assert set(verdicts) <= statuses and len(verdicts) == 7
    verdict = next(line for line in text_of("docs/glossary.md").splitlines() if line.startswith("| verdict |"))
    assert set(re.findall(r"`([a-z ]+)`", verdict)) == set(verdicts)
    graph = text_of("docs/graph.md").partition("## Keys")[0]
    assert [status for status in RESULTS if f"| {status} |" not in graph] == []
    overflow = text_of("docs/reference/overflow-check.md")
    assert [kind for kind, meaning in KINDS.items() if f"| `{kind}` | {meaning}" not in overflow] == []


def test_a_docstring_begins_with_a_noun_phrase_or_an_imperative() -> None:
    # By its quotes at the beginning of a line, below a field or a constant too: parsing all files takes ten seconds.
    first = re.compile(r'^ *r?"""(\w+).*', re.MULTILINE)
    found = [(name(path), each) for path in CODE for each in first.finditer(path.read_text(encoding="utf-8"))]
    assert len(found) > 5000
    assert [(path, each[0]) for path, each in found if each[1] in QUESTIONS] == []


def messages(path: Path) -> Iterator[tuple[int, str, bool]]:
    """The texts of errors that are raised for the user: line, text without its values, and whether it has a value."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
            continue
        if getattr(node.exc.func, "id", "") not in ("MsprobeException", "UsageError", "MissingDependency"):
            continue
        parts = [each for each in ast.walk(node.exc.args[0]) if isinstance(each, (ast.Constant, ast.FormattedValue))]
        texts = [each.value for each in parts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        if texts:
            yield node.lineno, " ".join(texts), any(isinstance(each, ast.FormattedValue) for each in parts)


ALLOWED_OR_NEXT = re.compile(
    r"\b(give|use|run|leave|allowed|need|needs|must|pip|name|take|collect|set|pass|choose|open|only|instead|--?\w+)\b|;|:"
)


def test_an_error_of_a_command_has_a_value_or_says_what_to_do() -> None:
    found = [
        (f"{name(path)}:{line}", text) for path in API for line, text, has_value in messages(path) if not has_value
    ]
    assert len(found) > 10
    assert [each for each in found if not ALLOWED_OR_NEXT.search(each[1])] == []


def test_headings_are_a_tree_and_their_links_are_unique() -> None:
    for page in DOCS:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        headings = re.findall(r"^(#+) (.+)$", text, re.MULTILINE)
        levels = [len(marks) for marks, _ in headings]
        assert levels[0] == 1 and levels.count(1) == 1, page
        assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), page
        assert len({heading for _, heading in headings}) == len(headings), page


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"[\w/.-]+\.md$", text_of("mkdocs.yml"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in DOCS)
    index = text_of("docs/index.md")
    assert [page for page in listed if page != "index.md" and f"({page})" not in index] == []
