"""One small network, dumped by one backend in several ways; run by each framework's own interpreter.

    python program.py BACKEND FOLDER

FOLDER/arrays.npz holds its weights and its input. What is dumped goes to FOLDER/BACKEND/<way>, and FOLDER/BACKEND.json
tells how names of this backend read in neutral words.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2] / "backends" / "support"))

WAYS: dict[str, dict[str, Any]] = {
    "L0": {"level": "L0"},
    "L1": {"level": "L1"},
    "mix": {"level": "mix"},
    "md5": {"level": "mix", "summary_mode": "md5"},
    "forward input": {"level": "mix", "data_mode": ["forward", "input"]},
    "backward": {"level": "mix", "data_mode": ["backward"]},
    "list": {"level": "mix", "list": ["{abs}"]},
    "scope": {"level": "L1", "scope": ["{matmul}.0.forward", "{add}.0.forward"]},
    "module scope": {"level": "L0", "scope": ["{root}.body.Body.forward.0", "{root}.body.act.{ReLU}.forward.0"]},
}

APIS = ("matmul", "abs", "multiply", "add")


def network(backend: Any, arrays: Any) -> Any:
    """``head(body(x))``, where the body mixes a layer, functions and an operator with a residual connection."""
    # Looked up at each call, as ``torch.matmul(...)`` is. No layer below calls these functions itself.
    apis = backend.apis

    def body(self: Any, x: Any) -> Any:
        hidden = self.act(self.fc(x))
        return apis["abs"].call(apis["matmul"].call(hidden, self.mixing)) * 0.5 + hidden

    def net(self: Any, x: Any) -> Any:
        return self.head(apis["abs"].call(self.body(x)))

    parts = {
        "fc": backend.linear(arrays["weight"], arrays["bias"]),
        "act": backend.relu(),
        "mixing": backend.parameter(arrays["mixing"]),
    }
    head = backend.linear(arrays["head_weight"], arrays["head_bias"])
    return backend.module("Net", net, body=backend.module("Body", body, **parts), head=head)


def main(name: str, folder: Path) -> None:
    backend = importlib.import_module(f"backend_{name}").Backend()
    words = {api: backend.apis[api].base for api in APIS}
    words |= {"root": backend.root, "Linear": backend.classes["linear"], "ReLU": backend.classes["relu"]}
    arrays = np.load(folder / "arrays.npz", allow_pickle=False)
    for way, settings in WAYS.items():
        wanted = {
            key: [text.format(**words) for text in value] if key in ("list", "scope") else value
            for key, value in settings.items()
        }
        level = wanted.pop("level")
        content = {"task": "statistics", "level": level, "risk_level": "ALL", "statistics": wanted}
        config = folder / f"{name} {way}.json"
        config.write_text(json.dumps({**content, "dump_path": str(folder / name / way)}), encoding="utf-8")
        model = network(backend, arrays)
        debugger = backend.new_debugger_class()(str(config))
        debugger.start(model)
        backend.run(model, backend.tensor(arrays["x"], requires_grad=True), model=model)
        debugger.stop()
        debugger.step()
    (folder / f"{name}.json").write_text(json.dumps(words), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
