"""The code blocks of the documentation, and how each is run.

Every block is fenced. What becomes of it follows from its language, and those of a page run in its order:

- ``python`` runs; the blocks of a page share one process. With ``title="train.py"`` it is
  written to that file instead, and a command of the page has to use the file.
- ``sh`` runs as a shell script that must end with status 0. What installs, or works on a checkout (``pip``, ``make``,
  ``pytest``), is not run; what it names has to exist.
- ``console`` has commands behind ``$``, which run, and what they print. ``...`` stands for any lines. Numbers with a
  fraction may differ by a tenth, and where they are of rounding by the processor (`printed_numbers`); whole ones of
  three digits and more, and spaces, are not compared. The folder is ``/path/to`` where its whole path is printed, or
  nothing.
- ``json``, ``yaml`` and ``toml`` are parsed, and written to the file of their title. What has keys of a configuration
  is read as one, without a warning.
- ``text``, also of a block without a language, is shown and nothing else.

A comment right above a block says what is different:

- ``<!-- not run: reason -->``: it is only compiled or parsed, for that reason.
- ``<!-- status 2 -->``: its command ends with that status.
- ``<!-- runs below -->``: the answer, which a page shows first, is run after the block with ``<!-- then above -->``, or
  after the last one.
- ``<!-- new process -->``: later blocks of Python have a process of their own, as a debugger wants that is made anew.
- ``<!-- given: code -->``: Python that runs first, for what the reader has already.

A page runs in a folder of its own, which holds `FIXTURES`: two small runs, and a configuration, a training and the
public reports of the examples.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from printed_numbers import prints

import probe

ROOT = Path(__file__).parents[3]
CASES = ROOT / "tests" / "compare" / "cases"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
FIXTURES = {
    "run_a": CASES / "multi_rank" / "target",
    "run_b": CASES / "multi_rank" / "golden",
    "config.json": ROOT / "examples" / "config.json",
    "train.py": ROOT / "examples" / "train.py",
    "symptoms": ROOT / "examples" / "symptoms",
}
LANGUAGES = ("python", "sh", "console", "json", "yaml", "toml", "text")
NOT_RUN = ("pip", "make", "pytest", "git", "tox", "source")
"""Commands that change the machine or take minutes; `test_pages.py` holds what they name to what there is."""

# What a block has to import, by the environment of tox.ini that has it. The first that fits counts.
_PACKAGES = {
    "msadapter": {"mindtorch", "mindnlp"},
    "mindspore": {"mindspore", "msprobe.mindspore"},
    "integrations": {"accelerate", "lightning", "transformers", "datasets", "msprobe.pytorch.integrations"},
    "torch": {"torch", "msprobe.pytorch"},
}
_MARK = re.compile(r"<!--\s*(not run|status|new process|given|runs below|then above):?\s*(.*?)\s*-->\s*$", re.DOTALL)


@dataclass
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> str:
        return f"{name(self.page)}:{self.line}"

    @property
    def environment(self) -> str:
        """The environment that has what this block imports; "" if it imports no framework."""
        if self.language != "python":
            return ""
        imports = imported(self.marks.get("given", "") + "\n" + self.text)
        return next((name for name, packages in _PACKAGES.items() if imports & packages), "")

    @property
    def commands(self) -> list[str]:
        """The lines of a block of the shell, continued ones joined, without comments."""
        text = self.text.replace("\\\n", " ")
        if self.language == "console":
            return [line[2:] for line in text.splitlines() if line.startswith("$ ")]
        return [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]

    @property
    def runs(self) -> bool:
        if "not run" in self.marks or self.language not in ("python", "sh", "console"):
            return False
        return self.language == "python" or not any(program(line) in NOT_RUN for line in self.commands)


class BlockFailed(AssertionError):
    """A block of a page does not do what the page says."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix() if ROOT in page.parents else page.name


def program(command: str) -> str:
    """The program that a command starts, after variables that are set for it."""
    return next(word for word in command.split() if not re.match(r"\w+=", word))


def imported(code: str) -> set[str]:
    """What `code` imports: the names of modules, and of the packages around them."""
    found: set[str] = set()
    try:
        tree = ast.parse(code)
    except SyntaxError:  # which the test of the block reports
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found.update(".".join(module.split(".")[: n + 1]) for module in modules for n in range(module.count(".") + 1))
    return found


@functools.cache
def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order; ``indented`` and ``comment``, which no page may have, stand as languages."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "code_block":
            found.append(Block(page, line, "indented", "", token.content))
        if token.type == "html_block":
            for comment in re.findall(r"<!--.*?-->", token.content, re.DOTALL):
                mark = _MARK.match(comment)
                marks[mark[1] if mark else "not known"] = mark[2] if mark else comment
        elif token.type == "fence":
            language, _, rest = (token.info.strip() or "text").partition(" ")
            title = re.search(r'title="([^"]+)"', rest)
            found.append(Block(page, line, language, title[1] if title else "", token.content, marks))
            marks = {}
        elif marks and token.type == "inline":
            # What is above something else belongs to no block.
            found.append(Block(page, line, "comment", "", str(marks)))
            marks = {}
    return found


def in_order(page: Path) -> list[Block]:
    """The blocks of a page as they are run."""
    above = [block for block in blocks(page) if "runs below" in block.marks]
    found = [block for block in blocks(page) if "runs below" not in block.marks]
    behind = next((n for n, block in enumerate(found, 1) if "then above" in block.marks), len(found))
    return [*found[:behind], *above, *found[behind:]]


@functools.cache
def environment(page: Path) -> str:
    """Where a page runs: an environment of tox.ini, ``core`` without a framework, ``agreement`` with two."""
    found = blocks(page)
    needed = {block.environment for block in found if block.runs} - {""}
    if "train.py" not in {block.title for block in found}:
        # Those of `FIXTURES`.
        needed |= {"torch" for block in found if block.runs and re.search(r"\btrain\.py|symptoms/", block.text)}
    if needed <= {"torch", "integrations"}:
        return "integrations" if "integrations" in needed else "torch" if needed else "core"
    return needed.pop() if len(needed) == 1 else "agreement"


def pages_of(wanted: str) -> list[Path]:
    """The pages that are run in one environment."""
    return [page for page in PAGES if environment(page) == wanted and any(block.runs for block in blocks(page))]


def run_page(page: Path, folder: Path, interpreters: dict[str, str] | None = None) -> None:
    """Run the blocks of a page in `folder`, an empty one.

    Args:
        interpreters: the Python of each environment, where a page needs more than one.

    Raises:
        BlockFailed: a block does not do what the page says; with its place and what it wrote.
    """
    for given, source in FIXTURES.items():
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / given)
    owner: dict[str, str] = {}  # by file, the environment that it needs
    running: _Program | None = None
    with ExitStack() as programs:
        for block in in_order(page):
            if block.title:
                (folder / block.title).parent.mkdir(exist_ok=True)
                (folder / block.title).write_text(block.text, encoding="utf-8")
                owner[block.title] = block.environment
            elif block.runs and block.language == "python":
                if running is None or "new process" in block.marks:
                    programs.close()
                    running = _Program(folder, _python(block.environment, interpreters))
                    programs.push(running.end)
                running.run(block)
            elif block.runs:
                used = [owner[file] for file in owner if file in block.text and owner[file]]
                _run_shell(block, folder, _python(used[0] if used else "", interpreters))


def _python(environment: str, interpreters: dict[str, str] | None) -> str:
    return (interpreters or {}).get(environment, sys.executable)


class _Program:
    """A process that runs blocks of Python one after the other."""

    def __init__(self, folder: Path, python: str) -> None:
        self._folder = folder
        answers, ours = os.pipe()
        self._answers = os.fdopen(answers)
        self._output = open(folder / "output.txt", "w+", encoding="utf-8")  # noqa: SIM115 (closed in `end`)
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("run_blocks.py")), str(ours)], cwd=folder, env=_variables(python),
            stdin=subprocess.PIPE, stdout=self._output, stderr=subprocess.STDOUT, pass_fds=[ours], text=True,
        )  # fmt: skip
        os.close(ours)

    def run(self, block: Block) -> None:
        for part, text in (("given", block.marks.get("given", "")), ("block", block.text)):
            if text:
                # Blocks have files of their own, so that call stacks have their lines.
                path = self._folder / f"{part}_{block.page.stem}_{block.line}.py"
                path.write_text(text, encoding="utf-8")
                assert self._process.stdin is not None
                self._process.stdin.write(f"{path}\n")
                self._process.stdin.flush()
                if not self._answers.readline():
                    raise BlockFailed(f"{block.place}: {self._written()}")

    def end(self, error_class: type[BaseException] | None, *_: object) -> None:
        """Let the process end, and say so if it does so badly; after an error that is nothing new."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        written = self._written()
        self._answers.close()
        self._output.close()
        if self._process.returncode and error_class is None:
            raise BlockFailed(f"the Python of the page ends with status {self._process.returncode}: {written}")

    def _written(self) -> str:
        self._process.wait(timeout=60)
        self._output.seek(0)
        return self._output.read()


_FOLDER_ON_PAGES = "/path/to/"


def _run_shell(block: Block, folder: Path, python: str) -> None:
    wanted = int(block.marks.get("status", 0))
    if block.language == "sh":
        done = _process(["bash", "-euo", "pipefail", "-c", block.text], folder, python)
        if done.returncode != wanted:
            raise BlockFailed(f"{block.place}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return
    for command, printed in parts(block):
        done = _process(["bash", "-c", command], folder, python, MSPROBE_LOG_LEVEL="2")
        if done.returncode != wanted:
            raise BlockFailed(f"{block.place}: {command}: status {done.returncode}\n{done.stdout}{done.stderr}")
        output = done.stdout.replace(f"{folder}/", "")
        if not prints(printed.replace(_FOLDER_ON_PAGES, ""), output):
            raise BlockFailed(f"{block.place}: {command} prints\n{output}\nand the page has\n{printed}")


def _process(command: list[str], folder: Path, python: str, **more: str) -> subprocess.CompletedProcess[str]:
    variables = {**_variables(python), **more}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=180, check=False)


def _variables(python: str) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(probe.__file__).parents[1]),
        "HF_HUB_OFFLINE": "1",
        "GLOG_v": "3",
    }


def parts(block: Block) -> Iterator[tuple[str, str]]:
    """The commands of a ``console`` block, each with what the page says that it prints."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        length = next(n for n, line in enumerate(lines, 1) if not line.endswith("\\"))
        yield "\n".join(lines[:length]), "\n".join(lines[length:])


def config_keys(text: str) -> set[str]:
    """The keys of a configuration at the top of a JSON object; empty for anything else."""
    value = json.loads(text)
    known = {"task", "level", "dump_path", "step", "rank", "statistics", "tensor"}
    return set(value) & known if isinstance(value, dict) and "data" not in value else set()
