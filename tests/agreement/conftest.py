"""What every backend dumped of one network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from agreement import program
from agreement.interpreters import BACKENDS, run


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    random = np.random.default_rng(7)
    shapes = {"x": (5, 4), "weight": (3, 4), "bias": (3,), "mixing": (3, 3), "head_weight": (2, 3), "head_bias": (2,)}
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(folder / "arrays.npz", **arrays)
    for backend in BACKENDS:
        run(backend, Path(program.__file__), backend, str(folder))
    return folder
