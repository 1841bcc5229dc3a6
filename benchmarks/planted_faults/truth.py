"""The names under which the planted calls stand in the dumps."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planted_faults.faults import Call, Fault


class NotThere(Exception):
    """A fault is described by a call that the run did not make."""


@dataclass(frozen=True)
class Truth:
    """The records at fault in one run."""

    module: str
    calls: list[str]
    after: list[str]
    """Calls that get another value for want of a call, or by one too many."""

    def places(self, level: str) -> list[str]:
        """The records that a dump at `level` can show to be at fault, or that are as good to name."""
        calls = [*self.calls, *self.after]
        return {"L0": [self.module], "L1": calls, "mix": [self.module, *calls]}[level]


def truth(fault: Fault, dump: Path, clean: bool = False) -> Truth:
    """What is at fault in a run that has the fault unless it is `clean`.

    Args:
        dump: the folder of the run's dump at level mix, which says which calls a module made. At the other levels they
            have the same names.

    Raises:
        NotThere: the description of the fault does not fit the network.
    """
    tree = json.loads((dump / "construct.json").read_text(encoding="utf-8"))
    calls, after = (fault.clean, fault.clean_after) if clean else (fault.faulty, fault.faulty_after)
    records, following = ([_record(tree, call) for call in some] for some in (calls, after))
    return Truth(_module(tree, fault.module), records, following)


def _module(tree: dict[str, Any], path: str) -> str:
    head = f"Module.{path}."
    for name in tree:
        # What follows the path is the class, which has no dot.
        if name.startswith(head) and name.endswith(".forward.0") and name[len(head) :].count(".") == 2:
            return name
    raise NotThere(path)


def _record(tree: dict[str, Any], call: Call) -> str:
    inside = _module(tree, call.path)
    seen: Counter[str] = Counter()
    for name, parent in tree.items():
        above = parent[0] if isinstance(parent, list) else parent
        if above == inside and name.endswith(".forward"):
            api = name.rsplit(".", 2)[0]
            if api == call.api and seen[api] == call.number:
                return name
            seen[api] += 1
    raise NotThere(f"{call.api}, number {call.number} in {inside}, which calls {dict(seen)}")
