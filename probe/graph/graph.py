"""The calls of one dump as a tree in order of execution, held as arrays: a node is an index.

A node is a call of a module, a call of an API, a record of gradients, a group of APIs that no module made, or the root.
The order is that in which calls ended, so that a module follows everything inside of it: the nodes below node ``i`` are
``firsts[i]`` to ``i - 1``, and the root is the last one.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Optional

from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import (
    BACKWARD,
    FORWARD,
    OUTSIDE_MODULES,
    PARAMETERS_GRAD,
    api_name,
    is_backward,
    is_gradients,
    is_module,
    module_base,
    module_name,
    parse,
    unused,
)
from probe.common.dump.reading.dump import Dump
from probe.common.dump.stack_text import parse_frame
from probe.common.errors import MsprobeException

# Between a line that calls a module and the module's own code.
_CALLS_A_MODULE = re.compile(r"[/\\](torch[/\\]nn[/\\]modules[/\\]module|mindspore[/\\]nn[/\\]cell)\.py, line ")
_OF_A_LAYER = re.compile(r"[/\\](torch|mindspore)[/\\]nn[/\\]")
_ATTRIBUTE = re.compile(r"\bself\.([A-Za-z_][\w.]*)(?:\[[^\]]*\])?\(")
_VARIABLE = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?:\[[^\]]*\])?\(")

Tree = dict[str, Optional[str]]


class _Site(NamedTuple):
    """A place where a module is called."""

    line: str
    file: str
    """The file of the module's own code: one line may call several modules, as that of ``Sequential`` does."""


class _Stack(NamedTuple):
    sites: tuple[_Site, ...]
    """The places where modules are called, outermost first."""
    line: str
    """The line that makes the call itself."""


class _Module:
    """A call of a module that is running."""

    def __init__(self, site: _Site, name: str) -> None:
        self.site = site
        self.name = name
        self.first: _Site | str = ""
        """The first call site inside of it that was seen."""
        self.last: _Site | str = ""


def restored_tree(records: Iterable[str], stacks: Mapping[str, Sequence[str]], framework: str) -> Tree:
    """Every call and the one it ran inside; empty where no stack goes through a module.

    Args:
        records: the names of the calls in their order.
        stacks: the stack of each forward call, innermost line first.
        framework: the framework that made them.
    """
    return _Restoring(stacks, of_dump(framework).module_root).tree(records)


class _Restoring:
    def __init__(self, stacks: Mapping[str, Sequence[str]], root: str) -> None:
        self._stacks = stacks
        self._root = root
        self._known: dict[int, _Stack] = {}
        self._calls: Counter[str] = Counter()
        self._running: list[_Module] = []
        self._found: Tree = {}

    def tree(self, records: Iterable[str]) -> Tree:
        for name in records:
            parsed = parse(name)
            if parsed is None or parsed.is_module or parsed.direction == FORWARD:
                self._found[name] = self._around(name, self._stack(name))
                continue
            around = self._found.get(api_name(parsed.base, parsed.number, FORWARD))
            self._found[name] = self._backward(around)
        return self._found if self._calls else {}

    def _stack(self, name: str) -> _Stack:
        frames = self._stacks.get(name, ())
        found = self._known.get(id(frames))
        if found is None:
            self._known[id(frames)] = found = _Stack(_sites(frames), frames[0] if frames else "")
        return found

    def _around(self, name: str, stack: _Stack) -> str | None:
        """The module around a call; those that have not been running are begun."""
        function = name.split(".")[1] if "." in name else name
        leaf = f"{stack.line} {function}"
        inner_sites: list[_Site | str] = [*stack.sites[1:], leaf]
        kept = 0
        for module, site, inner_site in zip(self._running, stack.sites, inner_sites):
            # A module that begins again at its first line is called again.
            repeats = inner_site != module.last or (inner_site == leaf and _OF_A_LAYER.search(stack.line) is not None)
            if module.site != site or (inner_site == module.first and repeats):
                break
            kept += 1
        del self._running[kept:]
        for site in stack.sites[kept:]:
            self._begin(site)
        for module, inner_site in zip(self._running, inner_sites):
            module.first = module.first or inner_site
            module.last = inner_site
        return self._running[-1].name if self._running else None

    def _begin(self, site: _Site) -> None:
        around = self._running[-1].name if self._running else None
        above = [] if around is None else around.split(".")[1:-3]
        base = module_base(self._root, ".".join([*above, _called(site.line)]), self._root)
        name = module_name(base, self._calls[base], FORWARD)
        self._calls[base] += 1
        self._found[name] = around
        self._running.append(_Module(site, name))

    def _backward(self, around: str | None) -> str | None:
        """The backward of a module, and those around it, where they are not there yet."""
        if around is None:
            return None
        parsed = parse(around)
        assert parsed is not None
        name = module_name(parsed.base, parsed.number, BACKWARD)
        if name not in self._found:
            above = self._backward(self._found[around])
            self._found[name] = above
        return name


def _sites(frames: Sequence[str]) -> tuple[_Site, ...]:
    found = []
    inner = before = ""
    was_inside = False
    for frame in frames:
        is_inside = _CALLS_A_MODULE.search(frame) is not None
        if is_inside and not was_inside:
            inner = before
        elif was_inside and not is_inside:
            called = parse_frame(inner)
            found.append(_Site(frame, inner if called is None else called.path))
        before, was_inside = frame, is_inside
    return tuple(reversed(found))


def _called(line: str) -> str:
    """The name that a line calls; all names if it calls several modules."""
    code = line.partition("\n")[2]
    names = _ATTRIBUTE.findall(code) or _VARIABLE.findall(code)[:1]
    return "|".join(dict.fromkeys(names)) or "module"


# --- graph


MODULE, API, GROUP = 0, 1, 9
"""The kinds of nodes; the numbers are those of the drop-in database. Gradients of parameters and the root are modules.
"""

ROOT = "DefaultModel"
_GROUP = "Apis_Between_Modules"
_MOST_IN_CHAINS = 1 << 28
"""The characters of names in a file that writes with each node those around it; a guess: modules 500 deep have them."""
_EXAMPLES = 3
"""The number of missing calls that are named in notes."""


@dataclass(frozen=True)
class Graph:
    """The nodes of one dump. All sequences have one entry for each node, in order of execution."""

    path: str
    """The file that was read."""
    names: list[str]
    """Each occurs once."""
    parents: array[int]
    """-1 of the root."""
    firsts: array[int]
    """The first node of the subtree, which is the node itself where nothing is inside of it."""
    depths: array[int]
    """0 of the root."""
    kinds: bytearray
    has_record: bytearray
    """1 where the dump has values of the call; 0 of groups, the root, and calls that were not recorded."""
    micro_steps: array[int]
    """The number of the micro step that a node belongs to; all 0 where there is one."""
    index: dict[str, int]
    """The node of each name."""
    framework: str = "pytorch"
    task: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    level: Optional[str] = None  # noqa: UP045
    step: Optional[int] = None  # noqa: UP045
    rank: Optional[int] = None  # noqa: UP045
    has_tree: bool = True
    """True if construct.json says what is inside of what, so that calls without values are there, too."""
    ending: str = ""
    """The reason why what ran last is missing, as the end of a sentence; empty where nothing is."""
    notes: list[str] = field(default_factory=list)
    """The parts that are missing or could not be placed, a sentence each."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def children(self) -> list[list[int]]:
        """The nodes directly inside of each node, in order of execution."""
        found: list[list[int]] = [[] for _ in self.names]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(node)
        return found

    def above(self, node: int) -> Iterator[int]:
        """The nodes around a node, innermost first; the root is the last."""
        parent = self.parents[node]
        while parent >= 0:
            yield parent
            parent = self.parents[parent]


def refuse_long_chains(what: str, names: Sequence[str], parents: Sequence[int]) -> None:
    """Refuse to write files in which each node has the names of all nodes around it, where these are too many.

    The name of a module has its whole path, so that they grow with the cube of the depth.

    Args:
        what: the format, as the message names it.
        names, parents: of nodes whose parents follow them.

    Raises:
        MsprobeException: the names together are longer than a file should be.
    """
    sizes = [0] * len(names)
    for node in range(len(names) - 2, -1, -1):
        sizes[node] = sizes[parents[node]] + len(names[node])
    if sum(sizes) > _MOST_IN_CHAINS:
        size = f"{sum(sizes) / 1e9:.1f} GB for this depth"
        raise MsprobeException(f"{what} names with each node all nodes around it: {size}. Use the format html or json.")


def graph_of(dump: Dump) -> Graph:
    """The graph of a dump.

    Raises:
        DumpFormatError: calls are inside of themselves, or of each other in a circle; the message names one.
    """
    dump.refuse_circles()
    records = [record.name for record in dump]
    notes: list[str] = []
    if dump.ending:
        notes.append(f"{dump.path} {dump.ending}: calls after its last record are missing.")
    notes += dump.missing
    tree: Mapping[str, str | None] = dump.tree or {}
    if not tree and dump.level != "debug":
        # Modules that were recorded have names, and those that stacks name would be others.
        has_modules = any(map(is_module, records))
        tree = {} if has_modules else restored_tree(records, dump.stacks or {}, dump.framework)
        what = "their call stacks give the modules around them" if tree else "they are listed in order"
        is_lost = has_modules or dump.level in ("L0", "mix")
        why = f"construct.json is {'missing' if dump.tree is None else 'empty'}" if is_lost else f"level {dump.level}"
        advice = "Keep that file next to it" if is_lost else "Collect with level mix"
        notes.append(f"{dump.path} has no tree of calls ({why}): {what}. {advice} to see modules with their values.")
    parents = _with_corrected_parents(_with_optimizer(tree or dict.fromkeys(records)), records, notes)
    _attach_orphans(parents, notes)
    return _ordered(dump, parents, set(records), notes, is_flat=not tree)


def graph_beside(target: Dump, graph: Graph, golden: Dump) -> Graph:
    """The graph of a golden run, which has the nodes of the target's graph if both made the same calls.

    Args:
        target, graph: the target and its graph.
        golden: the dump of the golden run.

    Raises:
        DumpFormatError: calls are inside of themselves, or of each other in a circle; the message names one.
    """
    if not _has_same_calls(target, graph, golden):
        return graph_of(golden)
    return replace(
        graph,
        path=golden.path,
        micro_steps=array("i", bytes(4 * len(graph))),
        framework=golden.framework,
        task=golden.task,
        level=golden.level,
        step=golden.step,
        rank=golden.rank,
        notes=[],
    )


def _has_same_calls(target: Dump, graph: Graph, golden: Dump) -> bool:
    """True if two dumps, of which nothing is missing, say the same of what is inside of what."""
    if graph.notes or not graph.has_tree or not golden.tree or golden.ending or golden.missing:
        return False
    return (
        [record.name for record in target] == [record.name for record in golden]
        and target.tree == golden.tree
        and list(target.tree or ()) == list(golden.tree)
    )


def _with_optimizer(tree: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """The tree with clipping and the optimizer as calls of their own, also where they are named as parents alone."""
    if not any(name not in tree for name in OUTSIDE_MODULES.intersection(filter(None, tree.values()))):
        return tree
    found: dict[str, str | None] = {}
    for name, parent in tree.items():
        if parent in OUTSIDE_MODULES and parent not in tree:
            found.setdefault(parent, None)
        found[name] = parent
    return found


def _attach_orphans(parents: dict[str, str | None], notes: list[str]) -> None:
    """Put what is inside of a call that is not there at the top."""
    orphans: dict[str, list[str]] = {}
    for name, parent in parents.items():
        if parent is not None and parent not in parents:
            orphans.setdefault(parent, []).append(name)
    lost = list(orphans.items())
    for _, names in lost:
        parents.update(dict.fromkeys(names))
    for parent, names in lost[:_EXAMPLES]:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        be = "are" if more else "is"
        notes.append(f"{names[0]}{more} {be} inside of {parent}, which is not in construct.json: shown at the top.")
    if len(lost) > _EXAMPLES:
        number = sum(len(names) for _, names in lost[_EXAMPLES:])
        notes.append(f"{number} more are inside of calls that are not in construct.json: shown at the top.")


def _with_corrected_parents(
    tree: Mapping[str, str | None], records: Iterable[str], notes: list[str]
) -> dict[str, str | None]:
    """The call that each call is shown inside of; those of the backward pass mirror those of the forward pass."""
    parents = dict(tree)
    without = [name for name in records if name not in parents]
    backwards = _last_backwards(parents) if without else {}
    missing = []
    for name in without:
        parents[name] = _owner_of_gradients(name, backwards)
        if not is_gradients(name):
            missing.append(name)
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        notes.append(f"{missing[0]}{more} in the dump and not in construct.json: shown at the top.")
    for name, parent in parents.items():
        if not is_backward(name):
            continue
        if is_module(name):
            parents[name] = _mirrored(tree.get(_in_direction(name, _BACKWARD, _FORWARD)), parents)
        elif parent is None and name.endswith(_BACKWARD):
            parents[name] = _mirrored(tree.get(name[: -len(_BACKWARD)] + _FORWARD), parents)
    return parents


_FORWARD, _BACKWARD = f".{FORWARD}", f".{BACKWARD}"


def _in_direction(module: str, direction: str, other: str) -> str:
    """The record of the same call of a module in the other direction; empty of what is none in this one."""
    base, _, number = module.rpartition(".")
    return f"{base.removesuffix(direction)}{other}.{number}" if base.endswith(direction) else ""


def _mirrored(around: str | None, known: Container[str]) -> str | None:
    """The backward record of the module around a forward call, where there is one."""
    backward = _in_direction(around, _FORWARD, _BACKWARD) if around and is_module(around) else ""
    return backward if backward in known else None


def _last_backwards(names: Iterable[str]) -> dict[str, str]:
    """The last backward record of each module."""
    found: dict[str, tuple[int, str]] = {}
    for name in names:
        parsed = parse(name) if is_backward(name) and is_module(name) else None
        if parsed is not None:
            found[parsed.base] = max(found.get(parsed.base, (-1, "")), (parsed.number, name))
    return {base: name for base, (_, name) in found.items()}


def _owner_of_gradients(name: str, backwards: Mapping[str, str]) -> str | None:
    # In older files a record's gradients have no number.
    return backwards.get(name.rpartition(f".{PARAMETERS_GRAD}")[0]) if is_gradients(name) else None


def _ordered(
    dump: Dump, parents: Mapping[str, str | None], records: set[str], notes: list[str], is_flat: bool
) -> Graph:
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    top = children.get(None, [])
    groups: set[str] = set()
    if not is_flat:
        top = _grouped(top, children, groups, parents)
    root = unused(ROOT, parents)
    children[root] = top
    names: list[str] = []
    # Each before what is inside of it, and the last first: the other way round that is the order in which calls ended.
    ahead = [root]
    while ahead:
        name = ahead.pop()
        names.append(name)
        ahead += children.get(name, ())
    names.reverse()
    shown = {**parents, **dict.fromkeys(top, root)}
    for group in groups:
        shown.update(dict.fromkeys(children[group], group))
    return _arrays(dump, names, shown, records, groups, notes)


def _grouped(
    top: list[str], children: dict[str | None, list[str]], groups: set[str], used: Collection[str]
) -> list[str]:
    """The nodes at the top, with each run of two or more calls of APIs as one group."""
    found: list[str] = []
    run: list[str] = []
    for name in [*top, None]:
        if name is not None and not is_module(name) and name not in OUTSIDE_MODULES:
            run.append(name)
            continue
        if len(run) > 1:
            group = unused(f"{_GROUP}.{len(groups)}", used)
            groups.add(group)
            children[group] = run
            found.append(group)
        else:
            found += run
        run = []
        found += [] if name is None else [name]
    return found


def _arrays(
    dump: Dump,
    names: list[str],
    parent_of: Mapping[str, str | None],
    records: set[str],
    groups: set[str],
    notes: list[str],
) -> Graph:
    index = {name: node for node, name in enumerate(names)}
    parents = array("i", [index[parent_of[name] or ""] for name in names[:-1]])
    parents.append(-1)
    firsts = array("i", range(len(names)))
    for node, parent in enumerate(parents):
        if parent >= 0 and firsts[node] < firsts[parent]:
            firsts[parent] = firsts[node]
    depths = array("i", bytes(4 * len(names)))
    for node in range(len(names) - 2, -1, -1):
        depths[node] = depths[parents[node]] + 1
    kinds = bytearray([MODULE if is_module(name) else API for name in names])
    kinds[-1] = MODULE
    for name in groups | (OUTSIDE_MODULES & index.keys()):
        kinds[index[name]] = GROUP
    return Graph(
        dump.path,
        names,
        parents,
        firsts,
        depths,
        kinds,
        bytearray([name in records for name in names]),
        array("i", bytes(4 * len(names))),
        index,
        dump.framework,
        dump.task,
        dump.level,
        dump.step,
        dump.rank,
        bool(dump.tree),
        dump.ending,
        notes,
    )
