"""The answer of a comparison of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Optional

from probe.checkpoint.stored import Tensor
from probe.common.errors import MsprobeException

IDENTICAL, ROUNDING, UNKNOWN, CLOSE, DIFFERENT, MISSING, SHAPE = (
    "identical",
    "rounding",
    "cannot be told",
    "close",
    "different",
    "missing",
    "shape",
)
VERDICTS = (IDENTICAL, ROUNDING, UNKNOWN, CLOSE, DIFFERENT, MISSING, SHAPE)
"""From the best to the worst."""
FINE = (IDENTICAL, ROUNDING)

Shape = "tuple[int, ...]"


@dataclass
class Parameter:
    """A parameter, or a part of one, of both checkpoints.

    Args:
        name: in the first checkpoint; empty if it has none.
        other_name: in the second.
        key: in the scheme of names, for layers and order.
        numbers: max_abs, max_rel, ulp_max, ulp_mean, l2, relative_l2, cos; none if values were not compared.
        how: what makes them equal or nearly so, or where they come from.
        harmless: True if it is no difference although one side lacks it.
    """

    name: str
    other_name: str
    key: str
    verdict: str
    numbers: dict[str, float] = field(default_factory=dict)
    how: str = ""
    shape: Optional[tuple[int, ...]] = None  # noqa: UP045 (evaluated, on Python 3.9 too)
    other_shape: Optional[tuple[int, ...]] = None  # noqa: UP045
    dtype: str = ""
    other_dtype: str = ""
    harmless: bool = False

    @property
    def is_fine(self) -> bool:
        return self.harmless or self.verdict in FINE

    @property
    def shown(self) -> str:
        """The name, of the other side if there is none."""
        return self.name or self.other_name


@dataclass
class Replica:
    """Copies of one parameter that have to be equal and are not."""

    path: str
    name: str
    ranks: str
    max_abs: float


@dataclass
class Setting:
    """A setting that differs; ``None`` with `is_set` False where a side has none."""

    name: str
    value: Any
    other_value: Any


@dataclass
class Report:
    """Everything that a comparison found."""

    path: str
    other_path: str
    format: str
    other_format: str
    parameters: list[Parameter]
    optimizer: list[Parameter] = field(default_factory=list)
    replicas: list[Replica] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    """Sentences on ranges of layers."""
    notes: list[str] = field(default_factory=list)

    @property
    def answer(self) -> str:
        """``identical``, ``rounding`` or ``different``, and of fingerprints ``cannot be told``."""
        everything = [*self.parameters, *self.optimizer]
        if self.replicas or not all(each.is_fine or each.verdict == UNKNOWN for each in everything):
            return DIFFERENT
        if not all(each.is_fine for each in everything):
            return UNKNOWN
        return ROUNDING if any(each.verdict == ROUNDING for each in everything) else IDENTICAL

    @property
    def found(self) -> bool:
        """True if something differs, or may."""
        return self.answer in (DIFFERENT, UNKNOWN)

    @property
    def why(self) -> str:
        """The answer in a sentence."""
        counts = count_verdicts([*self.parameters, *self.optimizer])
        total = sum(counts.values())
        if self.answer == IDENTICAL:
            whole = f"all {total} parameters have" if total > 1 else "the only parameter has"
            return f"{whole} the same bits{self._remarks()}"
        if self.answer == ROUNDING:
            rounded = next(each for each in self.parameters + self.optimizer if each.verdict == ROUNDING)
            verb = "differs" if counts[ROUNDING] == 1 else "differ"
            several = f"{counts[ROUNDING]} of {counted(total, 'parameter')} {verb}"
            return f"{several} by rounding alone ({rounded.how}){self._remarks()}"
        bad = [each for each in [*self.parameters, *self.optimizer] if not each.is_fine]
        if not bad:
            verb = "differs" if len(self.replicas) == 1 else "differ"
            several = f"{counted(len(self.replicas), 'replicated parameter')} {verb}"
            return f"{several} between ranks, first {self.replicas[0].name}"
        shown = ", ".join(f"{count} {verdict}" for verdict, count in count_verdicts(bad).items() if count)
        first = bad[0]
        reason = f" ({first.how})" if first.how else ""
        return f"{shown} of {counted(total, 'parameter')}; first {first.shown}: {first.verdict}{reason}"

    def _remarks(self) -> str:
        words = [part for each in self.parameters if each.verdict == IDENTICAL for part in each.how.split("; ") if part]
        stored = next((part for part in words if not part.startswith("paired")), "")
        if stored:
            return f"; some are stored in another way ({stored})"
        return f"; some were {words[0]}" if words else ""


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 parameter``, ``2 parameters``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def count_verdicts(parameters: Sequence[Parameter]) -> dict[str, int]:
    """The number of parameters of each verdict, worst last."""
    found = dict.fromkeys(VERDICTS, 0)
    for each in parameters:
        if not each.harmless or each.verdict != MISSING:
            found[each.verdict] += 1
    return found


# --- content


@dataclass
class Checkpoint:
    """Tensors and settings of one checkpoint."""

    path: str
    format: str
    """The format in words, for the answer."""
    weights: dict[str, Tensor] = field(default_factory=dict)
    """In the order of the file."""
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments, iteration, state of random generators: plain values under dotted names."""
    config: dict[str, Any] = field(default_factory=dict)
    """Description of the model: a ``config.json``, or the arguments of a training."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each thing that a reader should know."""
    replicas: list[tuple[str, str, Tensor, Tensor]] = field(default_factory=list)
    """Copies of one parameter on several ranks, which have to be equal: name, ranks, the tensors."""
    pieces: dict[str, list[Tensor]] = field(default_factory=dict)
    """The parts of ranks of which a parameter may have been joined, by its name."""

    joined_otherwise: dict[str, Tensor] = field(default_factory=dict)
    """Parameters of a fingerprint whose parts are joined along the other dimension, where either may be meant."""
    told_replicas: list[Replica] = field(default_factory=list)
    """Copies that differed when a fingerprint of them was made."""
    step: Optional[int] = None  # noqa: UP045
    """The step of a training, and the rank, that a fingerprint is of."""
    rank: Optional[int] = None  # noqa: UP045
    parts: dict[str, Any] = field(default_factory=dict)
    """The places that the parts of a rank have in parameters, in the fingerprint of a rank."""

    @property
    def container(self) -> str:
        """The format without the number of files."""
        return self.format.partition(",")[0]


# --- options


WEIGHTS = ("master", "model")


@dataclass(frozen=True)
class CheckpointOptions:
    """Options for reading and comparing checkpoints.

    Args:
        names: a YAML file of names of the first checkpoint and their counterparts in the second.
        tp: tensor-parallel ranks of a checkpoint that is a file for each rank and does not say so itself; 0: unknown.
        pp: its pipeline stages.
        heads: attention heads, and groups of heads that share keys and values; by default the checkpoints or the
            values say so.
        optimizer: compare the state of the optimizer as well.
        weights: which weights of ZeRO: ``master`` (float32, in the optimizer) or ``model``.

    Raises:
        MsprobeException: a value is not allowed.
    """

    names: str | None = None
    tp: int = 0
    pp: int = 1
    heads: tuple[int, int] | None = None
    optimizer: bool = False
    weights: str = "master"

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise MsprobeException(f"--weights is {self.weights!r}; allowed: {', '.join(WEIGHTS)}.")
        if self.tp < 0 or self.pp < 1:
            raise MsprobeException(f"--tp is {self.tp} and --pp is {self.pp}; allowed: numbers of 1 or more.")
        if self.heads is not None and (min(self.heads) < 1 or self.heads[0] % self.heads[1]):
            raise MsprobeException(
                f"--heads is {self.heads[0]} {self.heads[1]}; allowed: heads, and a number of groups that divides them."
            )
