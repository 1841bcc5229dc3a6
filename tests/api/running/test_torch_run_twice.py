"""``msprobe run --twice``: two processes with the same program, an answer and an exit status."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import msprobe
from torch_running import DESCENT, PRELUDE

from probe.api import cli

PROGRAM = (
    PRELUDE
    + DESCENT
    + """
import os, pathlib, sys

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = Descent(net.parameters(), 0.1)
kept = pathlib.Path("kept.pt")
if "resumes" in sys.argv and kept.exists():
    net.load_state_dict(torch.load(kept, weights_only=True))
for step in range(2):
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", os.environ.get("MARK"))
if "fails" in sys.argv:
    sys.exit(3)
if "resumes" in sys.argv:
    torch.save(net.state_dict(), kept)
"""
)


def twice(folder: Path, *arguments: str) -> tuple[int, str, str]:
    (folder / "train.py").write_text(PROGRAM)
    ran = msprobe("run", "--twice", "-o", "out", "train.py", *arguments, folder=folder, MARK="same")
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_a_program_with_the_same_bits_is_deterministic(tmp_path: Path) -> None:
    status, out, err = twice(tmp_path)
    assert (status, out.count("trained same")) == (0, 2), err
    assert out.splitlines()[-1].startswith("deterministic: 2 steps, "), out
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"first", "second"}
    assert "out/first exists already; give another folder with -o" in twice(tmp_path)[2]


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_a_checkpoint_that_the_first_run_left_is_named(tmp_path: Path) -> None:
    status, out, _ = twice(tmp_path, "resumes")
    assert status == 1, out
    assert "not deterministic: step 0: 0 (Linear)" in out and "parameter 0.weight begins with other values" in out
    assert "kept.pt" in out.splitlines()[-1] and "second run" in out.splitlines()[-1], out


@pytest.mark.sampled(least=1, each=False, group="interpreters that a program starts")
def test_a_program_that_fails_is_run_once_and_its_folder_hides_nothing_of_the_tool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "probe.py").write_text("raise ImportError('a module of the program')")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "--twice", "-o", "out", "train.py", "fails"]) == 2
    said = capfd.readouterr()
    assert said.out.count("trained") == 1
    assert "the first run ended with status 3, so that there is no second one" in said.err


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["--task", "monitor"], {}, '"monitor"; allowed: statistics, tensor'),
        ([], {"WORLD_SIZE": "2"}, "--twice stands in front of a launcher"),
        (["--summary-mode", "crc"], {}, '"summary_mode" is "crc"'),
        (["--stop-at", "divergence"], {}, "--twice cannot be used with --stop-at"),
        ([], {}, '"train.py" cannot be read'),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    variables: dict[str, str],
    words: str,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["run", "--twice", "-o", str(tmp_path / "out"), *arguments, "train.py"]) == 2
    said = capsys.readouterr().err
    assert words in said and "the first run" not in said
    assert not (tmp_path / "out").exists()
