"""Settings by their meaning: the epsilon of a norm, the scale and the heads of an attention, the base of a rotation.

Two programs for one network have other names for these, and have them in other modules: one keeps the scale in the
attention, another in a module inside of it. A number belongs to the innermost module around it that has a counterpart,
and is compared with the numbers of the same meaning that belong to the counterpart. If one side has none there, its
program has the number elsewhere, or in its code; nothing is compared then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from probe.common.environment.modules import Buffer, ModuleSettings, Settings
from probe.common.numerics.error_bounds import is_number
from probe.common.numerics.formats import unit_roundoff
from probe.compare.sentences import Sentence, other_value

SAME = 1e-6
"""The relative difference of two numbers that are one, one of them rounded to float32. A guess, near its roundoff."""
_NO_PADDING = "valid"
"""The name that PyTorch's convolutions have for a padding of zeros."""
_INVERSE_FREQUENCIES = re.compile(r"inv_freqs?\Z")
_GEOMETRIC = 1e-2
"""The relative difference of the mean of frequencies from that of powers of one base; bfloat16 makes 4e-3."""

Pair = tuple[str, str]
"""The names of two modules that belong together: the part that all their records share, of target and golden side."""
Handled = Collection[tuple[int, str, str]]
"""Attributes that were compared with the same attribute of the counterpart: side, module and name."""


class Meaning(NamedTuple):
    """One thing that programs have other names for."""

    attribute: re.Pattern[str]
    """Its names."""
    module: re.Pattern[str] | None = None
    """Words in the path or the class of modules of which it is one, in lower case; any module if ``None``."""
    powers: Mapping[str, tuple[float, ...]] = {}
    """The powers of which it may be one, under names that are not it itself."""
    is_of_model: bool = False
    """True if the layers of a model share it, so that one program has it once and another one in each layer."""


_ATTENTION = re.compile(r"attention|attn|att\b|mha")
EPSILON = Meaning(re.compile(r"(?:\w+_)?eps(?:ilon)?\Z"))
SCALE = Meaning(
    re.compile(r"(?:softmax_|sm_|attn_|attention_|qk_)?scal(?:e|ing)\Z|(?:inv_)?norm_factor\Z|query_pre_attn_scalar\Z"),
    _ATTENTION,
    {**dict.fromkeys(("attn_scale", "norm_factor", "inv_norm_factor"), (1.0, -1.0)), "query_pre_attn_scalar": (-0.5,)},
)
HEADS = Meaning(re.compile(r"(?:num|n)_(?:attention_|attn_|query_|q_)?heads?\Z|nheads?\Z|heads\Z"), _ATTENTION)
ROTARY_BASE = Meaning(
    re.compile(r"(?:rope|rotary|rotary_emb|rope_freq)_(?:theta|base)\Z|base\Z|theta\Z"),
    re.compile(rf"rotary|(?:\b|_)rope|rope\b|{_ATTENTION.pattern}"),
    is_of_model=True,
)
_LARGEST_LOGARITHM = 700.0
"""The logarithm of about the largest float64."""
MEANINGS = (EPSILON, SCALE, HEADS, ROTARY_BASE)
"""The names are those of the programs in ``benchmarks/verdicts``, and of Megatron and vLLM."""


class _Number(NamedTuple):
    """A number with a meaning."""

    module: str
    name: str
    value: float
    tolerance: float = SAME
    powers: tuple[float, ...] = (1.0,)

    def is_same(self, other: _Number) -> bool:
        """True if two numbers are one."""
        if self.value <= 0 or other.value <= 0:
            return self.value == other.value
        tolerance = max(self.tolerance, other.tolerance)
        return any(
            math.isclose(mine * math.log(self.value), theirs * math.log(other.value), rel_tol=0.0, abs_tol=tolerance)
            for mine in self.powers
            for theirs in other.powers
        )


class OtherNumber(NamedTuple):
    """Two numbers of one meaning that differ."""

    pair: Pair
    """The modules that have them, or around those that have them; empty if these are the whole models."""
    name: str
    values: tuple[float, float]
    sentence: Sentence


def is_one_value(one: Any, other: Any) -> bool:
    """True if two plain values mean the same: equal numbers, but for rounding of those with a point; no padding."""
    if is_number(one) and is_number(other) and float in (type(one), type(other)):
        return math.isclose(one, other, rel_tol=SAME)
    if _NO_PADDING in (one, other):
        return _is_no_padding(one) and _is_no_padding(other)
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _is_no_padding(value: object) -> bool:
    sizes = value if isinstance(value, (list, tuple)) else [value]
    return value == _NO_PADDING or (len(sizes) > 0 and all(type(each) is int and each == 0 for each in sizes))


class MeantSettings:
    """Compares the settings of two programs by their meaning.

    Args:
        pairs: the modules that belong together.
        settings: the settings of the modules of target and golden side.
        handled: attributes that need not be compared.
    """

    def __init__(self, pairs: Sequence[Pair], settings: tuple[Settings, Settings], handled: Handled) -> None:
        self._settings = settings
        self._handled = handled
        self._pairs = [{_path(pair[side]): pair for pair in pairs} for side in (0, 1)]

    def found(self) -> Iterator[OtherNumber]:
        """The numbers that differ, in the order of the target's modules."""
        for meaning in MEANINGS:
            numbers = [self._numbers(meaning, side) for side in (0, 1)]
            if meaning.is_of_model:
                yield from self._of_models(*(list(chain.from_iterable(each.values())) for each in numbers))
                continue
            for pair, mine in numbers[0].items():
                theirs = list(numbers[1].get(pair, ()))
                others = [number for number in mine if not _taken_from(theirs, number)]
                for number, golden in zip(others, theirs):
                    yield self._other(pair, number, golden)

    def _of_models(self, mine: list[_Number], theirs: list[_Number]) -> Iterator[OtherNumber]:
        for number in mine if theirs else ():
            if not any(number.is_same(golden) for golden in theirs):
                yield self._other(self._around(number.module, 0), number, theirs[0])
        for golden in theirs if mine else ():
            if not any(golden.is_same(number) for number in mine):
                yield self._other(self._around(golden.module, 1), mine[0], golden)

    def _numbers(self, meaning: Meaning, side: int) -> dict[Pair, list[_Number]]:
        """The numbers of a meaning, by the modules with a counterpart that they belong to."""
        found: dict[Pair, list[_Number]] = {}
        for module, settings in self._settings[side].items():
            numbers = [
                each for each in _numbers(meaning, module, settings) if (side, module, each.name) not in self._handled
            ]
            if numbers:
                found.setdefault(self._around(module, side), []).extend(numbers)
        return found

    def _around(self, module: str, side: int) -> Pair:
        """The innermost module with a counterpart that is `module` or is around it."""
        path = _path(module)
        while path and path not in self._pairs[side]:
            path = path.rpartition(".")[0]
        return self._pairs[side].get(path, ("", ""))

    def _other(self, pair: Pair, number: _Number, golden: _Number) -> OtherNumber:
        name, own = _named(number, pair[0]), _named(golden, pair[1])
        found, called = other_value(name, _shown(number), _shown(golden)), "" if name == own else f" ({own})"
        return OtherNumber(
            pair, name, (number.value, golden.value), Sentence(f"{found.text}{called}", f"{found.labelled}{called}")
        )


def _named(number: _Number, around: str) -> str:
    """The attribute, with its path below the module around it."""
    path, outside = _path(number.module), _path(around)
    below = path[len(outside) + 1 :] if path.startswith(f"{outside}.") else "" if path == outside else path
    return f"{below}.{number.name}" if below else number.name


def _taken_from(theirs: list[_Number], number: _Number) -> bool:
    """True if `theirs` has the number; it is taken out then."""
    for index, golden in enumerate(theirs):
        if number.is_same(golden):
            del theirs[index]
            return True
    return False


def _numbers(meaning: Meaning, module: str, settings: ModuleSettings) -> Iterator[_Number]:
    if meaning.module is not None and not meaning.module.search(module.lower()):
        return
    for name, value in settings.values.items():
        if meaning.attribute.match(name) and is_number(value) and math.isfinite(value):
            yield _Number(module, name, value, powers=meaning.powers.get(name, (1.0,)))
    if meaning is ROTARY_BASE:
        for name, buffer in settings.buffers.items():
            base = rotary_base(buffer) if _INVERSE_FREQUENCIES.match(name) else None
            if base is not None:
                yield _Number(module, f"base of {name}", *base)


def rotary_base(frequencies: Buffer) -> tuple[float, float] | None:
    """The base of which inverse frequencies are powers, and its relative error; ``None`` if they are no such powers.

    Of n frequencies the k-th is ``base ** (-k / n)``.
    """
    if len(frequencies.shape) != 1 or len(frequencies.statistics) < 3 or frequencies.shape[0] < 2:
        return None
    number, (largest, least, mean) = frequencies.shape[0], frequencies.statistics[:3]
    if not all(map(is_number, (largest, least, mean))) or largest != 1 or not 0 < least < 1:
        return None
    ratio = least ** (1 / (number - 1))
    if ratio >= 1:
        return None  # Rounding leaves nothing of the powers.
    if not math.isclose(mean, (1 - ratio**number) / (1 - ratio) / number, rel_tol=_GEOMETRIC):
        return None  # They are scaled, as for longer contexts.
    tolerance = 4 * number / (number - 1) * max(unit_roundoff(frequencies.dtype), unit_roundoff("float32"))
    base = math.exp(min(-number * math.log(ratio), _LARGEST_LOGARITHM))
    return base, tolerance


def _path(module: str) -> str:
    """The name of a module without its class; of a model, the beginning of the names of its modules."""
    return module.rpartition(".")[0]


def _shown(number: _Number) -> float:
    """The number with the digits that are known of it."""
    if not isinstance(number.value, float):
        return number.value
    return float(f"{number.value:.{1 - math.floor(math.log10(number.tolerance))}g}")
