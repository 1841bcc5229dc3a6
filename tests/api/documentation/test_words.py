"""Words that a test can hold: terms, docstrings, messages, headings, pages of the site."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.compare import sentences
from probe.compare.rules import RESULTS
from probe.compare.sentences import item_words
from probe.overflow.findings import KINDS

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


@pytest.mark.parametrize("page", DOCS, ids=name)
def test_headings_are_a_tree_and_their_links_are_unique(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^(#+) (.+)$", text, re.MULTILINE)
    levels = [len(marks) for marks, _ in headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:]))
    assert [heading for heading, number in Counter(heading for _, heading in headings).items() if number > 1] == []


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r"[\w/.-]+\.md$", text_of("mkdocs.yml"), re.MULTILINE)
    assert sorted(listed) == sorted(page.relative_to(ROOT / "docs").as_posix() for page in DOCS)
    index = text_of("docs/index.md")
    assert [page for page in listed if page != "index.md" and f"({page})" not in index] == []


SENTENCES = {
    sentences.other_value("eps", 0.01, 1e-05): "argument eps = 0.01 (golden: 1e-05)",
    sentences.other_value("input.1", 1.9, 1.0): "argument 1 = 1.9 (golden: 1.0)",
    sentences.other_value("p", 0.2, 0.1).inside("Functional.dropout.3.forward"):
        "Functional.dropout.3.forward: argument p = 0.2 (golden: 0.1)",
    sentences.other_dtype("input.0", "bfloat16", "float32"): "input 0 has dtype bfloat16 (golden: float32)",
    sentences.other_shape("output.0", "[4]", "[3]"): "output 0 has shape [4] (golden: [3])",
    sentences.on_one_side("approximate", "tanh", "target"): "argument approximate = tanh in the target only",
    sentences.on_one_side("input.1", sentences.THERE, "golden run"): "input 1 is in the golden run only",
    sentences.other_setting("beta1", "0.8", "0.9", "w"): "beta1 = 0.8 (golden: 0.9), for parameter w",
    sentences.beyond_inputs("output.0", "1.4e-02", "0", "1.6e-06"):
        "output 0 has a relative error of 1.4e-02; expected at most 1.6e-06 (identical inputs)",
    sentences.beyond_inputs("output.0", "3.6e-05", "4.0e-09", "1.6e-06"):
        "output 0 has a relative error of 3.6e-05; expected at most 1.6e-06 (inputs have a relative error of 4.0e-09)",
    sentences.beyond_peers("output.0", "3e-02", "9e-03", 12):
        "output 0 has a relative error of 3e-02; expected at most 9e-03 (from 12 similar calls and the inputs)",
    sentences.beyond_recorded("input.0", "1.3e+00", "7.2e-07"):
        "input 0 already has a relative error of 1.3e+00; the calls before it explain at most 7.2e-07",
    sentences.beyond_recorded("input.0", "2e-03", "7e-07", "A.0.forward"):
        "input 0 already has a relative error of 2e-03, where it calls A.0.forward; the calls before it explain at "
        "most 7e-07",
    sentences.beyond_recorded("parameter w", "all"):
        "parameter w already has a relative error of 1.0 (all of its norm)",
    sentences.not_finite("output.0", "a NaN in the target only", sentences.NOT_FROM_INPUTS):
        "output 0 has a NaN in the target only; the inputs have none",
    sentences.Sentence("only the target makes this call"): "only the target makes this call",
}  # fmt: skip


@pytest.mark.parametrize("sentence", SENTENCES, ids=lambda sentence: sentence.text)
def test_a_sentence_of_the_search_is_shown_with_labels(sentence: sentences.Sentence) -> None:
    assert sentence.shown == SENTENCES[sentence]


def test_an_item_has_no_dots_before_its_index() -> None:
    assert item_words("output.0.1") == "output 0.1" and item_words("layers.1.weight") == "layers.1.weight"
