"""Try an installed wheel, without a framework: the compiled parts that it should have, and a comparison.

    python installed.py all|stable|none

The wheels of a release are tried by this, each in an environment of its own: see ``[tool.cibuildwheel]`` of
pyproject.toml.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

STABLE = {"probe.common.numerics._differences", "probe.common.numerics._digests", "probe.backends.shared._reduction"}
OF_ONE_RELEASE = {
    "probe.common._frames", "probe.common.dump._journal_frames", "probe.common.dump._records",
    "probe.collect.describing._makers", "probe.backends.torch.tensors._plain_tensors",
    "probe.backends.torch._backward_tracker", "probe.collect._calls", "probe.backends.torch.hooks._function_calls",
}  # fmt: skip
PARTS = {"all": STABLE | OF_ONE_RELEASE, "stable": STABLE, "none": set()}
CASE = Path(__file__).parents[1] / "compare" / "cases" / "missing_apis_stat"


def main(parts: str) -> None:
    """Raise an error for what does not work."""
    import probe

    assert "site-packages" in probe.__file__, f"this is the checkout: {probe.__file__}"
    found = {part for part in PARTS["all"] if importlib.util.find_spec(part) is not None}
    assert found == PARTS[parts], f"the compiled parts are {sorted(found)}; expected: {sorted(PARTS[parts])}"
    for part in found:
        importlib.import_module(part)
    with tempfile.TemporaryDirectory() as folder:
        paths = ["-tp", CASE / "target", "-gp", CASE / "golden", "-o", Path(folder, "result")]
        command = [sys.executable, "-m", "msprobe", "compare", *map(str, paths)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "rows by statistics" in done.stdout, done.stdout + done.stderr
    print(f"Python {sys.version.split()[0]}, {len(found)} compiled parts: {done.stdout.splitlines()[0]}")


if __name__ == "__main__":
    main(sys.argv[1])
