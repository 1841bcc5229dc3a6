"""Settings of modules that differ: causes where values part, and undecided where rounding would hide their effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from divergence_runs import X, call, tensor, write

from probe.common.dump.reading.dump import read
from probe.common.environment import files
from probe.common.environment.modules import ModuleSettings, folded
from probe.compare.comparison import compare_dumps
from probe.compare.result import ComparisonResult

LAYERS = 6
FLOAT, BFLOAT = "torch.float32", "torch.bfloat16"


def module(kind: str = "models.Norm", *hooks: str, training: bool = False, **values: Any) -> ModuleSettings:
    return ModuleSettings(kind, kind.startswith("torch.nn."), training, values, hooks)


def layers(dtype: str = FLOAT, eps: float = 1e-5, at: int = 3, name: str = "Norm") -> dict[str, Any]:
    """Records of norms, one after the other; one of them has another epsilon."""
    data: dict[str, Any] = {}
    x = X.astype(np.float64)
    for number in range(LAYERS):
        used = eps if number == at else 1e-5
        y = (x + number) / np.sqrt(np.square(x + number).mean(-1, keepdims=True) + used)
        if dtype == BFLOAT:
            y = rounded(y)
        data[f"Module.h.{number}.{name}.forward.0"] = call([tensor(x, dtype)], tensor(y, dtype))
        x = y
    return data


def rounded(values: Any) -> Any:
    """Values with the 8 bits of bfloat16."""
    fraction, exponent = np.frexp(values)
    return np.ldexp(np.round(fraction * 256) / 256, exponent)


def compared(
    folder: Path, sides: tuple[dict[str, Any], dict[str, Any]], settings: tuple[ModuleSettings, ModuleSettings],
    at: int = 3, names: tuple[str, str] = ("Norm", "Norm"), tree: dict[str, str | None] | None = None,
) -> ComparisonResult:  # fmt: skip
    """Two runs whose environments differ in the settings of one module."""
    dumps = []
    for side, (data, own, name) in enumerate(zip(sides, settings, names)):
        path = folder / str(side)
        write(path / "step0" / "rank0", data, tree)
        files.write(str(path), "rank0", {"modules": [folded(0, {f"Module.h.{at}.{name}": own})]})
        dumps.append(read(path / "step0" / "rank0"))
    return compare_dumps(*dumps)


def test_a_setting_is_the_cause_where_its_module_parts(tmp_path: Path) -> None:
    result = compared(tmp_path, (layers(eps=0.05), layers()), (module(eps=0.05), module(eps=1e-5)))
    assert result.divergence is not None
    first = result.divergence.first
    assert (first.record, first.cause) == ("Module.h.3.Norm.forward.0", "eps is 0.05 and in the golden run 1e-05")


def test_one_precision_shows_that_it_has_no_effect(tmp_path: Path) -> None:
    result = compared(tmp_path, (layers(), layers()), (module(eps=1e-6), module(eps=1e-5)))
    assert result.divergence is None and result.undecided == []
    assert [each.reason for each in result.without_effect] == ["eps is 1e-06 and in the golden run 1e-05"]
    assert result.without_effect[0].shows_from == pytest.approx(2.0**-22)
    assert result.without_effect[0].values == ("1e-06", "1e-05")


def test_without_an_environment_nothing_is_said(tmp_path: Path) -> None:
    result = compared(tmp_path, (layers(BFLOAT), layers()), (module(eps=1e-6), module(eps=1e-5)))
    assert result.undecided
    (tmp_path / "1" / "environment_rank0.json").unlink()
    again = compare_dumps(*(read(tmp_path / side / "step0" / "rank0") for side in "01"))
    assert (again.divergence, again.undecided) == (None, [])
