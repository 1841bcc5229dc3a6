"""The rows of one family in one step, as columns, and what a rule says of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from probe.monitor.output.keys import inner_key

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class FamilyRows:
    """The rows of one family and one step, in the order in which they were made.

    A judge keeps its state by position. It is fastest if `names` and `micro` are the same objects in each step.
    """

    family: str
    """The family as in the names of files: ``actv``, ``grad_reduced``, ``exp_avg``."""
    names: tuple[str, ...]
    """Names of rows: ``blocks.0.qkv.output``, or the name of a parameter."""
    ops: tuple[str, ...]
    """Names of statistics: ``norm``, ``mean``."""
    values: Floats
    """Shape (rows, ops)."""
    micro: Optional[tuple[int, ...]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    """The micro step of each row, where the family has them."""
    stages: Optional[tuple[int, ...]] = None  # noqa: UP045
    """The chunk of the model that each row belongs to; 0 by default."""
    numel: Optional[Floats] = None  # noqa: UP045
    """The number of elements of each tensor, NaN if unknown."""
    judged: Optional[Flags] = None  # noqa: UP045
    """False for rows of integers, and for gradients that do not exist."""
    calls: Optional[Integers] = None  # noqa: UP045
    """The index of each row in the order of execution of the step; rows are counted family by family without it."""
    decimals: Optional[int] = None  # noqa: UP045
    """The number of decimals that values were rounded to, if they were."""
    states_after: bool = False
    """True of the second monitor, whose states of the optimizer are those that the step has made."""
    step: int = 0
    rank: int = 0

    def column(self, op: str) -> Floats | None:
        """The values of one statistic, or ``None``."""
        return self.values[:, self.ops.index(op)] if op in self.ops else None

    @property
    def key(self) -> tuple[tuple[str, ...], tuple[int, ...] | None, tuple[int, ...] | None]:
        """The names, micro steps and stages: two steps with equal keys have the same rows."""
        return self.names, self.micro, self.stages

    def row_keys(self) -> list[tuple[str, int, int]]:
        """Name, micro step and stage of each row."""
        none = (0,) * len(self.names)
        return list(zip(self.names, self.micro or none, self.stages or none))

    def chosen(self, rows: Sequence[int]) -> FamilyRows:
        """Some of the rows."""

        def taken(values: tuple[int, ...] | None) -> tuple[int, ...] | None:
            return None if values is None else tuple([values[row] for row in rows])

        at, names = np.array(rows, dtype=np.int64), tuple([self.names[row] for row in rows])
        return replace(
            self, names=names, values=self.values[at], micro=taken(self.micro), stages=taken(self.stages),
            numel=None if self.numel is None else self.numel[at],
            judged=None if self.judged is None else self.judged[at],
            calls=None if self.calls is None else self.calls[at],
        )  # fmt: skip

    def finding(
        self, row: int, op: str, rule: str, value: float, expected: str, why: str, step: int | None = None
    ) -> Finding:
        """A finding about one row.

        Args:
            step: The step in which it began; by default that of the rows.
        """
        micro, stage = 0 if self.micro is None else self.micro[row], 0 if self.stages is None else self.stages[row]
        key = inner_key(self.family, self.names[row], stage, None if self.micro is None else micro, self.rank)
        step, call = self.step if step is None else step, row if self.calls is None else int(self.calls[row])
        return Finding(
            self.names[row], self.family, step, self.rank, rule, op, float(value), expected, why, micro, stage, call,
            key, self.states_after,
        )  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One row that a rule reports. Its fields are the keys of the JSON of reports."""

    name: str
    family: str
    step: int
    rank: int
    rule: str
    op: str
    value: float
    expected: str
    """The range of values that the rule allows, as text."""
    why: str
    """One sentence."""
    micro_step: int = 0
    vpp_stage: int = 0
    call: int = 0
    """The index of the row in the order of execution of its step."""
    key: str = ""
    """The inner key of msProbe: ``0:blocks.0.qkv.input:0/rank0/actv``."""
    is_after: bool = field(default=False, compare=False)
    """See `FamilyRows.states_after`."""

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        del found["is_after"]
        return found

    def text(self) -> str:
        """The finding in one line."""
        where = f"step {self.step}, rank {self.rank}: {self.name or '(root module)'} ({self.family})"
        return f"{where}: {self.rule}: {self.why}"


class Judge(Protocol):
    """Rules, called once a step with the rows of that step. It never changes them."""

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        """Findings that begin in this step; a row that stays abnormal is reported once.

        Args:
            rows: The families of one rank and step in any order; steps come in ascending order.
        """
