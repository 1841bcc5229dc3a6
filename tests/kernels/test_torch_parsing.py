"""Tensors of ATB as files of torch, which has bfloat16."""

from __future__ import annotations

import struct
from pathlib import Path

import torch

from probe.api import cli

VALUES = (1.5, -2.0, 0.25)


def test_bfloat16_is_bfloat16(tmp_path: Path) -> None:
    data = b"".join(struct.pack("<f", value)[2:] for value in VALUES)
    (tmp_path / "x.bin").write_bytes(b"$Version=1.0\ndtype=27\ndims=3\n$Object.data=0,6\n$End=1\n" + data)
    assert cli.main(["parse", "-d", str(tmp_path / "x.bin"), "-t", "pt", "-o", str(tmp_path / "out")]) == 0
    loaded = torch.load(tmp_path / "out" / "x.pt", weights_only=True)
    assert loaded.dtype == torch.bfloat16
    assert loaded.tolist() == list(VALUES)
