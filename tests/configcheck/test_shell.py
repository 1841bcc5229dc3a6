"""Arguments of a training read from a start script, which is not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.common.errors import MsprobeException
from probe.configcheck.settings_files import read_settings
from probe.configcheck.shell import PROGRAM, read_script

CASES = {
    "python": ("python x.py --lr 1 --bs 2", {"lr": "1", "bs": "2"}),
    "deepspeed and a quoted variable": (
        'LR=3\nARGS="--lr $LR --bs 2"\ndeepspeed x.py $ARGS',
        {PROGRAM: "deepspeed", "lr": "3", "bs": "2"},
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
    "several exports in a line": (
        'export LR=3 BS="2 # no comment" X\npython t.py --lr $LR',
        {"lr": "3", "environment.BS": "2 # no comment"},
    ),
    "a document": ("cat > c.py <<END\npython t.py --lr 1\nEND\npython t.py --lr 2", {"lr": "2"}),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments(name: str) -> None:
    text, expected = CASES[name]
    launches = read_script(text).launches
    assert launches[-1:] == ([expected] if expected else [])


@pytest.mark.parametrize("text, expected", [
    ("export A=1\npython t.py", {"A": "1"}),
    ("A=1\nexport A B=\"two words\"\nA=2", {"A": "2", "B": "two words"}),
    ("declare -x A=1\nlocal B=2\ndeclare -i C=3\nD=4", {"A": "1"}),
    ("LR=1 X=$LR", {}),
    ("A=1 B=2 nohup python t.py --lr 1", {"A": "1", "B": "2"}),
    ("A=1 B=2 echo done", {}),
    ("N=4; export OMP_NUM_THREADS=$N && export M=$((N+1)) P=`nproc` Q=$UNKNOWN R", {"OMP_NUM_THREADS": "4", "M": "5"}),
    ("export -n A=1\nexport\nexport -p", {}),
])  # fmt: skip
def test_exported_variables(text: str, expected: dict[str, str]) -> None:
    assert read_script(text).environment == expected


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (found,) = read_script(f"LR=$(touch {mark}; echo 3)\npython t.py --lr $LR --x `touch {mark}`\n").launches
    assert not mark.exists() and "lr" in found


@pytest.mark.parametrize(
    "text", ['python t.py --a "open', "A=(\n1", "python", "${", "$", "a=${b:-${c}}\npython t.py $a", "\\"]
)
def test_a_damaged_script_raises_nothing(text: str) -> None:
    read_script(text)


def test_files_of_every_kind(tmp_path: Path) -> None:
    texts = {
        "a.yaml": "training: {lr: 1e-5, steps: [1, 2]}\nlist:\n- {a: 1}\n",
        "a.json": '{"training": {"lr": "1e-5", "steps": [1, 2]}, "list": [{"a": 1}]}',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        expected = {"training.lr": "1e-5", "training.steps": [1, 2], "list.0.a": 1}
        assert read_settings(str(tmp_path / name)).sources == {name: expected}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "", "allowed: a shell script"),
        ("a.yaml", "- 1", "holds a list"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", None, "cannot be read"),
        ("a.json", '{"a": ' * 300 + "1" + "}" * 300, "nested too deeply"),
        ("a.json", '{"a": ' + "[" * 300 + "1" + "]" * 300 + "}", "nested too deeply"),
        ("a.yaml", "a: " + "[" * 300 + "1" + "]" * 300, "nested more than 100 levels deep"),
        ("launch", "", "the file name has no suffix; allowed: a shell script"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(MsprobeException, match=message):
        read_settings(str(tmp_path / name))


def test_an_empty_path_is_said_to_be_empty() -> None:
    with pytest.raises(MsprobeException, match=r"^the path of a start script or settings file is empty; allowed"):
        read_settings("")


def test_every_branch_that_nobody_knows_is_read(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text(
        'LR=1\nBS=4\nif [ -n "$FAST" ]; then\n  LR=2\nelse LR=3; fi\n'
        "case $1 in\n  big) EXTRA='--layers 8' ;;\nesac\npython t.py --lr $LR --bs $BS $EXTRA\n"
    )
    found = read_settings(str(script))
    assert found.sources == {
        "x.sh": {"lr": "2", "bs": "4", "layers": "8"}, "x.sh (2)": {"lr": "3", "bs": "4"},
    }  # fmt: skip
    assert "lr, layers depend on an if or a case" in found.notes[0]
    script.write_text("python t.py --lr 1\n")
    assert read_settings(str(script)).notes == []


@pytest.mark.parametrize("text, launches", [
    ("for x in 1 2; do python t.py --lr $x; done", [{"lr": "1"}, {"lr": "2"}]),
    ("for x in 1 2; do\n  for y in a b; do python t.py --x $x$y; done\ndone",
     [{"x": "1a"}, {"x": "1b"}, {"x": "2a"}, {"x": "2b"}]),
    ("N=2\nif [ $N -gt 1 ]; then python t.py --a 1; else python t.py --a 2; fi", [{"a": "1"}]),
    ("X=a; case $X in a|b) L=1;; *) L=2;; esac; python t.py --lr $L", [{"lr": "1"}]),
    ("[ -z '' ] && L=1 || L=2\npython t.py --lr $L", [{"lr": "1"}]),
    ("f() { python t.py --lr $1 --n ${2:-4}; }\nf 3\nf 5 6", [{"lr": "3", "n": "4"}, {"lr": "5", "n": "6"}]),
    ('C="python t.py --lr 1"\necho $C\neval "$C"', [{"lr": "1"}]),
    ("A=(x y)\nfor i in 0 1; do python t.py --lr ${A[$i]} --n ${A[i-1]}; done",
     [{"lr": "x", "n": "y"}, {"lr": "y", "n": "x"}]),
    ("python t.py --multirun a.b=1,2", [{"multirun": True, "a.b": "1,2"}]),
    ("srun -n 4 bash -c 'python t.py --lr 1'", [{"launcher.n": "4", PROGRAM: "srun", "lr": "1"}]),
    ("A=(--a 1 '--b=2 3')\nA+=(--c)\npython t.py \"${A[@]}\"", [{"a": "1", "b": "2 3", "c": True}]),
    ("python t.py --it $((8 * (2 + 1) / 5))", [{"it": "4"}]),
    ("P=/x/y; python t.py --p ${P##*/} --q ${P:0:3} --r ${P^} --s $(basename $P)",
     [{"p": "${P##*/}", "q": "${P:0:3}", "r": "${P^}", "s": "$(basename $P)"}]),
    ("CUDA_VISIBLE_DEVICES=0 python t.py --lr 1 $EXTRA_ARGS \"$@\"", [{"lr": "1"}]),
])  # fmt: skip
def test_what_a_script_says_is_followed(text: str, launches: list[dict[str, object]]) -> None:
    found = read_script(text)
    assert found.launches == launches
    assert found.notes == []


@pytest.mark.parametrize("loop", [
    "for x in *.txt", "while read x", "for ((x = 0; x < 3; x++))", "for x in $(seq 1 4)", "for x in {1..4}",
])  # fmt: skip
def test_a_loop_that_cannot_be_followed_is_one_sentence(loop: str) -> None:
    found = read_script(f"{loop}; do python t.py --lr $x; done")
    (note,) = found.notes
    assert len(found.launches) == 1 and "loop" in note and "is not followed" in note


def test_a_settings_file_that_a_script_writes_is_read(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text('S=2\ncat > ds.json <<EOF\n{"zero_optimization": {"stage": $S}}\nEOF\ndeepspeed t.py --lr 1\n')
    assert read_settings(str(script)).sources["x.sh: ds.json"] == {"zero_optimization.stage": 2}
    script.write_text("cat > ds.json <<EOF\n{\nEOF\ndeepspeed t.py --lr 1\n")
    (note,) = read_settings(str(script)).notes
    assert note.startswith("ds.json, which ") and "not valid JSON" in note
    aliases = "".join(f"a{level}: &a{level} [*a{level - 1}, *a{level - 1}]\n" for level in range(1, 40))
    script.write_text(f"cat > ds.yaml <<EOF\na0: &a0 [x]\n{aliases}EOF\ndeepspeed t.py --lr 1\n")
    (note,) = read_settings(str(script)).notes
    assert note.startswith("ds.yaml, which ") and "write it out" in note


def test_a_script_with_many_turns_ends() -> None:
    numbers = " ".join(map(str, range(99)))
    loops = "".join(f"for {name} in {numbers}; do\n" for name in "abcdef")
    found = read_script(loops + "python t.py --x $a$b$c$d$e$f\n" + "done\n" * 6)
    assert 0 < len(found.launches) <= 50
    assert any("more turns than are read" in note for note in found.notes)
    read_script("f() { f; f; }\nf")
    body = "do A=$A$A; B=(${B[@]} ${B[@]} 1); N=$((N * N)); done"
    read_script(f"A=x\nN=9\nfor i in {numbers}; {body}\npython t.py $A $N")
    read_script("A='eval $A'\neval $A")
    read_script("x=x+x+x+x+x+x+x+x\npython t.py --lr $((x))")
    read_script("((" * 10_000 + "if a; then\n" * 1000)


def test_a_script_that_is_nested_without_end_is_one_sentence(tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    for text in ('"$(' * 1000, "${x:-" * 1000):
        script.write_text(text)
        with pytest.raises(MsprobeException, match="nested too deeply"):
            read_settings(str(script))
