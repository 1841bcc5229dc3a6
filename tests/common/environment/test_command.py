"""The command line of a run as it is recorded, and what differs between two of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from probe.common.environment.command import named
from probe.common.environment.differences import differences

PLANTED = "planted"
ROOT = Path(__file__).parents[3]
PRINT = "import json; from probe.common.environment.command import command; print(json.dumps(command()))"


def words_of(text: str) -> list[str]:
    return text.split()


ARGUMENTS = words_of(
    f"--wandb-api-key {PLANTED} --api-keys {PLANTED} {PLANTED} --db.password={PLANTED} model.token={PLANTED} "
    f"--master_addr {PLANTED} --note https://{PLANTED}/x hf_{PLANTED}1 {PLANTED}@host.org "
    f"--data /home/{PLANTED}/corpus --cache=~/{PLANTED}/c "
    f"--token {PLANTED}== --password {PLANTED}=x --hf_{PLANTED}1 --sk_{PLANTED}1=2 hf_{PLANTED}2== "
    f"--lr 0.1 --betas 0.9 0.95 --amp trainer.steps=3 --eos_token_id 2 10.0.0.1:29500"
)
CLEAN = words_of(
    "--wandb-api-key <withheld> --api-keys <withheld> <withheld> --db.password=<withheld> model.token=<withheld> "
    "--master_addr <withheld> --note <withheld> <withheld> <withheld> --data .../corpus "
    "--cache=.../c --token <withheld> --password <withheld> <withheld> <withheld> <withheld> "
    "--lr 0.1 --betas 0.9 0.95 --amp trainer.steps=3 --eos_token_id 2 <withheld>"
)


def printed(folder: Path, *words: object) -> Any:
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "PATH": "/usr/bin:/bin"}
    started = [sys.executable, *map(str, words)]
    return json.loads(subprocess.run(started, cwd=folder, env=environment, capture_output=True, check=True).stdout)


def test_it_is_recorded_as_it_was_typed_without_secrets_and_folders(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    for file in (tmp_path / "train.py", package / "__main__.py"):
        file.write_text(PRINT)

    assert printed(tmp_path, "train.py", *ARGUMENTS) == ["python", "train.py", *CLEAN]
    assert printed(tmp_path, tmp_path / "train.py") == ["python", "train.py"]
    assert printed(tmp_path, "-m", "package", "--lr", "1") == ["python", "-m", "package", "--lr", "1"]
    assert printed(tmp_path, "-c", PRINT, PLANTED) == ["python", "-c", PLANTED]
    assert printed(tmp_path, "-c", f"import sys; sys.argv = None; {PRINT}") == []


def test_words_have_the_names_of_their_arguments() -> None:
    command = words_of("python -m train --lr 0.1 --betas 0.9 0.95 --amp --x=1 trainer.steps=3 data --amp")
    assert named(command) == {
        "program": "-m train", "--lr": "0.1", "--betas": ["0.9", "0.95"], "--amp": True, "--x": "1",
        "trainer.steps": "3", "argument 1": "data",
    }  # fmt: skip


def of(command: str, **more: Any) -> dict[str, Any]:
    return {"command": words_of(command), **more}


def test_arguments_that_differ_are_named_and_places_of_output_are_not() -> None:
    target = of("python train.py large --lr 0.2 --amp --output runs/a --run_name a --model_path b/x")
    golden = of("python old.py small --lr 0.1 --output runs/b --run_name b --model_path a/x")
    assert [each.text for each in differences(target, golden)] == [
        "program train.py (golden: old.py)",
        "argument 1 of the command is large (golden: small)",
        "--lr 0.2 (golden: 0.1)",
        "--amp on (golden: not there)",
        "--model_path b/x (golden: a/x)",
    ]
    assert differences(target, {}) == [] and differences({"command": 3}, golden) == []


def test_an_argument_that_a_setting_says_already_is_not_named_again() -> None:
    target = of("python train.py --seed 1", seeds={"torch": 1})
    golden = of("python train.py --seed 2", seeds={"torch": 2})
    assert [each.text for each in differences(target, golden)] == ["seed 1 (golden: 2)"]
