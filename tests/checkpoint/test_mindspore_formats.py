"""Checkpoints that MindSpore itself wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest

import probe
from probe.checkpoint.readers.opening import open_checkpoint
from probe.common.errors import MsprobeException


@pytest.fixture
def parameters() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    kinds = (ms.float32, ms.float16, ms.bfloat16, ms.int32, ms.bool_)
    found = [
        {"name": f"layers.{number}.w", "data": ms.Tensor(random.standard_normal((3, 4)), kind)}
        for number, kind in enumerate(kinds)
    ]
    return [*found, {"name": "single", "data": ms.Tensor(2.5, ms.float32)}]


def test_values_are_those_that_were_saved(parameters: list[dict[str, Any]], tmp_path: Path) -> None:
    path = str(tmp_path / "a.ckpt")
    ms.save_checkpoint(parameters, path, append_dict={"epoch": 3, "lr": 0.5, "name": "run"})
    found = open_checkpoint(path)
    assert found.format == "MindSpore"
    assert {name: found.settings[name] for name in ("epoch", "lr", "name")} == {"epoch": 3, "lr": 0.5, "name": "run"}
    loaded = ms.load_checkpoint(path)
    for each in parameters:
        tensor = found.weights[each["name"]]
        assert tensor.shape == each["data"].shape
        if each["data"].dtype == ms.bfloat16:
            wide = loaded[each["name"]].float().asnumpy()
            np.testing.assert_array_equal((tensor.read().astype(np.uint32) << 16).view(np.float32), wide)
        else:
            np.testing.assert_array_equal(tensor.read(), loaded[each["name"]].asnumpy())


def test_formats_are_identical_and_a_change_is_named(parameters: list[dict[str, Any]], tmp_path: Path) -> None:
    plain, checked, other = (str(tmp_path / name) for name in ("a.ckpt", "b.ckpt", "c.safetensors"))
    ms.save_checkpoint(parameters, plain)
    ms.save_checkpoint(parameters, checked, crc_check=True)
    ms.save_checkpoint(parameters, other, format="safetensors")
    assert probe.ckpt_compare(plain, checked).answer == "identical"
    assert probe.ckpt_compare(plain, other).answer == "identical"
    parameters[0]["data"] = parameters[0]["data"] + 1
    ms.save_checkpoint(parameters, plain)
    report = probe.ckpt_compare(plain, other)
    assert [each.name for each in report.parameters if not each.is_fine] == ["layers.0.w"]


def test_a_damaged_file_is_refused(parameters: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    ms.save_checkpoint(parameters, str(path), crc_check=True)
    data = bytearray(path.read_bytes())
    data[data.index(b"Float32") + 12] ^= 1
    path.write_bytes(data)
    with pytest.raises(MsprobeException, match="checksum"):
        open_checkpoint(str(path))
    path.write_bytes(data[:40])
    with pytest.raises(MsprobeException, match="cut off or encrypted"):
        open_checkpoint(str(path))


def test_the_state_of_an_optimizer_is_no_weight(tmp_path: Path) -> None:
    net = ms.nn.Dense(3, 2)
    optimizer = ms.nn.Adam(net.trainable_params())
    path = str(tmp_path / "a.ckpt")
    ms.save_checkpoint(optimizer, path)
    found = open_checkpoint(path)
    assert set(found.weights) == {"weight", "bias"}
    assert "moment1.weight" in found.optimizer
