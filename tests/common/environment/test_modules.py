"""Settings of modules in the environment file: equal layers are folded, nothing is lost but what is counted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from probe.common.environment.modules import Buffer, ModuleSettings, folded, settings_at

LINEAR = ModuleSettings("torch.nn.modules.linear.Linear", True, True, {"in_features": 4})
NINES = "9" * 5000
TABLE = Buffer("torch.float32", (8,), (1.0, 0.0, 0.25, 1.5))


def norm(eps: float) -> ModuleSettings:
    return ModuleSettings("models.Norm", False, True, {"eps": eps, "axis": None}, ("forward hook f",), {"inv": TABLE})


def back(*tables: dict[str, Any], step: int | None = 0) -> dict[str, ModuleSettings]:
    read: dict[str, Any] = json.loads(json.dumps({"modules": list(tables)}))
    return dict(settings_at(read, step))


def test_equal_layers_become_one_entry_and_come_back() -> None:
    pairs = [(layer, expert) for layer in range(12) for expert in range(8)]
    modules = {f"Module.layers.{layer}.experts.{expert}.up.Linear": LINEAR for layer, expert in pairs}
    modules.update({f"Module.layers.{layer}.norm.Norm": norm(1e-5) for layer in range(12) if layer != 7})
    modules.update({"Module.layers.7.norm.Norm": norm(1e-6), "Module.layers.010.Linear": LINEAR})
    modules["Module.Net"] = norm(0.5)._replace(casts=("float8_e4m3fn", "float8_e5m2"))
    table = folded(0, modules)
    assert table["settings"][0]["names"] == ["Module.layers.[0-11].experts.[0-7].up.Linear", "Module.layers.010.Linear"]
    folded_names = [entry["names"] for entry in table["settings"]]
    assert ["Module.layers.[0-6].norm.Norm", "Module.layers.[8-11].norm.Norm"] in folded_names
    assert table["left_out"] == 0 and back(table) == modules


def test_indexes_that_are_no_product_come_back() -> None:
    names = [f"Module.{i}.{j}.L" for i, j in ((0, 1), (0, 2), (1, 2), (3, 1), (3, 2), (9, 0))]
    assert back(folded(0, dict.fromkeys(names, LINEAR))) == dict.fromkeys(names, LINEAR)


def test_what_is_too_much_is_left_out_and_counted() -> None:
    modules = {f"Module.{number}.norm.Norm": norm(number + 0.5) for number in range(500)}
    modules["Module.a[0-9].Norm"] = norm(0.1)  # This name would be read as ten.
    table = folded(0, modules, most_bytes=20_000)
    assert len(json.dumps(table, indent=1)) <= 22_000
    kept = back(table)
    assert 0 < len(kept) < 500 and len(kept) + table["left_out"] == 501
    assert all(modules[name] == settings for name, settings in kept.items())


def test_thirty_thousand_modules_are_a_small_entry() -> None:
    pairs = [(layer, expert) for layer in range(60) for expert in range(500)]
    modules = {f"Module.layers.{layer}.experts.{expert}.up.Linear": LINEAR for layer, expert in pairs}
    assert len(json.dumps(folded(0, modules))) < 1000


def test_each_step_has_the_models_that_were_started_last() -> None:
    tables = [folded(2, {"Module.norm.Norm": norm(1.0)}), folded(5, {"Module.norm.Norm": norm(2.0)})]
    found = {step: back(*tables, step=step).get("Module.norm.Norm") for step in (1, 2, 4, 5, 9, None)}
    assert found == {1: None, 2: norm(1.0), 4: norm(1.0), 5: norm(2.0), 9: norm(2.0), None: None}
    assert back(tables[0], step=None) == {"Module.norm.Norm": norm(1.0)}


@pytest.mark.parametrize(
    "modules",
    [
        None, 5, [5], [{"step": "0", "settings": []}], [{"step": 0, "settings": [5, {"type": 3}, {"type": "a.B"}]}],
        [{"step": 0, "settings": [{"type": "a.B", "names": ["M.[0-99999999].[0-99999999].B"]}]}],
        [{"step": 0, "settings": [{"type": "a.B", "names": ["M.[5-2].B"], "values": 3, "hooks": 3, "buffers": 3}]}],
        [{"step": 0, "settings": [{"type": "a.B", "names": [f"M.[0-{NINES}].B"]}]}],
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing(modules: Any) -> None:
    literal = ("M.[5-2].B", f"M.[0-{NINES}].B")
    assert [name for name in settings_at({"modules": modules}, 0) if name not in literal] == []
    assert settings_at(None, 0) == {}


def test_numbers_that_no_program_has_are_left_out() -> None:
    buffers = {"a": {"dtype": "float32", "shape": [2, -4]}, "b": {"dtype": "float32", "shape": [10**400]}}
    entry = {"type": "Net", "names": ["Module.a.Net"], "values": {"heads": 10**400, "eps": 1e-6}, "buffers": buffers}
    (found,) = settings_at({"modules": [{"step": 0, "settings": [entry]}]}, 0).values()
    assert found.values == {"eps": 1e-6} and found.buffers == {}
