"""The records and items that ``msprobe show`` is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from typing import Optional

from probe.common.config.name_patterns import api_pattern, class_name, module_paths, module_pattern, record_in
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
    makers: bool = False
    """True if items say what made them."""

    @classmethod
    def of(cls, module: str | None, api: str | None, where: str | None, items: bool = False) -> Wanted:
        """The records and items that the options of the command ask for.

        Raises:
            MsprobeException: `where` is no condition.
        """
        return cls(module, api, None if where is None else condition(where), items or where is not None, items)

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
        is_api = (lambda name: True) if self.api is None else api_pattern(self.api)
        return lambda name: is_api(name) and is_inside(name)


def _inside(wanted: str, tree: CallTree) -> Callable[[str], bool]:
    """Predicate that is true of calls of a module that `wanted` fits, and of calls inside of one."""
    fits = module_pattern(wanted)

    def is_inside(name: str) -> bool:
        for call in (name, *tree.around(name)):
            parsed = naming.parse(call)
            if parsed is not None and parsed.is_module and fits(parsed.base):
                return True
            if call in naming.OUTSIDE_MODULES and fnmatchcase(call, wanted):
                return True
        return False

    return is_inside


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
    return "; each option alone may match something" if len(given) > 1 else ""


def _known_of(kind: str, wanted: str, names: Iterable[str]) -> str:
    parsed = [one for one in map(naming.parse, names) if one is not None and one.is_module is (kind == "module")]
    bases = dict.fromkeys(one.base for one in parsed)
    if not bases:
        return f"; no {kind} was recorded"
    known = dict.fromkeys((module_paths(base) or [base])[-1] if kind == "module" else base for base in bases)
    record = naming.parse(record_in(wanted))
    text = wanted if record is None else record.base
    if kind == "module":
        spelled = {part: path for path in known for part in path.split(".") if not part.isdecimal()}
        spelled.update({name: name for base in bases for name in (class_name(base), *module_paths(base))})
        text = text.partition(".")[2] if naming.is_module(text) else text
    else:
        spelled = {name: base for base in bases for name in (base.rpartition(".")[2], base)}
    if near := dict.fromkeys(spelled[name] for name in nearest(text, spelled)):
        return f"; nearest {kind}s: {', '.join(near)}"
    return f"; {kind}s are {', '.join(islice(known, _EXAMPLES))}{', ...' if len(known) > _EXAMPLES else ''}"
