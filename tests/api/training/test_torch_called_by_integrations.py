"""The calls that public integrations make of msProbe, in their order, with a small model: each finds what it needs."""

from __future__ import annotations

import json
from pathlib import Path

import forks
import pytest

PRELUDE = """
import json, os, torch
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
value = torch.ones(2, 4)
json.dump({"task": "statistics", "dump_path": "./engine", "level": LEVEL, "rank": [], "step": []}, open("c.json", "w"))
"""

VERL = """
def start(stage, model, global_step):
    from msprobe.pytorch import PrecisionDebugger

    dump_path = os.path.join("precision", f"step_{global_step}", stage, "rank_0")
    os.makedirs(dump_path, exist_ok=True)
    debugger = PrecisionDebugger._instance
    if debugger is None:
        PrecisionDebugger(config_path="c.json", dump_path=dump_path)
        debugger = PrecisionDebugger._instance
    debugger.service.config.dump_path = dump_path
    debugger.start(model)

def stop(step):
    from msprobe.pytorch import PrecisionDebugger

    PrecisionDebugger._instance.stop()
    if step:
        PrecisionDebugger._instance.step()

reference = nn.Linear(4, 4)
for global_step in (1, 2):
    start("ref_compute_log_prob", reference, global_step)
    reference(value)
    stop(False)
    start("actor_update", model, global_step)
    model(value).sum().backward()
    stop(True)
"""

CONSISTENCY = """
from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(mode=True)
debugger = PrecisionDebugger(task="tensor", level="L0", step=[0], dump_path="0_dump_path/")
prefix = debugger.config.dump_path
debugger.service.first_start = True
debugger.service.config.dump_path = os.path.join(prefix, "generate_sequences")
debugger.start(model=model, token_range=[0, 0])
model(value), model(value)
debugger.stop()
debugger.service._reset_status()
debugger.service.config.dump_path = os.path.join(prefix, "update_actor")
debugger.start(model=model)
model(value)
debugger.stop()
debugger.step()
"""

SGLANG = """
from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(mode=True)
debugger = PrecisionDebugger(config_path="c.json")
for rank_id in (3, 3):
    debugger.start(model=model, rank_id=rank_id)
    model(value)
    debugger.stop()
    debugger.step()
"""

VLLM_ASCEND = """
from msprobe.pytorch import PrecisionDebugger
debugger = PrecisionDebugger("c.json")
debugger.step(dump=False)  # a pass that warms up
for _ in range(2):
    config = getattr(debugger, "config", None)
    level = str(getattr(config, "level", "L1")).upper() if config is not None else "L1"
    if level in ("L0", "MIX"):
        debugger.start(model=model)
    else:
        debugger.start()
    model(value)
    if hasattr(debugger, "stop"):
        debugger.stop()
    debugger.step(**{})
"""

MS_SWIFT = """
from msprobe.pytorch import PrecisionDebugger
for _ in range(2):
    debugger = PrecisionDebugger(dump_path="./dump_path", level=LEVEL, model=model)
    debugger.start()
    model(value).sum().backward()
    debugger.stop()
    debugger.step()
"""

IN_MIX = ["Module.0.Linear.forward.0", "Functional.linear.0.forward"]


def folders(tmp_path: Path) -> dict[str, list[str]]:
    """The names of the records in each dump, by its folder."""
    found = {}
    for path in sorted(tmp_path.rglob("dump.json")):
        where = path.parent.relative_to(tmp_path).as_posix()
        process = where.rpartition("/")[2]
        found[where.replace(process, "P") if process.startswith("proc") else where] = list(
            json.loads(path.read_text(encoding="utf-8"))["data"]
        )
    return found


def run(tmp_path: Path, code: str, level: str = "mix") -> dict[str, list[str]]:
    script = tmp_path / "engine.py"
    script.write_text(f"LEVEL = {level!r}\n{PRELUDE}{code}", encoding="utf-8")
    done = forks.run_python("torch", script, tear_down=True)
    assert done.returncode == 0, done.stderr
    return folders(tmp_path)


def test_verl_has_a_folder_for_each_stage(tmp_path: Path) -> None:
    found = run(tmp_path, VERL, "L1")
    stages = ("actor_update", "ref_compute_log_prob")
    assert list(found) == [
        f"precision/step_{number}/{stage}/rank_0/step{number - 1}/P" for number in (1, 2) for stage in stages
    ]
    assert found["precision/step_1/ref_compute_log_prob/rank_0/step0/P"] == ["Functional.linear.0.forward"]
    assert "Functional.relu.0.backward" in found["precision/step_2/actor_update/rank_0/step1/P"]


def test_a_rollout_and_its_training_have_a_folder_each(tmp_path: Path) -> None:
    found = run(tmp_path, CONSISTENCY)
    names = ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0"]
    assert found == {f"0_dump_path/{stage}/step0/P": names for stage in ("generate_sequences", "update_actor")}


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_vllm_ascend_counts_what_was_collected(tmp_path: Path, level: str) -> None:
    found = run(tmp_path, VLLM_ASCEND, level)
    assert list(found) == ["engine/step0/P", "engine/step1/P"]
    assert set(found["engine/step0/P"]) & set(IN_MIX) == set({"L0": IN_MIX[:1], "L1": IN_MIX[1:], "mix": IN_MIX}[level])


def test_sglang_names_the_rank(tmp_path: Path) -> None:
    found = run(tmp_path, SGLANG)
    assert list(found) == ["engine/step0/rank3", "engine/step1/rank3"]
    assert set(IN_MIX) <= set(found["engine/step1/rank3"])


def test_ms_swift_gives_the_model_to_the_debugger(tmp_path: Path) -> None:
    found = run(tmp_path, MS_SWIFT)
    assert list(found) == ["dump_path/step0/P", "dump_path/step1/P"]
    assert {*IN_MIX, "Module.0.Linear.backward.0"} <= set(found["dump_path/step1/P"])


def test_what_cannot_be_changed_is_said(tmp_path: Path) -> None:
    said = """
from msprobe.pytorch import PrecisionDebugger
from probe.common.errors import MsprobeException
debugger = PrecisionDebugger(config_path="c.json")
def refusal(action):
    try:
        action()
    except (AttributeError, MsprobeException) as error:
        print(error)
refusal(lambda: setattr(debugger.config, "level", "L0"))
refusal(lambda: setattr(debugger.service.config, "dump_path", 3))
debugger.start(model)
refusal(lambda: setattr(debugger.config, "dump_path", "elsewhere"))
PrecisionDebugger.reset()
refusal(lambda: PrecisionDebugger(model=3))
"""
    script = tmp_path / "engine.py"
    script.write_text(f"LEVEL = 'mix'\n{PRELUDE}{said}", encoding="utf-8")
    lines = forks.run_python("torch", script, tear_down=True).stdout.splitlines()
    refusals = [line for line in lines if "[" not in line]
    parts = ("config.level", "config.dump_path"), ('"dump_path" is 3',), ("elsewhere", "stop()"), ("model is a int",)
    assert len(refusals) == len(parts)
    assert all(part in line for line, of_line in zip(refusals, parts) for part in of_line), refusals


def test_module_dump_takes_its_name_by_position_and_by_either_keyword(tmp_path: Path) -> None:
    code = """
from msprobe.pytorch import PrecisionDebugger, module_dump, module_dump_end
debugger = PrecisionDebugger(config_path="c.json")
for name, names in ((["mine"], {}), ([], {"module_name": "mine"}), ([], {"dump_name": "mine"})):
    debugger.start()
    module_dump(model, *name, **names)
    model(value)
    module_dump_end()
    debugger.stop()
    debugger.step()
"""
    assert list(run(tmp_path, code, "L1").values()) == [["Module.mine.Sequential.forward.0"]] * 3
