"""Who may import whom, as the rooms lie on each other; that no import goes round in a circle; how full a folder may be.

msprobe -> api -> features -> backends/protocol -> common. The borders are read from the source, not from what happens
to be imported, so an import inside a function or under ``TYPE_CHECKING`` counts like any other: a type of one framework
in shared code is as wrong as a call.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from probe.common.dump.frameworks import FRAMEWORKS as DATA

ROOT = Path(__file__).parents[1]
FILES = sorted(path for top in ("probe", "msprobe") for path in (ROOT / top).rglob("*.py"))
FRAMEWORKS = {"torch", "torch_npu", "mindspore", "mindtorch", "mindnlp"}
LIBRARIES = {"transformers", "accelerate", "lightning", "pytorch_lightning"}

LOWER = frozenset(("common.dump", "common.parallel", "common.report"))
MIDDLE = frozenset(("common.numerics", "common.operations"))
UPPER = frozenset(("common.align", "common.collectives", "common.config", "common.environment", "common.nonfinite"))
# The table of number formats and the definition of sketches import nothing of ours: the reader of dumps uses them, too.
LEAVES = frozenset(("common.numerics.formats", "common.numerics.sketch"))
COMMON = LOWER | MIDDLE | UPPER | LEAVES | {"common"}
ENGINES = frozenset(("calls", "shards"))
QUESTIONS = frozenset((
    "collect", "compare", "graph", "overflow", "precheck", "rerun", "runtime_checks", "monitor", "configcheck",
    "checkpoint", "rollout", "kernels",
))  # fmt: skip
WING = "msprobe_rules"
BACKENDS = frozenset(("backends.torch", "backends.mindspore", "backends.msadapter"))

# Room -> the other rooms it may import from. "common" are the files directly in that folder, "backends.protocol" and
# "backends.loader" are files. A backend is reached by nobody but the loader, which imports it by name when needed.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "common": frozenset(),
    **dict.fromkeys(LEAVES, frozenset()),
    **dict.fromkeys(LOWER, LEAVES | {"common"}),
    "common.operations": LOWER | LEAVES | {"common"},
    # What rounding adds to a result is a matter of the function.
    "common.numerics": LOWER | LEAVES | {"common", "common.operations"},
    **dict.fromkeys(UPPER, LOWER | MIDDLE | LEAVES | {"common"}),
    "backends": frozenset(),
    "backends.protocol": COMMON,
    "backends.loader": COMMON | {"backends.protocol"},
    "backends.shared": COMMON | {"backends.protocol"},
    **dict.fromkeys(BACKENDS, COMMON | {"backends.protocol", "backends.shared"}),
    **dict.fromkeys(ENGINES, COMMON | {"backends.protocol"}),
    **dict.fromkeys(QUESTIONS, COMMON | ENGINES | {"backends.protocol"}),
    # It stands beside the questions, and evaluates nothing.
    "collect": COMMON | {"backends.protocol"},
    "graph": COMMON | ENGINES | {"backends.protocol", "compare"},
    # It judges and writes as msProbe does; without it everything runs.
    WING: COMMON | ENGINES | (QUESTIONS - {"collect"}) | {"backends.protocol"},
    # `random_save` records with what backends share, which knows no framework.
    "api": COMMON | ENGINES | QUESTIONS | {"backends.protocol", "backends.loader", "backends.shared"},
    "probe": COMMON | ENGINES | QUESTIONS | {"api"},
    "msprobe": frozenset({"probe", "api"}),
}
# Whose rules judge is decided in one file, which imports those of msProbe inside of functions.
MAY_LOAD_WING = "probe.api.rules"
# Backend -> other backends whose public pieces it may compose.
MAY_COMPOSE = {"backends.msadapter": {"backends.torch", "backends.mindspore"}}
MAY_USE_FRAMEWORK = {
    "probe.backends.torch": {"torch", "torch_npu"},
    "probe.backends.torch.integrations": LIBRARIES,
    "probe.backends.mindspore": {"mindspore"},
    "probe.backends.msadapter": FRAMEWORKS,
    # Files ending .pt are torch's, which is imported when the first one is read.
    "probe.common.dump.reading": {"torch"},
}
# Question -> the one module of it that the questions built on it may import.
FACES = {"compare": "probe.compare.evidence"}
# Compiled parts, and the version.
PRIVATE_MODULES = {
    "_backward_tracker", "_calls", "_differences", "_digests", "_frames", "_function_calls", "_journal_frames",
    "_makers", "_reduction", "_records", "_plain_tensors", "_version",
}  # fmt: skip


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


MODULES = {module_name(path) for path in FILES}
PACKAGES = {module_name(path) for path in FILES if path.name == "__init__.py"}


def room(module: str) -> str:
    """Return the room of a module of ours: ``probe.backends.torch.hooks.api_hooks`` is in ``backends.torch``."""
    top, *rest = module.split(".")
    if top == "msprobe":
        return "msprobe"
    found = (".".join(rest[:length]) for length in (3, 2, 1))
    return next((name for name in found if name in MAY_IMPORT), "probe")


KINDS = (ast.Import, ast.ImportFrom, ast.Call, ast.Compare, ast.Attribute)


@pytest.fixture(autouse=True, scope="module")
def _without_collector() -> Iterator[None]:
    """Millions of nodes are made, and none of them is garbage: to look for some took half of the time."""
    gc.disable()
    yield
    gc.enable()


@cache
def nodes(source: str) -> list[ast.AST]:
    """Return the nodes of a source that tests look at."""
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, KINDS)]


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Yield ``(line, module)`` of every import, wherever it stands; ``from a import b`` is ``a.b`` if that is ours."""
    for node in nodes(source):
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
    """Return what `module` imports across a border, one text for each import."""
    here = room(module)
    composed = MAY_COMPOSE.get(here, set())
    frameworks = [names for prefix, names in MAY_USE_FRAMEWORK.items() if f"{module}.".startswith(f"{prefix}.")]
    found = []
    for line, target in imports(source, module, is_package):
        top, *_, last = target.split(".") if "." in target else (target, target)
        if top in FRAMEWORKS | LIBRARIES and not any(top in names for names in frameworks):
            found.append(f"{module}:{line}: {here} imports the framework {top}")
        elif top in ("probe", "msprobe"):
            there = room(target)
            private = last.startswith("_") and not last.startswith("__") and last not in PRIVATE_MODULES
            face = FACES.get(there) if here in QUESTIONS and here != there else None
            if private and target not in MODULES:
                found.append(f"{module}:{line}: {target} is private to its module")
            elif there == WING and module == MAY_LOAD_WING:
                continue
            elif face is not None and target != face:
                found.append(f"{module}:{line}: {target} is behind {face}, which is the face of {there}")
            elif there not in {here, *MAY_IMPORT[here], *composed} and not target.startswith("probe._version"):
                found.append(f"{module}:{line}: {here} imports {target}, which is in {there}")
    return found


def test_imports_stay_within_the_borders() -> None:
    found = [each for path in FILES for each in offences(text(path), module_name(path), path.name == "__init__.py")]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("probe.collect.session", "import torch"),
        ("probe.collect.session", "def f():\n    from torch.nn import Module"),
        ("probe.collect.session", "importlib.import_module('torch_npu')"),
        ("probe.collect.session", "from ..api import debugger"),
        ("probe.collect.session", "import probe"),
        ("probe.collect.session", "from probe.backends.shared import checksums"),
        ("probe.compare.runner", "import torch"),
        ("probe.overflow.analysis", "from probe.compare.runner import compare"),
        ("probe.graph.shown_runs", "if TYPE_CHECKING:\n    from probe.msprobe_rules.graph.rules import MsprobeGraph"),
        ("probe.api.cli", "from probe.msprobe_rules import anomalies"),
        ("probe.msprobe_rules.answers", "from probe.api import rules"),
        ("probe.graph.pairing", "from probe.compare.result import ComparisonResult"),
        ("probe.common.files", "from probe.common.dump import naming"),
        ("probe.common.dump.journal", "from probe.common.align.calls import Row"),
        ("probe.common.numerics.values", "from probe.common.align.calls import Row"),
        ("probe.common.align.layers", "from ...config import config"),
        ("probe.backends.protocol", "from probe.api.single_save import save"),
        ("probe.backends.loader", "from probe.backends.torch import adapter"),
        ("probe.backends.shared.patching", "from probe.backends.torch import adapter"),
        ("probe.backends.torch.hooks.api_hooks", "import transformers"),
        ("probe.backends.torch.hooks.api_hooks", "from probe.backends.mindspore import adapter"),
        ("probe.backends.msadapter.adapter", "from probe.backends.torch.adapter import _hidden"),
        ("probe.api.debugger", "from probe.collect.session import _Session"),
        ("msprobe.pytorch", "from probe.common import log"),
    ],
)
def test_an_import_across_a_border_is_found(module: str, source: str) -> None:
    assert offences(source, module)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("probe.collect.session", "from probe.common.log import info\nfrom ..backends import protocol\nimport numpy"),
        ("probe.common.dump.reading.tensor_reading", "import torch\nfrom .. import naming\nfrom ... import errors"),
        ("probe.common.dump.reading.selected_items", "from probe.common.numerics.formats import format_of"),
        ("probe.common.align.mapping", "from . import layer_names\nfrom probe.common.dump.reading.dump import Dump"),
        ("probe.common.callstack", "from probe.common import _frames\nfrom probe._version import __version__"),
        ("probe.graph.pairing", "from probe.compare.evidence import Evidence"),
        ("probe.msprobe_rules.answers", "from probe.overflow.overflow_report import Report"),
        ("probe.api.rules", "def f():\n    from probe.msprobe_rules import anomalies"),
        ("probe.backends.torch.hooks", "import torch\nfrom ..protocol import Value\nfrom ..shared import patching"),
        ("probe.backends.torch.integrations.lightning", "from lightning.pytorch import Callback"),
        ("probe.backends.msadapter.adapter", "from probe.backends.torch import adapter\nimport mindtorch"),
        ("probe.api.debugger", "from probe.backends import loader\nfrom ..common import log\nimport probe.compare"),
        ("msprobe.pytorch", "from probe.api import debugger\nfrom probe._version import __version__"),
    ],
)
def test_an_import_within_the_borders_is_not_found(module: str, source: str) -> None:
    assert not offences(source, module)


def test_the_rules_of_msprobe_are_loaded_lazily() -> None:
    """An import at the top of a file, which is not for types alone, would need the folder to be there."""
    path = ROOT / f"{MAY_LOAD_WING.replace('.', '/')}.py"
    tops = [node for node in ast.parse(text(path)).body if isinstance(node, ast.ImportFrom)]
    assert not [node.lineno for node in tops if (node.module or "").startswith(f"probe.{WING}")]


def test_no_modules_import_each_other() -> None:
    graph = {}
    for path in FILES:
        module = module_name(path)
        targets = imports(text(path), module, path.name == "__init__.py")
        graph[module] = {target for _, target in targets if target in MODULES}
    # A circle is an error, which names its modules.
    TopologicalSorter(graph).prepare()


IMPORTS = (ast.Import, ast.ImportFrom)
LOGIC = (ast.Lambda, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)


def logic(source: str) -> list[int]:
    """Return the lines of everything that is not a docstring, an import, also for types, or the binding of a name."""
    lines = []
    for node in ast.parse(source).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        plain = isinstance(node, (*IMPORTS, ast.Assign, ast.AnnAssign))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            plain = all(isinstance(each, IMPORTS) for each in (*node.body, *node.orelse))
        if not (docstring or plain) or any(isinstance(part, LOGIC) for part in ast.walk(node)):
            lines.append(node.lineno)
    return lines


# ``python -m msprobe`` runs a file, so that one has to call something.
NAMES_ONLY = [path for path in FILES if module_name(path).startswith("msprobe") and path.name != "__main__.py"]


def test_msprobe_only_re_exports() -> None:
    assert not [f"{path}: {found}" for path in NAMES_ONLY if (found := logic(text(path)))], "the code is in probe/"


@pytest.mark.parametrize(
    "source", ["def f(): pass", "class A: pass", "if x:\n    y = 1", "if TYPE_CHECKING:\n    y = 1", "f = lambda: 1"]
)
def test_logic_is_found(source: str) -> None:
    assert logic('"""Text."""\nfrom a import b\n__all__ = ["b"]\n' + source) == [4]
    assert not logic("if TYPE_CHECKING:\n    from a import c as c")


NAMES = frozenset(name for key, each in DATA.items() for name in (key, each.recorded, each.module))
"""Every name of a framework: of its backend, in dumps, and of the module that programs import."""


def framework_names(node: ast.AST) -> bool:
    """Whether an expression is the name of a framework, or a list of such; a constant is not looked up."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(map(framework_names, node.elts))
    return isinstance(node, ast.Constant) and node.value in NAMES


def compared_frameworks(source: str) -> list[str]:
    """Return the places that ask which framework there is: comparisons with a name, or of what is called a framework.

    ``"torch" in installed`` and ``framework not in KNOWN`` ask something else, and so does whether two are equal.
    """
    found = []
    for node in nodes(source):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        equal = any(isinstance(each, (ast.Eq, ast.NotEq)) for each in node.ops)
        named = any(re.search(r"(framework|backend)$", ast.unparse(each)) for each in sides)
        constant = any(re.fullmatch(r"(\w+\.)*_?[A-Z][A-Z_]*", ast.unparse(each)) for each in sides)
        if any(map(framework_names, sides if equal else node.comparators)) or (equal and named and constant):
            found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def test_only_a_backend_asks_which_framework_it_is() -> None:
    # A difference is data in `probe.common.dump.frameworks`, a line of the operations, or a method of the adapter.
    asking = {str(path): compared_frameworks(text(path)) for path in FILES if "backends" not in path.parts}
    assert not {path: found for path, found in asking.items() if found}


@pytest.mark.parametrize(
    "source",
    ['if dump.framework == "mindspore": pass', 'x = 1 if "torch" != name else 2', "a = framework == MINDSPORE",
     'b = framework in ("mindspore", "mindtorch")', "c = golden.framework != names.PYTORCH"],
)  # fmt: skip
def test_a_question_which_framework_it_is_is_found(source: str) -> None:
    assert len(compared_frameworks(source)) == 1


@pytest.mark.parametrize(
    "source",
    ['"torch" in sys.modules', "framework not in BACKEND_OF", "mine.framework == theirs.framework", 'x == "mix"'],
)
def test_another_question_is_not_found(source: str) -> None:
    assert not compared_frameworks(source)


INTERNALS = {"torch": "probe.backends.torch.internals", "mindspore": "probe.backends.mindspore.internals"}
ALIASES = {"ms": "mindspore", "torch": "torch", "mindspore": "mindspore"}


def private_parts(source: str, module: str) -> list[str]:
    """Return what a file of a backend reaches for that its framework does not promise, one text for each."""
    found = []
    for node in nodes(source):
        parts = []
        if isinstance(node, ast.Attribute):
            path = ast.unparse(node)
            parts = path.split(".") if re.fullmatch(r"[\w.]+", path) else []
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = [*node.module.split("."), *(alias.name for alias in node.names)]
        framework = ALIASES.get(parts[0], "") if parts else ""
        private = any(re.match("_[a-zA-Z]", part) for part in parts[1:])
        if private and module != INTERNALS.get(framework, module):
            found.append(f"{module}:{getattr(node, 'lineno', 0)}: {'.'.join(parts)}")
    return found


def test_private_parts_of_a_framework_are_looked_up_in_one_place() -> None:
    ours = [path for path in FILES if "backends" in path.parts]
    assert not [found for path in ours for found in private_parts(text(path), module_name(path))]


@pytest.mark.parametrize(
    "source",
    ["import torch\ntorch._C._get_tracing_state()", "from torch.jit import _script", "ms._no_grad()",
     "from mindspore._c_expression import TensorPy"],
)  # fmt: skip
def test_a_private_part_is_found(source: str) -> None:
    assert private_parts(source, "probe.backends.torch.hooks.api_calls")
    assert not private_parts("torch.nn.Linear\nimport torch\ntorch.__version__", "probe.backends.torch.hooks.api_calls")


def test_the_compiled_parts_name_nothing_private_of_python() -> None:
    # A release that has it no more leaves out the part without a word: `_PyMethodWrapper_Type` is in no header of 3.13.
    sources = sorted((ROOT / "probe").rglob("*.[ch]"))
    assert not [(path.name, found) for path in sources for found in re.findall(r"\b_Py[A-Z_]\w*", text(path))]


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
