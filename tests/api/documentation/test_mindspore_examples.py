"""The MindSpore quick start of the README is the one in examples, and runs there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import probe

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"


def test_the_quick_start_runs_next_to_its_configuration(tmp_path: Path) -> None:
    for name in ("quick_start_mindspore.py", "config.json"):
        shutil.copy(EXAMPLES / name, tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), "GLOG_v": "3"}
    command = [sys.executable, "quick_start_mindspore.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("dump_path/step0/proc*/dump.json")
    found = json.loads(path.read_text())
    assert found["framework"] == "mindspore"
    assert {"Cell.dense.Dense.backward.0", "MintFunctional.relu.0.backward"} <= set(found["data"])


def test_the_readme_shows_the_example_as_it_is() -> None:
    code = (EXAMPLES / "quick_start_mindspore.py").read_text(encoding="utf-8").partition("\n")[2].strip()
    code = code.replace("  # noqa: E402", "")
    assert f"```python\n{code}\n```" in (ROOT / "README.md").read_text(encoding="utf-8")
