"""Arguments of a training read from a start script, which is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.common.errors import MsprobeException
from probe.configcheck.hyper.settings_files import settings_of
from probe.configcheck.hyper.shell import arguments_of, environment_of

CASES = {
    "python": ("python x.py --lr 1 --bs 2", {"lr": "1", "bs": "2"}),
    "deepspeed and a quoted variable": (
        'LR=3\nARGS="--lr $LR --bs 2"\ndeepspeed x.py $ARGS',
        {"lr": "3", "bs": "2"},
    ),
    "continued lines": (
        "LR=3\npython x.py \\\n  --lr $LR \\\n  --bs=2 \\\n  --flag\n",
        {"lr": "3", "bs": "2", "flag": True},
    ),
    "a text over several lines": ('A="\n  --lr 3 \\\n  --bs 2\n"\ntorchrun x.py $A', {"lr": "3", "bs": "2"}),
    "an array with comments": (
        'M=(\n  --layers 32  # many\n  --betas 0.9 0.95\n)\npython -u t.py "${M[@]}" --x',
        {"layers": "32", "betas": ["0.9", "0.95"], "x": True},
    ),
    "defaults": ("N=${N:-8}\npython t.py --n $N --m ${M:-4} --k ${K-2}", {"n": "8", "m": "4", "k": "2"}),
    "added to": ('A="$A --a 1"\nA+=" --b 2"\npython t.py $A', {"a": "1", "b": "2"}),
    "launcher arguments apart": (
        "torchrun --nproc_per_node 8 --nnodes=2 t.py --lr 1e-4",
        {"launcher.nproc_per_node": "8", "launcher.nnodes": "2", "lr": "1e-4"},
    ),
    "torch.distributed.run": (
        "python3 -m torch.distributed.run --nproc_per_node=4 t.py --a 1",
        {"launcher.nproc_per_node": "4", "a": "1"},
    ),
    "a module with settings of Hydra": (
        "python -m verl.trainer.main_ppo actor.lr=1e-6 +data.n=3",
        {"actor.lr": "1e-6", "data.n": "3"},
    ),
    "variables before, redirection behind": (
        "CUDA_VISIBLE_DEVICES=0 nohup python t.py --offset -1 > log.txt 2>&1 &",
        {"offset": "-1"},
    ),
    "other commands": ("mkdir -p out --mode 700\necho python t.py --lr 1\n# python t.py --lr 2\n", {}),
    "several commands in a line": ("cd x && LR=5; python t.py --lr $LR && echo done", {"lr": "5"}),
    "several exports in a line": ('export LR=3 BS="2 # no comment" X\npython t.py --lr $LR', {"lr": "3"}),
    "a document": ("cat > c.py <<END\npython t.py --lr 1\nEND\npython t.py --lr 2", {"lr": "2"}),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments(name: str) -> None:
    text, expected = CASES[name]
    assert arguments_of(text) == expected


@pytest.mark.parametrize("text, expected", [
    ("export A=1\npython t.py", {"A": "1"}),
    ("A=1\nexport A B=\"two words\"\nA=2", {"A": "2", "B": "two words"}),
    ("declare -x A=1\nlocal B=2\ndeclare -i C=3\nD=4", {"A": "1"}),
    ("LR=1 X=$LR", {}),
    ("A=1 B=2 nohup python t.py --lr 1", {"A": "1", "B": "2"}),
    ("A=1 B=2 echo done", {}),
    ("N=4; export OMP_NUM_THREADS=$N && export M=$((N+1)) P=`nproc` Q=$UNKNOWN R", {"OMP_NUM_THREADS": "4"}),
    ("export -n A=1\nexport\nexport -p", {}),
])  # fmt: skip
def test_exported_variables(text: str, expected: dict[str, str]) -> None:
    assert environment_of(text) == expected


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = arguments_of(f"LR=$(touch {mark}; echo 3)\npython t.py --lr $LR --x `touch {mark}`\n")
    assert not mark.exists() and "lr" in found


@pytest.mark.parametrize(
    "text", ['python t.py --a "open', "A=(\n1", "python", "${", "$", "a=${b:-${c}}\npython t.py $a", "\\"]
)
def test_a_damaged_script_raises_nothing(text: str) -> None:
    arguments_of(text)


def test_files_of_every_kind(tmp_path: Path) -> None:
    texts = {
        "a.yaml": "training: {lr: 1e-5, steps: [1, 2]}\nlist:\n- {a: 1}\n",
        "a.json": '{"training": {"lr": "1e-5", "steps": [1, 2]}, "list": [{"a": 1}]}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        expected = {"training.lr": "1e-5", "training.steps": [1, 2], "list.0.a": 1}
        assert settings_of(str(tmp_path / name)) == expected


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "", "allowed: a shell script"),
        ("a.yaml", "- 1", "holds a list"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", None, "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(MsprobeException, match=message):
        settings_of(str(tmp_path / name))


def test_arguments_that_depend_on_a_branch_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "x.sh"
    script.write_text(
        'LR=1\nBS=4\nif [ -n "$FAST" ]; then\n  LR=2\nelse LR=3; fi\n'
        "case $1 in\n  big) EXTRA='--layers 8' ;;\nesac\npython t.py --lr $LR --bs $BS $EXTRA\n"
    )
    assert settings_of(str(script)) == {"lr": "3", "bs": "4", "layers": "8"}
    assert "lr, layers depend on an if or a case" in capsys.readouterr().err
    script.write_text("python t.py --lr 1\n")
    settings_of(str(script))
    assert "depend" not in capsys.readouterr().err
