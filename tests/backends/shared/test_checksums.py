"""CRC-32 is one function, whichever library computes it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from probe.backends.shared import checksums

# The check value of CRC-32/ISO-HDLC, and of RFC 3720's neighbours: published, not computed here.
KNOWN = {b"": 0, b"123456789": 0xCBF43926, b"a": 0xE8B7BE43, b"\0" * 32: 0x190A55AD, b"\xff" * 32: 0xFF6CAB0B}


@pytest.fixture(params=["zlib", "isal.isal_zlib"], autouse=True)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Without the extra "fast", and with it."""
    module = pytest.importorskip(request.param)
    monkeypatch.setattr(checksums, "crc32_of", module.crc32)
    return module


@pytest.mark.parametrize("data", KNOWN, ids=repr)
def test_known_values(data: bytes) -> None:
    assert checksums.crc32(np.frombuffer(data, np.uint8)) == f"{KNOWN[data]:08x}"
    assert checksums.crc32_of(memoryview(data)) == KNOWN[data]


def test_all_lengths_and_alignments_agree(library: Any) -> None:
    data = np.random.default_rng(3).integers(0, 256, 5000, dtype=np.uint8)
    zlib = importlib.import_module("zlib")
    for start in range(17):
        for length in (1, 2, 15, 16, 17, 63, 64, 255, 1024, 4097):
            part = data[start : start + length]
            assert library.crc32(part.data) == zlib.crc32(part.tobytes())
