"""Files of tensors, read or mapped."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from probe.common.dump.reading.tensor_reading import read_tensor


def test_large_files_are_mapped_and_small_ones_read(tmp_path: Path) -> None:
    large, small = np.arange(1 << 19, dtype=np.float32), np.arange(9.0)
    for name, array in (("large", large), ("small", small)):
        np.save(tmp_path / f"{name}.npy", array)
    for array, name, mapped in ((large, "large", True), (large, "large", False), (small, "small", True)):
        found = read_tensor(str(tmp_path / f"{name}.npy"), mapped)
        np.testing.assert_array_equal(found, array)
        # What is mapped cannot be written to.
        assert found.flags.writeable != (mapped and name == "large")
