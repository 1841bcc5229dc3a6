"""The code blocks of the documentation are what `pages` says; the pages that need no framework run."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import yaml
from documentation import pages
from documentation.pages import PAGES, ROOT, Block, BlockFailed, blocks, name
from printed_numbers import prints

from probe.common import log
from probe.common.config.config import load_config

ENVIRONMENTS = {"core", "torch", "mindspore", "msadapter", "agreement", "integrations"}


def test_blocks_are_what_they_say(tmp_path: Path) -> None:
    for block in (block for page in PAGES for block in blocks(page)):
        check(block, tmp_path)


def check(block: Block, folder: Path) -> None:
    """What a block shows is of its language, whether or not it is run.

    Raises:
        BlockFailed: it is not; with the reason.
    """
    try:
        assert block.language in pages.LANGUAGES, f"a block of {block.language}"
        assert "not known" not in block.marks, f"no such comment: {block.marks['not known']}"
        if block.language == "python":
            ast.parse(block.marks.get("given", "") + "\n" + block.text)
        elif block.language == "json" and pages.config_keys(block.text):
            assert complaints(block.text, folder) == []
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
        elif block.language in ("sh", "console"):
            check_commands(block)
        assert block.marks.get("not run", "a reason"), "no reason why it is not run"
    except Exception as error:
        raise BlockFailed(f"{block.place}: {error}") from error


def complaints(text: str, folder: Path) -> list[str]:
    """What the reader of configurations warns of; a wrong value is its error."""
    (folder / "config.json").write_text(text, encoding="utf-8")
    (folder / "run_b").mkdir(exist_ok=True)
    with log.collected() as lines:
        load_config(str(folder / "config.json"), dump_path=None if '"dump_path"' in text else "./dump_path")
    return [line.text for line in lines]


def check_commands(block: Block) -> None:
    assert block.commands, "a block without a command"
    not_run = [line for line in block.commands if pages.program(line) in pages.NOT_RUN]
    assert not not_run or len(not_run) == len(block.commands), "commands that are run, and others that are not"
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^(\w+) = \[", project.partition("[project.optional-dependencies]")[2], re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in not_run:
        words = shlex.split(line, comments=True)
        for extra in re.findall(r"(?:\.|msprobe)\[([\w,]+)\]", line) if "pip" in words else []:
            assert set(extra.split(",")) <= extras, f"extras of {line}"
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, f"targets of {line}"


def unused(page: Path) -> list[str]:
    """Return the places of the files that no later command of a page uses."""
    found = [block for block in pages.in_order(page) if "not run" not in block.marks]
    files = [(number, block) for number, block in enumerate(found, 1) if block.title and block.language == "python"]
    return [
        block.place
        for number, block in files
        if not any(block.title in later.text for later in found[number:] if later.runs)
    ]


def test_files_are_used_by_a_command(tmp_path: Path) -> None:
    assert [place for each in PAGES for place in unused(each)] == []
    assert unused(page(tmp_path, GOOD.replace("$ python add.py", "$ echo 4"))) == ["page.md:8"]


@pytest.mark.parametrize("example", [*ROOT.glob("examples/quick_start*.py")], ids=name)
def test_an_example_is_listed_as_it_is(example: Path) -> None:
    # Without its docstring, and what the linter is told.
    code = example.read_text(encoding="utf-8").partition("\n")[2].replace("  # noqa: E402", "").strip()
    listings = [block.text.strip() for page in PAGES for block in blocks(page) if block.title == example.name]
    assert listings and set(listings) == {code}


def test_pages_are_run_somewhere() -> None:
    assert set(map(pages.environment, PAGES)) <= set(ENVIRONMENTS)


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("page", pages.pages_of("core"), ids=name)
def test_pages_run(page: Path, tmp_path: Path) -> None:
    pages.run_page(page, tmp_path)


GOOD = """
<!-- runs below -->
```console
$ cat total.txt
1.51
```

```python title="add.py"
print(2 + 2)
```

```console
$ python add.py
4
```

```python
total = 1.5
```

```sh
test -e run_a/step0
```

<!-- given: more = total -->
```python
open("total.txt", "w").write(f"{more}")
```

```json
{"level": "mix", "step": [0]}
```
"""


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def run(folder: Path, text: str) -> None:
    path = page(folder, text)
    for block in blocks(path):
        check(block, folder)
    (folder / "run").mkdir()
    pages.run_page(path, folder / "run")


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("", "", ""),
        ("2 + 2)", "2 + 3)", r"page.md:12: python add.py prints\n5"),
        ("$ python add.py", "$ python other.py", "page.md:12: python other.py: status 2"),
        ("more = total", "more = None.value", "(?s)page.md:26: .*AttributeError"),
        ("open(", "import atexit, os; atexit.register(os._exit, 3)\nopen(", "ends with status 3"),
        ("test -e run_a/step0", "test -e run_c/step0", "page.md:21: status 1"),
        ("test -e run_a/step0", "make demos", "page.md:21: targets of make demos"),
        ("test -e run_a/step0", "pip install '.[tensorflow]'", "page.md:21: extras of pip"),
        ('"step"', '"steps"', '(?s)page.md:30: .*"steps" is not a known key'),
        ("<!-- given:", "<!-- giving:", "page.md:26: no such comment"),
        ("total -->\n", "total -->\n\nText.\n\n", "page.md:27: a block of comment"),
    ],
)
def test_a_good_page_runs_and_a_broken_block_fails(right: str, wrong: str, message: str, tmp_path: Path) -> None:
    if not message:
        run(tmp_path, GOOD)
        return
    assert GOOD.count(right) == 1
    with pytest.raises(BlockFailed, match=message):
        run(tmp_path, GOOD.replace(right, wrong))


EFFECT = "an error of {}; expected at most {} ({})"
SHOWN = EFFECT.format("3.6e-04", "1.6e-06", "inputs have a relative error of 4.0e-09")


@pytest.mark.parametrize(
    ("effect", "bound", "inputs", "is_shown"),
    [
        ("3.6e-04", "2.7e-06", "inputs have a relative error of 1.4e-07", True),
        ("3.9e-04", "3.1e-06", "identical inputs", True),
        ("4.1e-04", "1.6e-06", "inputs have a relative error of 4.0e-09", False),
        ("3.6e-04", "3.0e-05", "inputs have a relative error of 4.0e-09", False),
        ("3.6e-04", "1.6e-06", "inputs have a relative error of 2.0e-03", False),
        ("3.6e-04", "1.6e-06", "other inputs", False),
    ],
)
def test_the_rounding_of_another_processor_is_what_a_page_shows(
    effect: str, bound: str, inputs: str, is_shown: bool
) -> None:
    assert prints(SHOWN, EFFECT.format(effect, bound, inputs)) == is_shown


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        ("import probe", "core"),
        ("import msprobe.pytorch", "torch"),
        ("from torch.nn import Linear", "torch"),
        ("from msprobe import mindspore", "mindspore"),
        ("import torch\nimport mindtorch.torch_proxy", "msadapter"),
        ("import torch\nimport lightning", "integrations"),
        ("import torch\n```\n```python\nimport mindspore", "agreement"),
        ("import probe\n```\n```sh\nmsprobe run train.py 1", "torch"),
    ],
)
def test_the_environment_of_a_page_is_that_of_its_imports(code: str, environment: str, tmp_path: Path) -> None:
    assert pages.environment(page(tmp_path, f"```python\n{code}\n```\n")) == environment
