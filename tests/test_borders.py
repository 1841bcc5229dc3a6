"""Who may import whom: msprobe → api → backends → common, and api → compare → common.

The borders are read from the source, not from what happens to be imported, so an import inside a function or under
``TYPE_CHECKING`` counts like any other: a type of one framework in shared code is as wrong as a call.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for top in ("probe", "msprobe") for path in (ROOT / top).rglob("*.py"))
FRAMEWORKS = {"torch", "torch_npu", "mindspore", "mindtorch", "mindnlp"}

# Room -> rooms it may import from. "backends" are the files directly in that folder (protocol, loader);
# "backends.<name>" is one backend, reached by nobody but the loader, which imports it by name when it is needed.
MAY_IMPORT = {
    "common": {"common"},
    "compare": {"compare", "common"},
    "backends": {"backends", "common"},
    "api": {"api", "backends", "compare", "common"},
    "probe": {"probe", "api", "backends", "compare", "common"},
    "msprobe": {"msprobe", "probe", "api", "backends", "compare", "common"},
}
# Backend -> other backends whose public pieces it may compose.
MAY_COMPOSE = {"msadapter": {"backends.torch", "backends.mindspore"}}
MAY_USE_FRAMEWORK = {
    "backends.torch": {"torch", "torch_npu"},
    "backends.mindspore": {"mindspore"},
    "backends.msadapter": FRAMEWORKS,
    # Files ending .pt are torch's; compare/tensor_reading.py imports it when it meets the first one.
    "compare": {"torch"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in FILES}
PACKAGES = {module_name(path) for path in FILES if path.name == "__init__.py"}


def room(module: str) -> str:
    """Return the room of a module of ours: ``probe.backends.torch.hooks`` is in ``backends.torch``."""
    top, *rest = module.split(".")
    if top == "msprobe":
        return "msprobe"
    if rest[:1] == ["backends"] and f"probe.backends.{rest[1] if rest[1:] else ''}" in PACKAGES:
        return f"backends.{rest[1]}"
    return rest[0] if rest and rest[0] in MAY_IMPORT else "probe"


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield ``(line, module)`` of every import, wherever it stands; ``from a import b`` is ``a.b`` if that is ours."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".") if is_package else module.split(".")[:-1]
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield node.lineno, whole if whole in MODULES or alias.name.startswith("_") else base
        elif isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            name = node.args[0]
            if called in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    here = room(module)
    # A backend may import what all backends may, and itself.
    allowed = MAY_IMPORT.get(here) or MAY_IMPORT["backends"] | {here}
    composed = MAY_COMPOSE.get(here.rpartition(".")[2], set())
    found = []
    for line, target in imports(source, module, is_package):
        top = target.split(".")[0]
        if top in FRAMEWORKS and top not in MAY_USE_FRAMEWORK.get(here, set()):
            found.append(f"{module}:{line}: {here} imports the framework {top}")
        elif top in ("probe", "msprobe") and not target.startswith(("probe._version", "probe.__")):
            there = room(target)
            if there in composed:
                if any(part.startswith("_") for part in target.split(".")):
                    found.append(f"{module}:{line}: {here} may compose only public pieces of {there}, not {target}")
            elif there not in allowed:
                found.append(f"{module}:{line}: {here} imports {target}, which is in {there}")
    return found


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_stay_within_the_borders(path: Path) -> None:
    found = offences(path.read_text(encoding="utf-8"), module_name(path), path.name == "__init__.py")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("probe.collect.values", "import torch"),
        ("probe.collect.values", "def f():\n    from torch.nn import Module"),
        ("probe.collect.values", "if TYPE_CHECKING:\n    import mindspore.ops"),
        ("probe.collect.values", "importlib.import_module('torch_npu')"),
        ("probe.collect.values", "from ..api import debugger"),
        ("probe.collect.values", "from probe import backends"),
        ("probe.collect.values", "import probe"),
        ("probe.compare.read", "import probe.backends.protocol"),
        ("probe.compare.read", "import mindspore"),
        ("probe.backends.protocol", "from probe.api.save import save"),
        ("probe.backends.torch.hooks", "import mindspore"),
        ("probe.backends.torch.hooks", "from probe.compare import read"),
        ("probe.api.debugger", "import torch"),
        ("probe.api.debugger", "from probe.backends.torch import hooks"),
        ("probe.api.debugger", "import msprobe"),
        ("msprobe.pytorch", "import torch"),
    ],
)
def test_an_import_across_a_border_is_found(module: str, source: str) -> None:
    assert offences(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("probe.collect.values", "from . import errors\nfrom probe.common.log import info\nimport numpy"),
        ("probe.backends.torch.hooks", "import torch\nfrom ..protocol import Value\nfrom . import hooks"),
        ("probe.api.debugger", "from probe.backends import protocol\nfrom ..common import log\nimport probe.compare"),
        ("msprobe.pytorch", "from probe.api import debugger\nfrom probe._version import __version__"),
    ],
)
def test_an_import_within_the_borders_is_not_found(module: str, source: str) -> None:
    assert not offences(source, module)


LOGIC = (ast.Lambda, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)


def logic(source: str) -> list[int]:
    """Return the lines of everything that is not a docstring, an import or the binding of a name."""
    lines = []
    for node in ast.parse(source).body:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        plain = isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign))
        if not (text or plain) or any(isinstance(part, LOGIC) for part in ast.walk(node)):
            lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", [path for path in FILES if module_name(path).startswith("msprobe")], ids=module_name)
def test_msprobe_only_re_exports(path: Path) -> None:
    assert not logic(path.read_text(encoding="utf-8")), "msprobe/ holds names, the code behind them is in probe/"


@pytest.mark.parametrize("source", ["def f(): pass", "class A: pass", "if x:\n    y = 1", "f = lambda: 1"])
def test_logic_is_found(source: str) -> None:
    assert logic('"""Text."""\nfrom a import b\n__all__ = ["b"]\n' + source) == [4]


def test_no_file_names_a_path_of_one_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # New files count too, so that the mistake is found before it is committed.
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    path = re.compile(rb"(?<![\w.\-])/(?:(?:work|root)/|tmp/(?:lab|venv|house))")
    found = []
    for name in listed.stdout.decode().split("\0"):
        file = ROOT / name
        if name and file.is_file():
            lines = enumerate(file.read_bytes().splitlines(), 1)
            found += [f"{name}:{number}" for number, line in lines if path.search(line)]
    assert not found, "\n".join(found)
