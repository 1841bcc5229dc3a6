"""``msprobe compare --ci``: JUnit XML, annotations of GitHub, and a status that fails."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from command_line import compare
from made_dumps import call, tensor, write

from probe.api.cli import main

RECORD = "Functional.silu.0.forward"
LINE = "File {}, line 15, in forward, \n x = F.silu(x)"


def dump(folder: Path, source: str, largest: float) -> Path:
    """A run of one call, made in line 15 of `source`, and its largest value."""
    values = tensor(1.0, -1.0, 0.1, 2.0, (4,)), tensor(largest, -0.2, 0.1, 2 * largest, (4,))
    rank = write(folder / "step0" / "rank0", {RECORD: call([values[0]], [values[1]])}, level="L1")
    stack = {"0": [[RECORD], [LINE.format(source)]]}
    (rank / "stack.json").write_text(json.dumps(stack), encoding="utf-8")
    return folder


def cases(folder: Path) -> dict[str, tuple[str, str]]:
    """The problem and its message by the class and the name of each test."""
    suite = xml.parse(folder / "junit.xml").getroot()[0]
    found = {}
    for case in suite:
        problems = [each for each in case if each.tag != "system-out"]
        tag, message = (problems[0].tag, problems[0].get("message", "")) if problems else ("", "")
        found[f"{case.get('classname')}/{case.get('name')}"] = (tag, message)
    counts = [tag for tag, _ in found.values()]
    assert [int(suite.get(key, "")) for key in ("tests", "failures", "errors", "skipped")] == [
        len(counts), *map(counts.count, ("failure", "error", "skipped"))
    ]  # fmt: skip
    return found


def test_a_divergence_fails_and_github_shows_it_at_the_users_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "checkout" / "a, b: 100%.py"
    golden = dump(tmp_path / "golden", str(source), 1.0)
    changed = dump(tmp_path / "changed", str(source), 1.5)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(source.parent))
    assert compare(changed, golden, tmp_path / "out", "--ci") == 1
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert len(shown) == 1
    assert shown[0].startswith("::error file=a%2C b%3A 100%25.py,line=15,title=msprobe%3A first divergence::")
    assert f"{RECORD}%0A  effect: output 0 has a relative error of" in shown[0]
    assert cases(tmp_path / "out") == {"step 0/rank 0": ("failure", f"first divergence: {RECORD}")}


@pytest.mark.parametrize("checkout", ["", "checkout", "/elsewhere"])
def test_a_line_outside_of_the_checkout_keeps_its_path(
    checkout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    golden, changed = dump(tmp_path / "golden", "lib/a.py", 1.0), dump(tmp_path / "changed", "lib/a.py", 1.5)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", checkout)
    assert compare(changed, golden, tmp_path / "out", "--ci") == 1
    assert "::error file=lib/a.py,line=15," in capsys.readouterr().out


def test_a_rank_that_a_divergence_has_reached_is_skipped(tmp_path: Path) -> None:
    case = Path(__file__).parent / "cases" / "multi_rank"
    assert compare(case / "target", case / "golden", tmp_path, "--ci") == 1
    found = {name: tag for name, (tag, _) in cases(tmp_path).items()}
    assert found == {"step 0/rank 0": "skipped", "step 0/rank 1": "failure"}


@pytest.mark.parametrize("fail_on", ["divergence", "never"])
def test_equal_runs_pass_and_other_levels_apply(fail_on: str, tmp_path: Path) -> None:
    golden, changed = dump(tmp_path / "golden", "a.py", 1.0), dump(tmp_path / "changed", "a.py", 1.5)
    target = golden if fail_on == "divergence" else changed
    assert compare(target, golden, tmp_path / "out", "--ci", "--fail-on", fail_on) == 0
    assert cases(tmp_path / "out") == {"step 0/rank 0": ("", "")}


@pytest.mark.parametrize("on_github", [True, False])
def test_what_cannot_be_read_or_told_is_an_error_and_not_a_pass(
    on_github: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", str(on_github).lower())
    golden = dump(tmp_path / "golden", "a.py", 1.0)
    other = write(tmp_path / "other", {"Functional.relu.0.forward": call([], [])}, level="L1")
    for target, message in ((tmp_path / "nowhere", "does not exist"), (other, "no record of one dump matches")):
        assert compare(target, golden / "step0" / "rank0", tmp_path / "out", "--ci") == 2
        ((tag, said),) = cases(tmp_path / "out").values()
        assert tag == "error" and message in said
        assert capsys.readouterr().out.count("::error title=msprobe") == on_github


def test_ranks_that_have_nothing_in_common_are_one_error(tmp_path: Path) -> None:
    run = Path(__file__).parent / "cases" / "multi_rank" / "target"
    assert main(["compare", "--ranks", str(run), "-o", str(tmp_path), "--ci"]) == 2
    ((name, (tag, said)),) = cases(tmp_path).items()
    assert (name, tag) == ("compare/all", "error") and said.startswith("cannot be told: ")
