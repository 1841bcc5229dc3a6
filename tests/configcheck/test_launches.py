"""Launch settings: what changes numbers is an error wherever it is written, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launches.judged import SETS, answer, is_right
from launches.pair import Pair

from probe.api import cli
from probe.common.environment.gathered import clean_variables
from probe.configcheck.meanings import TABLE, has_no_effect, meaning, variables_of
from probe.configcheck.sources import conflicts

LEFT = ("further: 60", "further: 61")
"""Pairs with the answer *warning*: command substitution in a start script is not followed, and the answer says so."""
ALL = {
    name: pair
    for title, pairs in SETS.items()
    for number, pair in enumerate(pairs)
    if (name := f"{title}: {number}") not in LEFT
}


@pytest.mark.sampled(least=12, each=False)
@pytest.mark.parametrize("name", ALL)
def test_the_answer_about_a_pair_of_launches_is_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tests set it, and a pack has the variables of its process; neither launch of a pair had it.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = answer(ALL[name], tmp_path)
    assert is_right(ALL[name], found), (ALL[name], found)


@pytest.mark.parametrize(("one", "other"), [
    ("nproc_per_node", "launcher.nproc-per-node"), ("optimizer.params.lr", "learning_rate"),
    ("bf16.enabled", "bf16"), ("zero_optimization.stage", "zero_stage"), ("tp", "tensor-model-parallel-size"),
    ("trainer.n_gpus_per_node", "launcher.num_gpus"), ("MBS", "train_micro_batch_size_per_gpu"),
])  # fmt: skip
def test_names_of_one_setting(one: str, other: str) -> None:
    assert meaning(one)[0] is meaning(other)[0] is not None


def test_a_name_stands_for_one_setting_and_has_an_effect() -> None:
    names = [name.partition("=")[0].replace("_", "") for setting in TABLE for name in setting.names.split()]
    assert {name for name in names if names.count(name) > 1} <= {"attnimplementation"}
    assert not any(map(has_no_effect, ("q_lora_rank", "dropout", "hidden_size", "output_size", "time_dim", "name")))
    assert all(map(has_no_effect, ("output-dir", "tb_log_dir", "trainer.default_root_dir", "val_freq", "master_port")))


def test_known_variables_pass_the_allow_list() -> None:
    variables = {name: "1" for setting in TABLE for name in variables_of(setting)}
    assert variables.keys() == clean_variables(variables)[0].keys()


def test_a_key_with_two_values_is_said_once_for_each_setting() -> None:
    script = {"lr": "1e-5", "seed": "1", "log_dir": "b"}
    sources = {"a.yaml": {"train.lr": 1e-4, "seed": 1, "log_dir": "a"}, "run.sh": script}
    (sentence,) = conflicts(sources)
    assert sentence.startswith("learning rate has 2 values: 0.0001 in a.yaml (train.lr), 1e-5 in run.sh (lr)")
    # Two launches of one script, two parts of one file, and two roles are no contradiction.
    assert conflicts({"run.sh": {"lr": 1}, "run.sh (2)": {"lr": 2}}) == []
    assert conflicts({"a.yaml": {"a.p": 1, "b.p": 2}}) == []
    assert conflicts({"a.yaml": {"actor.lr": 1}, "b.yaml": {"critic.lr": 2}}) == []


def write(folder: Path, **texts: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text)
    return [str(folder / name.replace("_", ".")) for name in texts]


def collected(capsys: pytest.CaptureFixture[str], folder: Path, *given: str) -> dict[str, Any]:
    assert cli.main(["config_check", "-d", *given, "-o", str(folder / "pack.zip"), "--json"]) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    return content


def test_collecting_says_what_has_two_values_and_reads_what_a_script_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script, _ = write(tmp_path, run_sh="deepspeed t.py --deepspeed ds.json --lr 1", ds_json='{"lr": 2, "lr": 3}')
    notes = collected(capsys, tmp_path, script)["notes"]
    assert any(note.startswith("learning rate has 2 values: 1 in run.sh (lr), 3 in ds.json (lr)") for note in notes)
    assert [note for note in notes if "ds.json is read as well" in note]
    (given,) = write(tmp_path, a_yaml="lr: 1\nb: {c: 1, c: 2}\n")
    assert any("c is there 2 times: 1, 2" in note for note in collected(capsys, tmp_path, given)["notes"])


@pytest.mark.parametrize("text", ["python t.py --lr '1\n", "if true; then python t.py --lr 1\n", "A=(1\npython t.py"])
def test_a_script_that_no_shell_reads_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = collected(capsys, tmp_path, *write(tmp_path, run_sh=text))["notes"]
    assert len([note for note in notes if "not closed" in note or "has no end" in note]) == 1


def test_the_workbook_and_the_folders_of_msprobe_come_by_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    one, other = "torchrun --nproc_per_node 4 t.py --lr 1", "torchrun --nproc_per_node 8 t.py"
    answer(Pair("", {"a.sh": one}, {"a.sh": other}, "world size"), tmp_path)
    out = tmp_path / "out"
    book = openpyxl.load_workbook(out / "result.xlsx")
    assert book.sheetnames[:2] == ["summary", "env"]
    assert ["hyperparameters", "error"] in [list(row) for row in book["summary"].iter_rows(values_only=True)]
    head, *rows = [list(row) for row in book["hyperparameters"].iter_rows(values_only=True)]
    assert head[:7] == ["file_name", "bench_para", "cmp_para", "bench_value", "cmp_value", "matched_with", "level"]
    assert sorted(row[1] for row in rows) == ["launcher.nproc_per_node", "lr"]
    for name in ("bench", "cmp"):
        names = {str(path.relative_to(out / name)) for path in (out / name).rglob("*") if path.is_file()}
        assert names == {"env", "pip", "hyperparameters/hyperparameters_static.json"}
        assert (out / name).stat().st_mode & 0o777 == 0o750
    # Members of an earlier comparison do not stay, and other files do.
    for name in ("random/rank0.json", "mine.txt"):
        (out / "bench" / name).parent.mkdir(exist_ok=True)
        (out / "bench" / name).write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    packs = [str(tmp_path / f"{side}.zip") for side in ("golden", "target")]
    assert cli.main(["config_check", "-c", *packs, "-o", str(out), "--overwrite"]) == 1
    assert "result.xlsx is not written: openpyxl is needed" in capsys.readouterr().out
    assert not (out / "bench" / "random" / "rank0.json").exists() and (out / "bench" / "mine.txt").exists()
    assert cli.main(["config_check", "-c", *packs, "-o", str(tmp_path / "o2"), "--xlsx"]) == 2


def rows(folder: Path, golden: dict[str, str], target: dict[str, str]) -> list[dict[str, Any]]:
    """The differing hyper-parameters of two launches, by their files."""
    found: list[dict[str, Any]] = answer(Pair("", golden, target, ""), folder)["checks"]["hyperparameters"]["rows"]
    return found


def test_an_option_counts_and_the_file_that_it_overrides_is_a_warning(tmp_path: Path) -> None:
    def launch(file: str, option: str, count: int) -> dict[str, str]:
        command = f"accelerate launch --config_file {file} {option} t.py"
        return {"run.sh": command, file: f"num_processes: {count}\n"}

    other = launch("w8.yaml", "", 8)
    found = rows(tmp_path / "same", launch("w4.yaml", "--num_processes 8", 4), other)
    assert [(row["level"], row["golden"], row["target"]) for row in found if "num_processes" in row["name"]] == [
        ("warning", 4, 8)
    ]
    found = rows(tmp_path / "fewer", launch("w8.yaml", "--num_processes 2", 8), other)
    assert [(row["level"], row["golden"], row["target"]) for row in found if "num_processes" in row["name"]] == [
        ("error", "2", 8)
    ]


def test_a_value_of_one_of_several_branches_and_many_settings_of_one_name(tmp_path: Path) -> None:
    script = 'if [ -n "$1" ]; then L=1e-3; else L={}; fi\npython t.py --lr $L\n'
    (row,) = rows(tmp_path / "branch", {"a.sh": script.format("1e-4")}, {"a.sh": script.format("2e-4")})
    assert (row["golden"], row["target"]) == ("1e-4", "2e-4") and "learning rate" in row["why"]
    many = [json.dumps({f"{side}{index}": {"weight": f"{side}{index}"} for index in range(1000)}) for side in "ab"]
    assert len(rows(tmp_path / "many", {"m.json": many[0]}, {"m.json": many[1]})) == 1000
    # Devices that are no numbers are counted.
    found = rows(
        tmp_path / "odd",
        {"a.sh": "deepspeed --include localhost:0-3@other:²-³ t.py"},
        {"a.sh": "torchrun --nproc_per_node 5 t.py"},
    )
    assert found == []
