"""The statistics that a configuration names."""

from __future__ import annotations

from collections.abc import Sequence

from probe.backends.protocol import OPS
from probe.common import log
from probe.common.config.fields import Location, quoted
from probe.common.errors import MsprobeException

OF_MSPROBE = ("min", "max", "mean", "norm", "zeros", "nans", "id")


def parse_ops(value: object, location: Location) -> tuple[str, ...]:
    """A list of names; whether they are known is asked later, since it depends on whose rules hold."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise location.wrong(value, f"a list of {quoted(OPS)}")
    return tuple(dict.fromkeys(value))


def checked(ops: Sequence[str], key: str, origin: str, default: Sequence[str], as_msprobe: bool) -> tuple[str, ...]:
    """The ops, or the default of the monitor if none is named.

    Args:
        as_msprobe: True if names that msProbe does not know are left out and not an error.

    Raises:
        MsprobeException: a name is unknown.
    """
    known = OF_MSPROBE if as_msprobe else OPS
    unknown = [each for each in ops if each not in known]
    if unknown and not as_msprobe:
        raise MsprobeException(f'{origin}: "{key}" has "{unknown[0]}"; allowed: {quoted(known)}.')
    if unknown:
        log.warning(f'{origin}: "{key}" has {quoted(unknown)}, which msProbe does not know; left out.')
    return tuple(each for each in ops if each in known) or tuple(default)
