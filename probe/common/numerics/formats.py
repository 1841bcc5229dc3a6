"""One table of number formats: a line for each dtype that a tensor of any framework can have.

Significands and exponents are those of IEEE 754-2019 (table 3.5), of the OCP 8-bit formats (OFP8, revision 1.0), of the
OCP Microscaling formats (MX, version 1.0: the 4-bit numbers and the scales), of the 8-bit formats without negative zero
(B. Noune et al., 8-bit Numerical Formats for Deep Neural Networks, arXiv:2206.02915), of HiFloat8 (Y. Luo et al.,
arXiv:2409.16626), and of what devices added: bfloat16 and tfloat32 have the exponents of float32 with 8 and 11 bits.

A new dtype is a new line of `TABLE`. Nothing here needs numpy; `probe.common.numerics.rounding` rounds arrays.
"""

from __future__ import annotations

import math
import sys
from enum import Enum
from functools import cache

import msgspec
from msgspec.structs import replace


class Kind(Enum):
    """The kind of a tensor's elements."""

    FLOAT = "floating-point numbers"
    COMPLEX = "pairs of floating-point numbers"
    INTEGER = "integers"
    BOOLEAN = "truth values"
    QUANTISED = "integers that stand for multiples of a scale"
    BITS = "bits without a meaning"
    TEXT = "texts"


class Format(msgspec.Struct, frozen=True):
    """A line of the table.

    The numbers of a complex format are those of its parts.
    """

    name: str
    """The name as PyTorch and numpy write it, without ``torch.``: the plain name."""
    kind: Kind
    bits: int
    """The bits of one number; 0 if that differs."""
    digits: int = 0
    """Bits of the significand, the hidden one included; 0 of what is not rounded."""
    least_exponent: int = 0
    """The smallest normal number is two to this power."""
    largest: float = 0
    """The largest finite number; an ``int`` of integers, so that none of its digits is lost."""
    lowest: float = 0
    """The smallest number: the negative of the largest one, or the smallest positive one where there is no sign."""
    has_infinity: bool = False
    has_nan: bool = False
    mindspore: str = ""
    """The name in dumps of MindSpore, which has not all of them."""
    aliases: tuple[str, ...] = ()
    """Names besides `name`, in lower case and without underscores."""
    part: str = ""
    """The format of the real and of the imaginary part of a complex number."""
    packed: int = 1
    """The number of numbers that one element of a tensor holds."""
    tapers: tuple[tuple[int, int], ...] = ()
    """Numbers far from 1 have fewer digits: absolute values of exponents, and the digits from there on."""
    subnormal_exponent: int | None = None
    """The smallest number above zero is two to this power, where that does not follow from the digits."""
    ties_away: bool = False
    """True if a number half-way between two is rounded away from zero, and not to the even one."""

    @property
    def rounds(self) -> bool:
        """True if its numbers have a rounding error."""
        return self.digits > 0

    @property
    def is_complex(self) -> bool:
        return self.kind is Kind.COMPLEX

    @property
    def unit(self) -> float:
        """The unit roundoff: half the distance from 1 to the next number; 0 of what is not rounded.

        One rounding to nearest changes a normal number at most by this part of it. Where the format tapers, this holds
        for numbers near 1.
        """
        return math.ldexp(1.0, -self.digits) if self.digits else 0.0

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.least_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above zero."""
        exponent = self.subnormal_exponent
        return math.ldexp(1.0, self.least_exponent + 1 - self.digits if exponent is None else exponent)

    @property
    def overflow(self) -> float:
        """The smallest number that rounds to infinity, or to what stands for it."""
        exponent = math.frexp(self.largest)[1] - 1
        # Of float64 that number is none of float64.
        return min(self.largest + math.ldexp(1.0, exponent - self.digits_at(exponent)), sys.float_info.max)

    @property
    def may_flush(self) -> bool:
        """True if devices give zero for its subnormal numbers.

        They lie below 1e-37 for formats with the exponents of float32, and many kernels set them to zero there. Those
        of float16 begin at 6e-5, where gradients are: a kernel that drops them loses what the user has.
        """
        return self.least_exponent <= -126

    def digits_at(self, exponent: int) -> int:
        """The digits of the numbers between two to this power and the next one."""
        return next((digits for least, digits in reversed(self.tapers) if abs(exponent) >= least), self.digits)


def _ieee(name: str, bits: int, digits: int, mindspore: str = "", *aliases: str) -> Format:
    """A format whose highest exponent means infinity and NaN."""
    least_exponent = 2 - (1 << (bits - digits - 1))
    largest = (2.0 - 2.0 ** (1 - digits)) * 2.0 ** (1 - least_exponent)
    return Format(
        name, Kind.FLOAT, bits, digits, least_exponent, largest, -largest, True, True, mindspore, aliases
    )  # fmt: skip


def _finite(
    name: str, bits: int, digits: int, least_exponent: int, largest: float, mindspore: str = "", has_nan: bool = True,
    lowest: float | None = None, packed: int = 1,
) -> Format:  # fmt: skip
    """A format without infinities."""
    return Format(
        name, Kind.FLOAT, bits, digits, least_exponent, largest, -largest if lowest is None else lowest, False, has_nan,
        mindspore, packed=packed,
    )  # fmt: skip


def _complex(name: str, part: Format, mindspore: str = "") -> Format:
    return replace(
        part, name=name, kind=Kind.COMPLEX, bits=2 * part.bits, mindspore=mindspore, aliases=(), part=part.name
    )  # fmt: skip


def _signed(bits: int, mindspore: str = "", *aliases: str, name: str = "int", kind: Kind = Kind.INTEGER) -> Format:
    half = 1 << (bits - 1)
    return Format(f"{name}{bits}", kind, bits, 0, 0, half - 1, -half, mindspore=mindspore, aliases=aliases)


def _unsigned(
    bits: int, mindspore: str = "", name: str = "", kind: Kind = Kind.INTEGER, packed: int = 1
) -> Format:  # fmt: skip
    return Format(name or f"uint{bits}", kind, bits, 0, 0, (1 << bits) - 1, 0, mindspore=mindspore, packed=packed)


def _bits(name: str, bits: int, packed: int = 1) -> Format:
    return Format(name, Kind.BITS, bits, packed=packed)


_FLOAT64 = _ieee("float64", 64, 53, "Float64", "double")
_FLOAT32 = _ieee("float32", 32, 24, "Float32", "float")
_FLOAT16 = _ieee("float16", 16, 11, "Float16", "half")
_BFLOAT16 = _ieee("bfloat16", 16, 8, "BFloat16")

TABLE = (
    _FLOAT64,
    _FLOAT32,
    _FLOAT16,
    _BFLOAT16,
    # No dtype of a tensor: what matrix units of GPUs round float32 to.
    _ieee("tfloat32", 19, 11),
    _ieee("float8_e5m2", 8, 3, "Float8E5M2"),
    _finite("float8_e4m3fn", 8, 4, -6, 448.0, "Float8E4M3FN"),
    _finite("float8_e5m2fnuz", 8, 3, -15, 57344.0),
    _finite("float8_e4m3fnuz", 8, 4, -7, 240.0),
    # Powers of two, with which blocks of shorter numbers are scaled: no zero, no sign, nothing below the smallest.
    _finite("float8_e8m0fnu", 8, 1, -127, 2.0**127, lowest=2.0**-127),
    _finite("float4_e2m1fn_x2", 4, 2, 0, 6.0, has_nan=False, packed=2),
    Format(
        "hifloat8", Kind.FLOAT, 8, 4, -15, 32768.0, -32768.0, True, True, "HiFloat8",
        tapers=((4, 3), (8, 2), (16, 1)), subnormal_exponent=-22, ties_away=True,
    ),
    _complex("complex128", _FLOAT64, "Complex128"),
    _complex("complex64", _FLOAT32, "Complex64"),
    _complex("complex32", _FLOAT16),
    _complex("bcomplex32", _BFLOAT16),
    _signed(64, "Int64", "long"),
    _signed(32, "Int32", "int"),
    _signed(16, "Int16", "short"),
    _signed(8, "Int8"),
    _signed(7),
    _signed(6),
    _signed(5),
    _signed(4, "Int4"),
    _signed(3),
    _signed(2),
    _signed(1),
    _unsigned(64, "UInt64"),
    _unsigned(32, "UInt32"),
    _unsigned(16, "UInt16"),
    _unsigned(8, "UInt8"),
    _unsigned(7),
    _unsigned(6),
    _unsigned(5),
    _unsigned(4),
    _unsigned(3),
    _unsigned(2),
    _unsigned(1),
    Format("bool", Kind.BOOLEAN, 8, 0, 0, 1, 0, mindspore="Bool"),
    _signed(32, name="qint", kind=Kind.QUANTISED),
    _signed(8, name="qint", kind=Kind.QUANTISED),
    _unsigned(8, name="quint8", kind=Kind.QUANTISED),
    _unsigned(4, name="quint4x2", kind=Kind.QUANTISED, packed=2),
    _unsigned(2, name="quint2x4", kind=Kind.QUANTISED, packed=4),
    _bits("bits16", 16),
    _bits("bits8", 8),
    _bits("bits4x2", 4, 2),
    _bits("bits2x4", 2, 4),
    _bits("bits1x8", 1, 8),
    Format("string", Kind.TEXT, 0, mindspore="String"),
)  # fmt: skip


def _key(name: str) -> str:
    return name.lower().replace("_", "")


FORMATS = {key: line for line in TABLE for key in (_key(line.name), *line.aliases)}
"""By their names in lower case and without underscores, and by their aliases."""


# --- by the name of a dtype, as any framework and any dump writes it


@cache
def format_of(dtype: str) -> Format | None:
    """The line of a dtype: of ``torch.float32``, ``Float32`` or ``float32``; ``None`` if it is not known."""
    return None if dtype.startswith("<") else FORMATS.get(_key(dtype.rpartition(".")[2]))


def rounding_format(dtype: str) -> Format | None:
    """The line of a dtype whose numbers are rounded, real or complex; ``None`` of any other."""
    found = format_of(dtype)
    return found if found is not None and found.rounds else None


@cache
def plain_name(dtype: str) -> str:
    """The plain name of a dtype, whoever wrote it: ``float32`` of ``torch.float32`` and of ``Float32``."""
    if dtype.startswith("<"):
        return dtype
    found = format_of(dtype)
    return _key(dtype.rpartition(".")[2]) if found is None else found.name


@cache
def unit_roundoff(dtype: str | None) -> float:
    """Half the distance from 1 to the next number of the dtype; 0 of one without rounding, or that is not known.

    It is 0, too, of formats that hold nothing but powers of two. They are scales and no approximations of numbers: in
    bounds of errors one unit of theirs would explain any difference.
    """
    found = format_of(dtype or "")
    return 0.0 if found is None or found.digits < 2 else found.unit


def nearest(value: float, to: Format) -> float:
    """The number of the format that is nearest to `value`, of two the even one; infinity where it is too large.

    For single numbers, of formats with the same digits everywhere; `rounded_to` of `rounding` has all formats.
    """
    if value == 0.0 or not math.isfinite(value):
        return value
    exponent = max(math.frexp(value)[1] - 1, to.least_exponent)
    step = math.ldexp(1.0, exponent + 1 - to.digits)
    found = round(value / step) * step
    return found if abs(found) <= to.largest else math.copysign(math.inf, value)


def is_float(dtype: str) -> bool:
    """True if the numbers of a dtype are real and rounded."""
    return _is(dtype, Kind.FLOAT)


def is_complex(dtype: str) -> bool:
    """True if the numbers of a dtype are complex."""
    return _is(dtype, Kind.COMPLEX)


def is_integer(dtype: str) -> bool:
    """True if a dtype holds whole numbers, of any width."""
    return _is(dtype, Kind.INTEGER)


def is_boolean(dtype: str) -> bool:
    """True if a dtype holds truth values."""
    return _is(dtype, Kind.BOOLEAN)


def rounds(dtype: str) -> bool:
    """True if the numbers of a dtype are rounded, real or complex: they can be moved a little, and differentiated."""
    return rounding_format(dtype) is not None


def is_half(dtype: str) -> bool:
    """True if it is a floating-point dtype of 16 bits, to which autocast casts."""
    found = format_of(dtype)
    return found is not None and found.kind is Kind.FLOAT and found.bits == 16


def _is(dtype: str, kind: Kind) -> bool:
    found = format_of(dtype)
    return found is not None and found.kind is kind
