"""The modules around calls, as far as call stacks tell, for dumps whose level records no modules.

A stack goes through the framework's own code wherever a module is called, and the line before that names the module:
``hidden = self.up_proj(x)``. What is restored has no values, and its names are those of these lines.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Optional

from probe.common.dump.frameworks import of_dump
from probe.common.dump.naming import BACKWARD, FORWARD, api_name, module_base, module_name, parse
from probe.common.dump.stack_text import parse_frame

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
