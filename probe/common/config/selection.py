"""The records that are wanted: ``list``, ``scope``, ``risk_level`` and ``data_mode``.

A call is asked about twice, when it begins and when it ends, because a range can open or close in between: a module
that straddles the border of a scope is kept with its inputs only or its outputs only.
"""

from __future__ import annotations

from probe.common.dump.naming import BACKWARD, FORWARD


class RecordFilter:
    """The filters of one run.

    Args:
        names: Substrings, one of which must be in a record's name; empty for all.
        scope: First and last record name of the range, or empty.
        data_mode: The wanted parts of a record; empty for all.
        keep_inside: At level mix a module named in `names` keeps everything that runs inside it.
    """

    def __init__(
        self, names: tuple[str, ...], scope: tuple[str, ...], data_mode: frozenset[str], keep_inside: bool
    ) -> None:
        self._names = names
        self._first = scope[0] if scope else None
        self._last = scope[1] if scope else None
        self._keep_inside = keep_inside
        self._open = not scope
        self._held: set[str] = set()
        self.first_met = self.last_met = False
        """True if the records that open and close the range were met in this step, the last one after the first."""
        self.everything = not names and not scope
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
        self.first_met = self.last_met = False

    def begin(self, name: str, is_module: bool) -> bool:
        """The call `name` begins; whether it is wanted at this point."""
        if name == self._first:
            self._open = self.first_met = True
        if not self._open:
            return False
        return self._listed(name, is_module)

    def end(self, name: str) -> bool:
        """The call `name` ends; whether it is wanted at this point."""
        wanted = self._open and self._listed(name, False)
        self._held.discard(name)
        if name == self._last:
            self._open = False
            self.last_met = self.first_met
        return wanted

    def now(self, name: str) -> bool:
        """True if a record that has no duration, such as a parameter's gradient, is wanted."""
        return self._open and self._listed(name, False)

    def possible(self, name: str) -> bool:
        """True if a record of this name could be wanted at some time, as far as ``list`` decides it."""
        return not self._names or self._keep_inside or self._matches(name)

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


def wanted_by_risk(level: str, risk_class: str) -> bool:
    """True if an API of `risk_class` is collected at risk level `level`."""
    if level == "ALL":
        return True
    return risk_class == "core" if level == "CORE" else risk_class != "low"
