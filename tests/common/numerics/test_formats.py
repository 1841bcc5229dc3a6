"""The table of number formats, held against numpy and against all bits of short formats; a new line is enough."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from made_dumps import call, tensor_of, write

from probe.calls.verdict import Subject, judge
from probe.common.dump.reading.dump import read
from probe.common.numerics import formats
from probe.common.numerics.formats import (
    TABLE,
    Format,
    Kind,
    format_of,
    plain_name,
    rounding_format,
    unit_roundoff,
)
from probe.common.numerics.rounding import rounded_to, rounding_scale, spacing
from probe.compare.comparison import compare_dumps
from probe.overflow.find_overflow import find_overflow

IN_NUMPY = [line for line in TABLE if line.bits in (8, 16, 32, 64, 128) and line.name in np.sctypeDict]
FLOATS = [line for line in IN_NUMPY if line.rounds]
INTEGERS = [line for line in IN_NUMPY if line.kind is Kind.INTEGER]


def named(lines: list[Format]) -> dict[str, Any]:
    return {"argvalues": lines, "ids": [line.name for line in lines]}


# --- the numbers of short formats, decoded from all their bits as the formats are published


def every_number(
    exponent: int, significand: int, bias: int, nan: Iterable[int], infinite: int | None = None
) -> list[float]:
    """The finite numbers of a format with sign, in ascending order.

    Args:
        exponent, significand: widths in bits.
        nan: codes without the sign bit that are no number.
        infinite: the code of infinity; those above are no numbers.
    """
    found = []
    for code in range(1 << (exponent + significand)):
        if code in nan or (infinite is not None and code >= infinite):
            continue
        power, fraction = code >> significand, code & ((1 << significand) - 1)
        hidden = 1 if power else 0
        found.append(math.ldexp(hidden + fraction / (1 << significand), max(power, 1) - bias))
    return sorted({-each for each in found} | set(found))


def every_hifloat8() -> list[float]:
    """The finite numbers of HiFloat8: a prefix says how wide the exponent is (arXiv:2409.16626)."""
    found = {0.0}
    for code in range(128):
        bits = f"{code:07b}"
        if bits.startswith("0000"):
            if code:
                found.add(2.0 ** (code - 23))
            continue
        prefix = next(each for each in ("11", "10", "01", "001", "0001") if bits.startswith(each))
        width = {"11": 4, "10": 3, "01": 2, "001": 1, "0001": 0}[prefix]
        exponent, fraction = bits[len(prefix) : len(prefix) + width], bits[len(prefix) + width :]
        # A sign, and a number whose highest bit is not written.
        power = 0 if not width else int("1" + exponent[1:], 2) * (-1 if exponent[0] == "1" else 1)
        if code != 0b1101111:  # infinity
            found.add(math.ldexp(1 + int(fraction, 2) / (1 << len(fraction)), power))
    return sorted({-each for each in found} | found)


SHORT = {
    "float8_e5m2": every_number(5, 2, 15, (), infinite=0x7C),
    "float8_e4m3fn": every_number(4, 3, 7, (0x7F,)),
    "float8_e5m2fnuz": every_number(5, 2, 16, ()),
    "float8_e4m3fnuz": every_number(4, 3, 8, ()),
    "float4_e2m1fn_x2": every_number(2, 1, 1, ()),
    "float8_e8m0fnu": [2.0 ** (code - 127) for code in range(255)],
    "hifloat8": every_hifloat8(),
}
"""By the names of the formats."""


# --- what the table says of them


@pytest.mark.parametrize("line", **named(FLOATS))
def test_floating_point_formats_are_those_of_numpy(line: Format) -> None:
    known = np.finfo(line.name)
    assert np.dtype(line.name).itemsize * 8 == line.bits
    assert (line.unit, line.largest, line.lowest) == (known.eps / 2, known.max, known.min)
    assert (line.smallest_normal, line.smallest_subnormal) == (known.smallest_normal, known.smallest_subnormal)
    assert (line.digits, line.least_exponent) == (known.nmant + 1, known.minexp)
    assert line.has_infinity and line.has_nan


@pytest.mark.parametrize("line", **named(INTEGERS))
def test_integers_are_those_of_numpy(line: Format) -> None:
    known = np.iinfo(line.name)
    assert (line.bits, line.largest, line.lowest) == (known.bits, known.max, known.min)
    assert not line.rounds and line.unit == 0


@pytest.mark.parametrize("name", SHORT)
def test_short_formats_are_those_of_all_their_bits(name: str) -> None:
    line, numbers = format_of(name), np.array(SHORT[name])
    assert line is not None
    above = numbers[numbers > 0]
    assert (line.largest, line.lowest, line.smallest_subnormal) == (numbers[-1], numbers[0], above[0])
    assert line.unit == (above[above > 1][0] - 1) / 2
    # Down to the smallest normal number neighbours are as near as the digits say.
    for number, after in zip(above, above[1:]):
        exponent = int(np.frexp(number)[1]) - 1
        if number >= line.smallest_normal:
            assert after - number == 2.0 ** (exponent + 1 - line.digits_at(exponent))


@pytest.mark.parametrize("line", **named(list(TABLE)))
def test_a_dtype_has_one_plain_name_whoever_wrote_it(line: Format) -> None:
    written = [line.name, f"torch.{line.name}", *line.aliases, *([line.mindspore] if line.mindspore else [])]
    assert {plain_name(each) for each in written} == {line.name}
    assert all(format_of(each) is line for each in written)


def test_the_table_needs_no_numpy() -> None:
    code = "import sys, probe.common.numerics.formats; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- rounding


@pytest.mark.parametrize("name", SHORT)
def test_rounding_finds_the_nearest_number(name: str) -> None:
    line, numbers = format_of(name), np.array(SHORT[name])
    assert line is not None
    draws = np.random.default_rng(28)
    between = (numbers[1:] + numbers[:-1]) / 2
    tried = np.concatenate([
        numbers, between, np.nextafter(between, np.inf), np.nextafter(between, -np.inf),
        draws.uniform(numbers[0], numbers[-1], 1000), np.exp2(draws.uniform(-20, 15, 1000)),
    ])  # fmt: skip
    tried = tried[(tried >= numbers[0]) & (tried <= numbers[-1])]
    after = np.minimum(np.searchsorted(numbers, tried), len(numbers) - 1)
    before = np.maximum(after - 1, 0)
    up, down = numbers[after] - tried, tried - numbers[before]
    # Between two, the one whose last bit is zero, which every second of them is, or the one further from zero.
    is_even = (len(numbers) - 1 - after) % 2 == (0 if _ends_even(line) else 1)
    prefers_up = tried > 0 if line.ties_away else np.ones(len(tried), bool) if line.digits == 1 else is_even
    expected = np.where((up < down) | ((up == down) & prefers_up), numbers[after], numbers[before])
    assert np.array_equal(rounded_to(tried, line), expected)


def _ends_even(line: Format) -> bool:
    """Whether the last bit of the largest number is zero."""
    return (line.largest / 2.0 ** (math.frexp(line.largest)[1] - line.digits)) % 2 == 0


@pytest.mark.parametrize("line", **named([line for line in TABLE if line.kind is Kind.FLOAT]))
def test_what_is_beyond_the_largest_number_becomes_what_the_format_has(line: Format) -> None:
    beyond = np.inf if line.has_infinity else np.nan if line.has_nan else line.largest
    given = np.array([np.inf, 1e300 if line.bits < 64 else np.inf, np.nan])
    found = rounded_to(given, line)
    assert np.array_equal(found, [beyond, beyond, np.nan], equal_nan=True)
    if line.bits < 64:
        edge = np.array([np.nextafter(line.overflow, 0), line.overflow])
        assert np.array_equal(rounded_to(edge, line)[:1], [line.largest])
        assert rounded_to(np.array([line.largest]), line) == line.largest


@pytest.mark.parametrize("name", SHORT)
def test_spacing_is_the_distance_to_the_next_number(name: str) -> None:
    line, numbers = format_of(name), np.array(SHORT[name])
    assert line is not None
    above = numbers[numbers > 0]
    assert np.array_equal(spacing(above[:-1], line), np.diff(above))
    assert np.array_equal(spacing(above[:-1] * (1 + 2.0**-30), line), np.diff(above))
    # One rounding changes a number by half of that at most, and never by more than the scale of rounding says.
    assert (rounding_scale(above[:-1], line) * line.unit >= np.diff(above) / 2).all()


# --- a new line is enough

NEW = msgspec.structs.replace(format_of("float8_e4m3fn") or TABLE[0], name="float8_e3m4", digits=5, least_exponent=-2,
                          largest=15.5, lowest=-15.5, mindspore="Float8E3M4")  # fmt: skip


@pytest.fixture(params=[False, True], ids=["unknown", "entered"])
def is_entered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """Whether the table has a line for a dtype that no framework has, under its key."""
    caches = (format_of, plain_name, unit_roundoff)
    if request.param:
        monkeypatch.setitem(formats.FORMATS, "float8e3m4", NEW)
    yield request.param
    for each in caches:
        each.cache_clear()


def dump(folder: Path, dtype: str, values: Any, also: Any = None) -> Path:
    """A call of `relu` that returns `values` in a dtype."""
    name = "Functional.relu.0.forward"
    record = call([tensor_of(values if also is None else also)], [tensor_of(values, dtype)])
    return write(folder, {name: record}, {name: None}, {}, level="L1")


def test_compare_takes_it_for_floating_point_numbers(tmp_path: Path, is_entered: bool) -> None:
    inputs = np.linspace(0.1, 3, 64)
    target, golden = np.linspace(0.125, 3, 64), np.linspace(0.125, 3.0625, 64)
    # One rounding of a format with five digits.
    a = dump(tmp_path / "target", "torch.float8_e3m4", target, inputs)
    b = dump(tmp_path / "golden", "torch.float8_e3m4", golden, inputs)
    divergence = compare_dumps(read(a), read(b)).divergence
    assert (divergence is None) == is_entered


def test_overflow_check_knows_where_it_ends(tmp_path: Path, is_entered: bool) -> None:
    folder = dump(tmp_path / "rank0", "torch.float8_e3m4", [np.nan, 1.0], [100.0, 1.0])
    (found,) = find_overflow(str(folder)).first
    limit = "an input is 100, beyond the range of float8_e3m4 (15.5)"
    assert (limit in found.sentence) == is_entered


def test_the_pre_check_rounds_to_it(is_entered: bool) -> None:
    reference = np.array([0.1, 1.03, 3.0, 9.3])
    nearest = np.array([0.09375, 1.0, 3.0, 9.5])
    subject = Subject(
        "Tensor.to", "forward", nearest, reference, plain_name("Float8E3M4"), [], [], lambda unit, inside: None,
        lambda name: None, lambda: None, {},
    )  # fmt: skip
    assert (judge(subject).status == "exact") == is_entered
    assert (rounding_format("torch.float8_e3m4") is NEW) == is_entered
