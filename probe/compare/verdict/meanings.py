"""Settings of modules to which programs give other names: an epsilon, the scale of an attention, its heads."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from probe.common.environment.environment_file import ModuleSettings
from probe.common.numerics.error_bounds import is_number
from probe.compare.verdict.two_runs import TwoRuns, base_of

SAME = 1e-6
"""The relative difference of two numbers that are one, one of them rounded to float32. A guess, near its roundoff."""


class Meaning(NamedTuple):
    """One thing that programs have other names for."""

    attribute: re.Pattern[str]
    """The names of the attribute in the programs."""
    module: re.Pattern[str] | None = None
    """Words in the path or the class of modules of which it is one, in lower case; any module if ``None``."""
    powers: Mapping[str, tuple[float, ...]] = {}
    """The powers of it that a number may be, by its name; under ``""`` those of other names."""


_ATTENTION = re.compile(r"attention|attn|att\b|mha")
MEANINGS = (
    Meaning(re.compile(r"(?:\w+_)?eps(?:ilon)?\Z")),
    Meaning(
        re.compile(
            r"(?:\w+_)?(?:scale|scaling|multiplier|mul|norm_factor|temperature)\Z|query_pre_attn_scalar\Z"
        ),
        _ATTENTION,
        # Programs multiply by one number, or divide by its inverse.
        {"": (1.0, -1.0), "query_pre_attn_scalar": (-0.5,)},
    ),
    Meaning(re.compile(r"(?:num|n)_(?:attention_|attn_|query_|q_)?heads?\Z|nheads?\Z|heads\Z"), _ATTENTION),
)  # fmt: skip
"""The names are those of the programs in ``benchmarks/verdicts``, and of Megatron and vLLM."""


class Number(NamedTuple):
    """A number with a meaning."""

    module: str
    name: str
    value: float
    powers: tuple[float, ...] = (1.0,)

    def is_same(self, other: Number) -> bool:
        """True if one of the powers of each is the same number."""
        if self.value <= 0 or other.value <= 0:
            return self.value == other.value
        return any(
            math.isclose(mine * math.log(self.value), theirs * math.log(other.value), rel_tol=0.0, abs_tol=SAME)
            for mine in self.powers
            for theirs in other.powers
        )

    def path_in(self, around: str) -> str:
        """The attribute, with its path below the module `around`."""
        path, outside = self.module.rpartition(".")[0], around.rpartition(".")[0]
        below = path[len(outside) + 1 :] if path.startswith(f"{outside}.") else "" if path == outside else path
        return f"{below}.{self.name}" if below else self.name


def other_numbers(runs: TwoRuns, bases: tuple[str, str]) -> Iterator[tuple[Number, Number]]:
    """Numbers of one meaning that differ between two modules, or in what is inside of them without a counterpart.

    Args:
        runs: both runs.
        bases: the beginnings of the modules' records: ``Module.layers.0.norm.RMSNorm``.
    """
    for meaning in MEANINGS:
        mine, theirs = (list(_numbers(meaning, runs, base, side)) for side, base in enumerate(bases))
        others = [number for number in mine if not _taken_from(theirs, number)]
        yield from zip(others, theirs)


def _numbers(meaning: Meaning, runs: TwoRuns, base: str, side: int) -> Iterator[Number]:
    """The numbers of a meaning that belong to a module: its own, and of those in it that have no counterpart."""
    if "numbers" not in runs.worked_out:
        runs.worked_out["numbers"] = tuple(_by_owner(runs, each) for each in (0, 1))
    of_side: dict[tuple[int, str], list[Number]] = runs.worked_out["numbers"][side]
    yield from of_side.get((MEANINGS.index(meaning), base.rpartition(".")[0]), ())


def _by_owner(runs: TwoRuns, side: int) -> dict[tuple[int, str], list[Number]]:
    """The numbers of all modules by meaning and by the path of the innermost module around with a counterpart."""
    records = (((call.record, call.golden_record)[side], call) for call in runs.calls)
    paired = {base_of(record).rpartition(".")[0] for record, call in records if call.is_module and call.is_of_both}
    found: dict[tuple[int, str], list[Number]] = {}
    for module, settings in runs.settings[side].items():
        owner = module.rpartition(".")[0]
        while owner and owner not in paired:
            owner = owner.rpartition(".")[0]
        for index, meaning in enumerate(MEANINGS):
            if meaning.module is None or meaning.module.search(module.lower()):
                found.setdefault((index, owner), []).extend(_numbers_of(meaning, module, settings))
    return found


def _numbers_of(meaning: Meaning, module: str, settings: ModuleSettings) -> Iterator[Number]:
    for name, value in settings.values.items():
        if meaning.attribute.match(name) and is_number(value) and math.isfinite(value):
            yield Number(module, name, value, powers=meaning.powers.get(name, meaning.powers.get("", (1.0,))))


def _taken_from(theirs: list[Number], number: Number) -> bool:
    """True if `theirs` has the number; it is taken out then."""
    for index, golden in enumerate(theirs):
        if number.is_same(golden):
            del theirs[index]
            return True
    return False
