"""What the documentation refers to exists: links, files of the repository, and functions in the file that is named."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from probe._version import __version__
from probe.common.dump.frameworks import FRAMEWORKS, numbers

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "README.md", ROOT / "SECURITY.md", ROOT / "tests" / "reference" / "README.md"]
PAGES += sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
DEVELOPMENT = sorted(ROOT.glob("docs/development/*.md"))
FILE = re.compile(r"(?<![\w./-])(?:probe|msprobe|tests|benchmarks|docs|examples)/[\w./-]*[\w/]")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
            found = (page.parent / target).resolve() if target else page
            assert found.exists(), f"{page}: {target}"
            assert not anchor or anchor in anchors(found), f"{page}: {target}#{anchor}"


@pytest.mark.parametrize("page", ["README.md", "docs/reference/backends.md", "docs/reference/reading.md"])
def test_the_versions_that_were_tested_are_those_of_the_table(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for framework in FRAMEWORKS.values():
        assert framework.tested_text in text


def test_what_the_tests_are_run_with_is_in_the_table() -> None:
    pinned = re.findall(r"^ +(torch|mindspore|mindnlp)==([\d.]+)", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.M)
    tested = {framework.distribution: framework.tested for framework in FRAMEWORKS.values()}
    assert {name for name, _ in pinned} >= {"torch", "mindspore"}
    assert not [f"{name} {version}" for name, version in pinned if version not in tested[name]]
    oldest = ".".join(map(str, FRAMEWORKS["torch"].oldest))
    assert f'torch = ["torch>={oldest}"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # Whatever is written into messages as the oldest one is the first.
    assert all(list(each.tested) == sorted(each.tested, key=numbers) for each in FRAMEWORKS.values())


def test_files_exist() -> None:
    for path in (path for page in PAGES for path in FILE.findall(page.read_text(encoding="utf-8"))):
        # What follows may be a part to be filled in: tests/backends/<name>-xfails.txt.
        assert (ROOT / path).exists() or [*(ROOT / path).parent.glob(f"{Path(path).name}*")], path


@cache
def definitions(path: Path) -> set[str]:
    """The functions and classes of a file, methods as ``Class.method``."""

    def walk(body: list[ast.stmt], above: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield above + node.name
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{above}{node.name}.")

    return set(walk(ast.parse(path.read_text(encoding="utf-8")).body, ""))


@pytest.mark.parametrize("page", DEVELOPMENT, ids=name)
def test_listed_functions_are_in_their_files(page: Path) -> None:
    listed = re.findall(r"^ {4,}(\S.*?) {2,}(probe/\S+\.py)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed or not page.name.startswith("life-of-")
    every = [(function, path) for functions, path in listed for function in functions.split(", ")]
    assert [(function, path) for function, path in every if function not in definitions(ROOT / path)] == []


@cache
def sources() -> list[tuple[Path, str]]:
    return [(path, path.read_text(encoding="utf-8")) for path in ROOT.glob("probe/**/*.py")]


@pytest.mark.parametrize("page", DEVELOPMENT, ids=name)
def test_methods_and_names_in_the_text_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    methods = {f"{owner}.{method}" for owner, method in re.findall(r"`(_?[A-Z]\w+)\.(_?[a-z]\w+)`", text)}
    # Parsing all files takes seconds.
    classes = [f"class {method.partition('.')[0]}" for method in methods]
    every = set().union(*(definitions(path) for path, code in sources() if any(each in code for each in classes)))
    of_users = {"Functional.relu", "Tensor.relu", "CHANGELOG.md"}
    assert methods - every - of_users == set()
    for found, path in re.findall(r"`(\w+)`\s+in\s+`(probe/[\w/]+\.py)`", text):
        assert found in (ROOT / path).read_text(encoding="utf-8"), f"{found} in {path}"


def test_nobody_is_told_to_install_by_a_name_that_is_somebody_elses() -> None:
    # On the package index `msprobe` is another project's.
    files = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
    files += [path for top in ("probe", "docs", "examples") for path in ROOT.glob(f"{top}/**/*") if path.is_file()]
    texts = {path: path.read_bytes() for path in files if path.suffix in (".py", ".md", ".ipynb", ".json", ".yaml")}
    wrong = [name(path) for path, text in texts.items() if b"msprobe[" in text or b"pip install msprobe" in text]
    assert len(texts) > 100 and wrong == []


def test_workflows_and_hooks_call_what_there_is() -> None:
    workflows = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob(".github/workflows/*.yml"))
    listed = re.findall(r"^ +- ([a-z]+(?: ENV=[\w-]+)?(?: SECONDS=\d+)?)$", workflows, re.MULTILINE)
    calls = [*listed, *re.findall(r"make ([a-z]+(?: ENV=[\w-]+)?) PYTHON", workflows)]
    makefile, tox = ((ROOT / each).read_text(encoding="utf-8") for each in ("Makefile", "tox.ini"))
    for target, _, arguments in (call.partition(" ") for call in calls):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        environment = arguments.removeprefix("ENV=").replace("py39", "py{39,313}").replace("py313", "py{39,313}")
        assert not arguments.startswith("ENV=") or f"[testenv:{environment}]" in tox or environment == "core", arguments
    assert len(calls) > 15 and "docs" in calls and "wheels" in calls
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert all((ROOT / path).exists() for path in re.findall(r"tests/[\w/.]+", hooks))


def test_the_version_to_cite_is_the_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
