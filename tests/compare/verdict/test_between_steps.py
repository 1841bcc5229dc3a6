"""What an optimizer did otherwise between two steps, told by the parameters before and after it alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from divergence_runs import Array, Run, X, call, tensor, write

from probe.common.dump.reading.dump import read
from probe.compare.comparison import compare_dumps

RATE = np.float32(1e-4)
RANDOM = np.random.default_rng(7)
WEIGHTS, GRADIENTS = (
    [(RANDOM.normal(mean, 1, size=(16, 64)) / size).astype(np.float32) for _ in range(6)]
    for mean, size in ((0.2, 8), (0.5, 1))
)


def step(folder: Path, weights: list[Array]) -> str:
    """One step: the layers with their weights, and the gradients of these."""
    data: Run = {}
    for layer, weight in enumerate(weights):
        # A module may be called so.
        name = f"Module.parameters.{layer}.Linear"
        data[f"{name}.forward.0"] = call([tensor(X)], tensor(X), weight=tensor(weight))
        data[f"{name}.parameters_grad.0"] = {"weight": [tensor(GRADIENTS[layer])]}
    return str(write(folder, data, level="L0"))


@pytest.mark.parametrize(
    ("rate", "decay", "frozen", "expected"),
    [
        (2 * RATE, 0.0, -1, "updates are 2 times those of the golden run: another learning rate"),
        (RATE, 0.1, -1, "updates take 1e-05 of the parameter more away: another weight decay"),
        (RATE, 0.0, 2, "parameters.2.weight stays as it was in the target"),
    ],
)
def test_another_update_is_told_with_its_size(
    tmp_path: Path, rate: float, decay: float, frozen: int, expected: str
) -> None:
    def weights(rate: float, decay: float, frozen: int) -> list[Array]:
        pairs = zip(WEIGHTS, GRADIENTS)
        moved = [w - np.float32(rate) * (gradient + np.float32(decay) * w) for w, gradient in pairs]
        return [WEIGHTS[layer] if layer == frozen else each for layer, each in enumerate(moved)]

    before = step(tmp_path / "a" / "step0", WEIGHTS), step(tmp_path / "b" / "step0", WEIGHTS)
    golden = read(step(tmp_path / "b" / "step1", weights(RATE, 0.0, -1)))
    for name, settings, cause in (("a", (rate, decay, frozen), expected), ("same", (RATE, 0.0, -1), "")):
        target = read(step(tmp_path / name / "step1", weights(*settings)))
        found = compare_dumps(target, golden, before=before).divergence
        assert (found is not None) == bool(cause)
        if found is not None:
            assert found.first.cause.startswith(f"the optimizer step before this step diverges: {cause}")
