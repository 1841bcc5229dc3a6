"""The rows of one family in one step, as columns, and what a rule says of one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Optional, Protocol

import numpy as np
from numpy.typing import NDArray

from probe.common.report.trends import COURSE, GRADIENT_DIRECTION, START
from probe.monitor.tables import inner_key

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
    sketches: Optional[Floats] = None  # noqa: UP045
    """Shape (rows, 64): the sums of sketches, where the family has them; NaN of a row without."""
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
            sketches=None if self.sketches is None else self.sketches[at],
        )  # fmt: skip

    def aligned(self, other: FamilyRows) -> tuple[FamilyRows, FamilyRows]:
        """The rows that both have, in the order of these."""
        if self.key == other.key:
            return self, other
        index = {key: row for row, key in enumerate(other.row_keys())}
        pairs = [(row, index[key]) for row, key in enumerate(self.row_keys()) if key in index]
        return self.chosen([row for row, _ in pairs]), other.chosen([row for _, row in pairs])

    def inner_key(self, row: int) -> str:
        """The inner key of msProbe for one row; see `Finding.key`."""
        stage, micro = 0 if self.stages is None else self.stages[row], None if self.micro is None else self.micro[row]
        return inner_key(self.family, self.names[row], stage, micro, self.rank)

    def finding(
        self, row: int, op: str, rule: str, value: float, expected: str, why: str, step: int | None = None
    ) -> Finding:
        """A finding about one row.

        Args:
            step: The step in which it began; by default that of the rows.
        """
        micro, stage = 0 if self.micro is None else self.micro[row], 0 if self.stages is None else self.stages[row]
        step, call = self.step if step is None else step, row if self.calls is None else int(self.calls[row])
        return Finding(
            self.names[row], self.family, step, self.rank, rule, op, float(value), expected, why, micro, stage, call,
            self.inner_key(row), self.states_after,
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
        # Not by `asdict`, which copies each text: a step can have hundreds of findings while a training runs.
        return {name: getattr(self, name) for name in _FIELDS}

    def text(self) -> str:
        """The finding in one line."""
        where = f"step {self.step}, rank {self.rank}: {shown_name(self.name)} ({self.family})"
        return f"{where}: {self.rule}: {self.why}"


_FIELDS = tuple(each.name for each in fields(Finding) if each.compare)
"""The keys of the JSON of a finding."""


def shown_name(name: str) -> str:
    """The name of a row for people: the module around all others has none, and its rows are called ``.output``."""
    return f"(root module){name}" if not name or name.startswith(".") else name


class Judge(Protocol):
    """Rules, called once a step with the rows of that step. It never changes them."""

    def judge(self, rows: Sequence[FamilyRows]) -> list[Finding]:
        """Findings that begin in this step; a row that stays abnormal is reported once.

        Args:
            rows: The families of one rank and step in any order; steps come in ascending order.
        """


# --- families


class Kind(Enum):
    """The kind of tensor that rows describe; thresholds depend on it."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"
    WEIGHT = "weight"
    STATE = "optimizer state"
    OTHER = "other"


_BEFORE_STEP, _IN_STEP = "STATE", "STATE AFTER"
_KINDS = {
    # A step of the first monitor in the order of execution: the state and the weights it starts from, ...
    COURSE: Kind.OTHER,
    START: Kind.OTHER,
    "param_origin": Kind.WEIGHT,
    _BEFORE_STEP: Kind.STATE,
    "linear_hook": Kind.OTHER,
    # ... the pass, ...
    "actv": Kind.ACTIVATION,
    "attention_hook": Kind.OTHER,
    "moe_router_logit_hook": Kind.OTHER,
    "moe_router_weight_hook": Kind.OTHER,
    "actv_grad": Kind.GRADIENT,
    "grad_unreduced": Kind.GRADIENT,
    "comm": Kind.OTHER,
    # ... and the update.
    "grad_reduced": Kind.GRADIENT,
    "grad_sign": Kind.OTHER,
    GRADIENT_DIRECTION: Kind.OTHER,
    "other": Kind.OTHER,
    _IN_STEP: Kind.STATE,
    "update": Kind.OTHER,
    "param_updated": Kind.WEIGHT,
}
"""Families; kind `OTHER` is not of tensors but of agreement of directions, spectral norms, entropies, collectives."""
_POSITIONS = {name: position for position, name in enumerate(_KINDS)}
_TENSOR = re.compile(r"\.(?:grad_)?(?:input|output)(?:[._]?\d)*$")


def kind_of(family: str) -> Kind:
    """The kind of a family; a name that is not known is the state of an optimizer (``momentum_buffer``)."""
    return _KINDS.get(family, Kind.STATE)


def position(family: str, states_after: bool = False) -> int:
    """The position of a family in the order of execution of a step.

    Args:
        family: The family.
        states_after: The state of the optimizer is recorded after the update (`TrainerMonitorV2`) and contains the
            step. By default it is recorded before, and was made by the step before.
    """
    return _POSITIONS.get(family, _POSITIONS[_IN_STEP if states_after else _BEFORE_STEP])


def in_execution_order(rows: Iterable[FamilyRows]) -> list[FamilyRows]:
    """Families in the order of execution."""
    return sorted(rows, key=lambda each: position(each.family, each.states_after))


def execution_order(found: Finding) -> tuple[int, int, int, int, int]:
    """The key by which findings are sorted, so that the row that began comes first.

    Micro steps run one after the other, each forward and backward; weights and state come before them, and what is made
    of all of them together comes after them.
    """
    at = position(found.family, found.is_after)
    in_micro = found.micro_step if position("actv") <= at <= position("actv_grad") else at
    group = 0 if at < position("actv") else 1 if at <= position("actv_grad") else 2
    return found.step, group, in_micro, at, found.call


def module_of(name: str) -> str:
    """The module of a row of activations.

    Example:
        >>> module_of("blocks.0.qkv.output_1")
        'blocks.0.qkv'
    """
    return _TENSOR.sub("", name)
