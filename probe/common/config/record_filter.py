"""The records that are wanted: ``list``, ``module``, ``api``, ``scope``, ``risk_level`` and ``data_mode``; patterns.

A call is asked about twice, when it begins and when it ends, because a range can open or close in between: a module
that straddles the border of a scope is kept with its inputs only or its outputs only.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache

from probe.common.dump import naming
from probe.common.dump.naming import BACKWARD, FORWARD


def api_pattern(wanted: str) -> Callable[[str], bool]:
    """Predicate over record names: true of the calls of a function that fits `wanted`.

    Args:
        wanted: ``softmax``, ``Functional.*``, ``Functional.relu.0``, or a record or item as the tool prints it.

    Example:
        >>> api_pattern("soft*")("Functional.softmax.0.forward")
        True
    """
    pattern = record_in(wanted) or wanted

    def fits(name: str) -> bool:
        if fnmatchcase(name, pattern):
            return True
        parsed = naming.parse(name)
        if parsed is None or parsed.is_module:
            return False
        numbered = f"{parsed.base}.{parsed.number}"
        return any(fnmatchcase(text, pattern) for text in (parsed.base, numbered, naming.function_name(name)))

    return fits


def module_pattern(wanted: str) -> Callable[[str], bool]:
    """Predicate over the bases of module records: true of a module that fits `wanted`, and of modules inside it.

    Args:
        wanted: a path or its end (``layers.1``, ``*.mlp``), a class (``*Norm``), or a record as the tool prints it.

    Example:
        >>> module_pattern("layers.1")("Module.model.layers.1.mlp.MLP")
        True
    """
    record = naming.parse(record_in(wanted))
    # By its path, since gradients of parameters of modules inside of it stand at no call in the tree.
    patterns = (wanted,) if record is None else (record.base, record.base.rpartition(".")[0])

    @cache
    def fits(base: str) -> bool:
        root, _, _ = base.partition(".")
        paths = module_paths(base)
        texts = (base, class_name(base), *paths, *(f"{root}.{path}" for path in paths))
        if any(fnmatchcase(text, pattern) for pattern in patterns for text in texts):
            return True
        return any(_ends(path, wanted) for path in paths)

    return fits


def record_in(text: str) -> str:
    """The record that `text` is the name of, or the name of an item of; empty if it is neither."""
    parts = text.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((name for name in names if naming.parse(name) is not None), "")


def module_paths(base: str) -> list[str]:
    """The paths of a module and of those around it: ``layers``, ``layers.1`` of ``Module.layers.1.Block``."""
    parts = base.split(".")[1:-1]
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def class_name(base: str) -> str:
    """The class of a module: ``Block`` of ``Module.layers.1.Block``."""
    return base.rpartition(".")[2]


def _ends(path: str, wanted: str) -> bool:
    # A number by itself would be one of every list.
    return not wanted.isdecimal() and path.endswith(f".{wanted}")


class RecordFilter:
    """The filters of one run.

    Args:
        names: Substrings, one of which must be in a record's name; empty for all.
        scope: First and last record name of the range, or empty.
        data_mode: The wanted parts of a record; empty for all.
        keep_inside: At level mix a module named in `names` keeps everything that runs inside it.
        patterns: The modules and functions that are wanted besides; ``None`` for all.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        scope: tuple[str, ...],
        data_mode: frozenset[str],
        keep_inside: bool,
        patterns: RecordPatterns | None = None,
    ) -> None:
        self._names = names
        self._first = scope[0] if scope else None
        self._last = scope[1] if scope else None
        self._keep_inside = keep_inside
        self._open = not scope
        self._held: set[str] = set()
        self._patterns = patterns
        self.first_met = self.last_met = False
        """True if the records that open and close the range were met in this step, the last one after the first."""
        self.everything = not names and not scope and patterns is None
        """No filter by name: neither `begin` nor `end` need be called."""
        directions = data_mode & {FORWARD, BACKWARD} or {FORWARD, BACKWARD}
        parts = data_mode & {"input", "output"} or {"input", "output"}
        self.forward = FORWARD in directions
        self.backward = BACKWARD in directions
        self.inputs = "input" in parts
        self.outputs = "output" in parts
        self.parameter_gradients = BACKWARD in directions or FORWARD not in data_mode

    def reset(self) -> None:
        """A new step begins."""
        self._open = self._first is None
        self._held.clear()
        if self._patterns is not None:
            self._patterns.reset()
        self.first_met = self.last_met = False

    def begin(self, name: str, is_module: bool) -> bool:
        """The call `name` begins; whether it is wanted at this point."""
        if name == self._first:
            self._open = self.first_met = True
        if not self._open:
            return False
        return self._wanted(name, is_module)

    def end(self, name: str) -> bool:
        """The call `name` ends; whether it is wanted at this point."""
        wanted = self._open and self._wanted(name, False)
        self._held.discard(name)
        if self._patterns is not None:
            self._patterns.leave(name)
        if name == self._last:
            self._open = False
            self.last_met = self.first_met
        return wanted

    def now(self, name: str) -> bool:
        """True if a record that has no duration, such as a parameter's gradient, is wanted."""
        return self._open and self._wanted(name, False)

    def possible(self, name: str) -> bool:
        """True if a record of this name could be wanted at some time, as far as its name decides it."""
        if self._patterns is not None and not self._patterns.possible(name):
            return False
        return not self._names or self._keep_inside or self._matches(name)

    def _wanted(self, name: str, holds: bool) -> bool:
        # Both have to see the call: each notes the modules inside of which everything is wanted.
        is_listed = self._listed(name, holds)
        return is_listed if self._patterns is None else self._patterns.fit(name, holds) and is_listed

    def _listed(self, name: str, holds: bool) -> bool:
        if not self._names:
            return True
        if self._matches(name):
            if holds and self._keep_inside:
                self._held.add(name)
            return True
        return bool(self._held)

    def _matches(self, name: str) -> bool:
        return any(text in name for text in self._names)


class RecordPatterns:
    """The modules, with everything inside, and the functions whose records are wanted.

    Args:
        module: A pattern for modules; ``None`` for all, and for functions outside of modules.
        api: A pattern for functions; ``None`` for all, and for modules.
    """

    def __init__(self, module: str | None, api: str | None) -> None:
        self._is_module = None if module is None else module_pattern(module)
        self._is_api = None if api is None else api_pattern(api)
        self._inside: set[str] = set()
        self._calls: set[tuple[str, int]] = set()
        """The calls of functions inside of these modules, whose backward may come when no module is open."""

    @classmethod
    def of(cls, module: str | None, api: str | None) -> RecordPatterns | None:
        """The patterns; ``None`` if none is given."""
        return None if module is None and api is None else cls(module, api)

    def reset(self) -> None:
        """A new step begins."""
        self._inside.clear()
        self._calls.clear()

    def fit(self, name: str, holds: bool) -> bool:
        """True if the record is wanted; with `holds` it is a module that begins."""
        if not self._is_in_module(name, holds):
            return False
        return self._is_api is None or self._is_api(name)

    def _is_in_module(self, name: str, holds: bool) -> bool:
        if self._is_module is None:
            return True
        parsed = naming.parse(name)
        if parsed is None:
            return bool(self._inside)
        if not parsed.is_module:
            call = parsed.base, parsed.number
            if parsed.direction == FORWARD and self._inside:
                self._calls.add(call)
            return call in self._calls
        if not self._is_module(parsed.base):
            return False
        if holds:
            self._inside.add(name)
        return True

    def leave(self, name: str) -> None:
        """The call `name` ends."""
        self._inside.discard(name)

    def possible(self, name: str) -> bool:
        """True if a record of this name could be wanted at some time."""
        if self._is_api is not None and not self._is_api(name):
            return False
        return self._is_in_module(name, False)


def wanted_by_risk(level: str, risk_class: str) -> bool:
    """True if an API of `risk_class` is collected at risk level `level`."""
    if level == "ALL":
        return True
    return risk_class == "core" if level == "CORE" else risk_class != "low"
