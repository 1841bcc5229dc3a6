"""The records and items that ``msprobe show`` is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from typing import Optional

from probe.common.dump import naming
from probe.common.dump.nearest_names import nearest
from probe.common.dump.reading.call_tree import CallTree
from probe.common.dump.reading.conditions import Condition, condition
from probe.common.dump.reading.dump import Dump
from probe.common.dump.reading.records import Record

_EXAMPLES = 6


@dataclass(frozen=True)
class Wanted:
    """The records and items that are asked for."""

    module: Optional[str] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """A pattern for paths and classes of modules."""
    api: Optional[str] = None  # noqa: UP045
    """A pattern for names of functions."""
    fits: Optional[Condition] = None  # noqa: UP045
    """The condition for items; all, if none is given."""
    items: bool = False
    """True if each item has its line."""

    @classmethod
    def of(cls, module: str | None, api: str | None, where: str | None, items: bool = False) -> Wanted:
        """The records and items that the options of the command ask for.

        Raises:
            MsprobeException: `where` is no condition.
        """
        return cls(module, api, None if where is None else condition(where), items or where is not None)

    @property
    def everything(self) -> bool:
        """True if nothing is left out."""
        return self.module is None and self.api is None and self.fits is None and not self.items

    def records(self, dump: Dump) -> Iterator[Record]:
        """The records of `dump` that are asked for by their names."""
        if self.module is None and self.api is None:
            return iter(dump)
        is_named = self.named(dump)
        return (record for record in dump if is_named(record.name))

    def named(self, dump: Dump) -> Callable[[str], bool]:
        """Predicate that is true of calls of `dump` that are asked for by name."""
        is_inside = (lambda name: True) if self.module is None else _inside(self.module, dump.tree or CallTree())
        is_api = (lambda name: True) if self.api is None else _is_api(self.api)
        return lambda name: is_api(name) and is_inside(name)


def _is_api(wanted: str) -> Callable[[str], bool]:
    """Predicate that is true of calls of a function that `wanted` fits: a pattern, or a name as the tool prints it."""
    pattern = _record_in(wanted) or wanted

    def fits(name: str) -> bool:
        if fnmatchcase(name, pattern):
            return True
        parsed = naming.parse(name)
        if parsed is None or parsed.is_module:
            return False
        numbered = f"{parsed.base}.{parsed.number}"
        return any(fnmatchcase(text, pattern) for text in (parsed.base, numbered, naming.function_name(name)))

    return fits


def _inside(wanted: str, tree: CallTree) -> Callable[[str], bool]:
    """Predicate that is true of calls of a module that `wanted` fits, and of calls inside of one."""
    record = naming.parse(_record_in(wanted))
    # By its path, since gradients of parameters of modules inside of it stand at no call in the tree.
    patterns = (wanted,) if record is None else (record.base, record.base.rpartition(".")[0])

    @cache
    def fits(base: str) -> bool:
        root, _, _ = base.partition(".")
        paths = _paths(base)
        texts = (base, _class_name(base), *paths, *(f"{root}.{path}" for path in paths))
        if any(fnmatchcase(text, pattern) for pattern in patterns for text in texts):
            return True
        return any(_ends(path, wanted) for path in paths)

    def is_inside(name: str) -> bool:
        for call in (name, *tree.around(name)):
            parsed = naming.parse(call)
            if parsed is not None and parsed.is_module and fits(parsed.base):
                return True
            if call in naming.OUTSIDE_MODULES and fnmatchcase(call, wanted):
                return True
        return False

    return is_inside


def _record_in(text: str) -> str:
    """The record that `text` is the name of, or the name of an item of; empty where it is neither."""
    parts = text.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if naming.parse(name) is not None), "")


def _paths(base: str) -> list[str]:
    """The paths of a module and of those around it: ``layers``, ``layers.1`` of ``Module.layers.1.Block``."""
    parts = base.split(".")[1:-1]
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _class_name(base: str) -> str:
    return base.rpartition(".")[2]


def _ends(path: str, wanted: str) -> bool:
    # A number by itself would be one of every list.
    return not wanted.isdecimal() and path.endswith(f".{wanted}")


def names_there_are(dump: Dump, wanted: Wanted) -> str:
    """The end of a sentence: the names that there are, or those nearest to the ones asked for, when none fits."""
    names = list(dict.fromkeys((*(dump.tree or ()), *(record.name for record in dump))))
    for kind, text, alone in (
        ("module", wanted.module, Wanted(module=wanted.module)),
        ("function", wanted.api, Wanted(api=wanted.api)),
    ):
        if text is not None and not any(map(alone.named(dump), names)):
            return _known_of(kind, text, names)
    given = [part for part in (wanted.module, wanted.api, wanted.fits) if part is not None]
    return "; each option by itself may fit something" if len(given) > 1 else ""


def _known_of(kind: str, wanted: str, names: Iterable[str]) -> str:
    parsed = [one for one in map(naming.parse, names) if one is not None and one.is_module is (kind == "module")]
    bases = dict.fromkeys(one.base for one in parsed)
    if not bases:
        return f"; no {kind} was recorded"
    known = dict.fromkeys((_paths(base) or [base])[-1] if kind == "module" else base for base in bases)
    record = naming.parse(_record_in(wanted))
    text = wanted if record is None else record.base
    if kind == "module":
        spelled = {part: path for path in known for part in path.split(".") if not part.isdecimal()}
        spelled.update({name: name for base in bases for name in (_class_name(base), *_paths(base))})
        text = text.partition(".")[2] if naming.is_module(text) else text
    else:
        spelled = {name: base for base in bases for name in (base.rpartition(".")[2], base)}
    if near := dict.fromkeys(spelled[name] for name in nearest(text, spelled)):
        return f"; nearest {kind}s: {', '.join(near)}"
    return f"; {kind}s are {', '.join(islice(known, _EXAMPLES))}{', ...' if len(known) > _EXAMPLES else ''}"
