"""The quick start of docs/reference/mindspore.md runs as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import probe

PAGE = Path(__file__).parents[3] / "docs" / "mindspore.md"


def test_the_documented_quick_start_collects_what_it_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(probe.__file__).parents[1]), "GLOG_v": "3"}
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for step in range(2):
        (path,) = tmp_path.glob(f"dump_path/step{step}/proc*/dump.json")
        found = json.loads(path.read_text())
        assert found["framework"] == "mindspore"
        assert {"Cell.dense.Dense.forward.0", "Cell.dense.Dense.backward.0"} <= set(found["data"])
        assert {"MintFunctional.relu.0.forward", "Cell.dense.Dense.parameters_grad.0"} <= set(found["data"])
