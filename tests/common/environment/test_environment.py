"""The environment of a run: command, settings of modules, secrets withheld, and the differences of two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.common.environment import gathered
from probe.common.environment.differences import differences
from probe.common.environment.environment_file import Buffer, ModuleSettings, folded, settings_at

# --- the command line of a run as it is recorded, and what differs between two of them

PLANTED = "planted"
ROOT = Path(__file__).parents[3]
PRINT = "import json; from probe.common.environment.gathered import command; print(json.dumps(command()))"


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


def of(command: str, **more: Any) -> dict[str, Any]:
    return {"command": words_of(command), **more}


def test_arguments_that_differ_are_named_and_places_of_output_are_not() -> None:
    target = of("python train.py large --lr 0.2 --amp --output runs/a --run_name a --model_path b/x")
    golden = of("python old.py small --lr 0.1 --output runs/b --run_name b --model_path a/x")
    assert [each.text for each in differences(target, golden)] == [
        "program train.py (golden: old.py)",
        "command-line argument 1 is large (golden: small)",
        "--lr 0.2 (golden: 0.1)",
        "--amp on (golden: not there)",
        "--model_path b/x (golden: a/x)",
    ]
    longer = of("python train.py large --lr 0.2"), of("python train.py --lr 0.2")
    assert [each.text for each in differences(*longer)] == ["command-line argument 1 is large (golden: not there)"]
    assert differences(target, {}) == [] and differences({"command": 3}, golden) == []


def test_an_argument_that_a_setting_says_already_is_not_named_again() -> None:
    target = of("python train.py --seed 1", seeds={"torch": 1})
    golden = of("python train.py --seed 2", seeds={"torch": 2})
    assert [each.text for each in differences(target, golden)] == ["seed 1 (golden: 2)"]


# --- the differences of two environments, in the order in which they explain a divergence

ENVIRONMENT: dict[str, Any] = {
    "format": 1,
    "framework": "pytorch",
    "python": "3.11.7",
    "platform": "Linux x86_64",
    "packages": {"torch": "2.9.0", "numpy": "2.0.0"},
    "versions": {"cuda": "12.4"},
    "devices": [],
    "switches": {"matmul_tf32": True, "threads": 4},
    "layout": {},
    "seeds": {"torch": 2, "numpy": 2, "python": 2},
    "random_states": {"torch": "aa", "numpy": "bb"},
    "variables": {"NCCL_ALGO": "Ring"},
    "withheld": 3,
    "optimizers": [{"type": "AdamW", "groups": [{"lr": 0.1, "parameters": 3}, {"lr": 0.1, "parameters": 1}]}],
}


def texts(**changes: Any) -> list[str]:
    return [each.text for each in differences({**ENVIRONMENT, **changes}, ENVIRONMENT)]


def test_one_seed_for_all_generators_is_one_difference() -> None:
    assert texts(
        seeds={"torch": 1, "numpy": 1, "python": 1}, variables={"NCCL_ALGO": "Ring", "PYTHONHASHSEED": "1"}
    ) == [
        "seed 1 (golden: 2)",
        "PYTHONHASHSEED 1 (golden: not there)",
    ]
    assert texts(seeds={"torch": 2, "numpy": 5, "python": 2}) == ["seed of numpy 5 (golden: 2)"]


def test_a_seed_that_a_framework_drew_is_not_set_and_does_not_lead() -> None:
    """torch.initial_seed() of two processes in which nothing was seeded."""
    drawn, other = 9929030366830163614, 7935408815278348805
    switches = {"matmul_tf32": False, "threads": 4}
    assert texts(seeds={"torch": drawn}, switches=switches) == [
        "TF32 in matrix products off (golden: on)",
        "seed not set (golden: 2)",
    ]
    both = [{**ENVIRONMENT, "seeds": {"torch": seed}} for seed in (drawn, other)]
    assert [each.text for each in differences(both[0], both[1])] == ["seed not set (golden: not set)"]


def test_a_difference_of_one_parameter_group_says_which_one() -> None:
    groups = [{"lr": 0.1, "parameters": 2}, {"lr": 0.3, "parameters": 1}]
    assert texts(optimizers=[{"type": "AdamW", "groups": groups}]) == [
        "group 0: parameters 2 (golden: 3)",
        "group 1: lr 0.3 (golden: 0.1)",
    ]


def test_the_most_likely_cause_comes_first() -> None:
    found = texts(
        packages={"torch": "2.7.1", "numpy": "1.26.0"},
        switches={"matmul_tf32": False, "threads": 8},
        seeds={"torch": 1, "numpy": 1, "python": 1},
        optimizers=[{"type": "AdamW", "groups": [{"lr": 0.2, "parameters": 3}, {"lr": 0.2, "parameters": 1}]}],
        variables={},
    )
    assert found == [
        "seed 1 (golden: 2)",
        "lr 0.2 (golden: 0.1)",
        "TF32 in matrix products off (golden: on)",
        "torch 2.7.1 (golden: 2.9.0)",
        "NCCL_ALGO not there (golden: Ring)",
        "CPU threads 8 (golden: 4)",
        "numpy 1.26.0 (golden: 2.0.0)",
    ]


def test_a_damaged_file_of_somebody_else_is_no_error() -> None:
    assert differences({"seeds": 3, "switches": None, "optimizers": {}}, ENVIRONMENT)


# --- settings of modules in the environment file: equal layers are folded, nothing is lost but what is counted

LINEAR = ModuleSettings("torch.nn.modules.linear.Linear", True, True, {"in_features": 4})
NINES = "9" * 5000
TABLE = Buffer("torch.float32", (8,), (1.0, 0.0, 0.25, 1.5))


def norm(eps: float) -> ModuleSettings:
    return ModuleSettings("models.Norm", False, True, {"eps": eps, "axis": None}, ("forward hook f",), {"inv": TABLE})


def back(*tables: dict[str, Any], step: int | None = 0) -> dict[str, ModuleSettings]:
    read: dict[str, Any] = json.loads(json.dumps({"modules": list(tables)}))
    return dict(settings_at(read, step))


def test_equal_layers_become_one_entry_and_come_back() -> None:
    pairs = [(layer, expert) for layer in range(12) for expert in range(8)]
    modules = {f"Module.layers.{layer}.experts.{expert}.up.Linear": LINEAR for layer, expert in pairs}
    modules.update({f"Module.layers.{layer}.norm.Norm": norm(1e-5) for layer in range(12) if layer != 7})
    modules.update({"Module.layers.7.norm.Norm": norm(1e-6), "Module.layers.010.Linear": LINEAR})
    modules["Module.Net"] = norm(0.5)._replace(casts=("float8_e4m3fn", "float8_e5m2"))
    table = folded(0, modules)
    assert table["settings"][0]["names"] == ["Module.layers.[0-11].experts.[0-7].up.Linear", "Module.layers.010.Linear"]
    folded_names = [entry["names"] for entry in table["settings"]]
    assert ["Module.layers.[0-6].norm.Norm", "Module.layers.[8-11].norm.Norm"] in folded_names
    assert table["left_out"] == 0 and back(table) == modules


def test_what_is_too_much_is_left_out_and_counted() -> None:
    modules = {f"Module.{number}.norm.Norm": norm(number + 0.5) for number in range(500)}
    modules["Module.a[0-9].Norm"] = norm(0.1)  # This name would be read as ten.
    table = folded(0, modules, most_bytes=20_000)
    assert len(json.dumps(table, indent=1)) <= 22_000
    kept = back(table)
    assert 0 < len(kept) < 500 and len(kept) + table["left_out"] == 501
    assert all(modules[name] == settings for name, settings in kept.items())


@pytest.mark.parametrize(
    "modules",
    [
        None, 5, [5], [{"step": "0", "settings": []}], [{"step": 0, "settings": [5, {"type": 3}, {"type": "a.B"}]}],
        [{"step": 0, "settings": [{"type": "a.B", "names": ["M.[0-99999999].[0-99999999].B"]}]}],
        [{"step": 0, "settings": [{"type": "a.B", "names": ["M.[5-2].B"], "values": 3, "hooks": 3, "buffers": 3}]}],
        [{"step": 0, "settings": [{"type": "a.B", "names": [f"M.[0-{NINES}].B"]}]}],
    ],
)  # fmt: skip
def test_a_damaged_file_says_nothing(modules: Any) -> None:
    literal = ("M.[5-2].B", f"M.[0-{NINES}].B")
    assert [name for name in settings_at({"modules": modules}, 0) if name not in literal] == []
    assert settings_at(None, 0) == {}


# --- the filter of variables, settings and lines of code

ALLOWED = {
    "NCCL_ALGO": "Ring",
    "HCCL_DETERMINISTIC": "true",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
    "XLA_FLAGS": "--xla_gpu_deterministic_ops=true",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "8",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
}
WITHHELD = {
    "HOME": "/home/someone",
    "AWS_SECRET_ACCESS_KEY": "x",
    "CUDA_HOME": "/usr/local/cuda",
    "TORCH_HOME": "~/.cache/torch",
    "NCCL_TOKEN": "1",
    "NCCL_SOCKET_IFNAME": "eth0",
    "MS_SCHED_HOST": "node17",
    "MS_X": "10.1.2.3",
    "HCCL_X": "https://user:pass@example.org",
    "TORCH_X": "ghp_abcdefghijklmnop",
    "TORCH_Y": "0123456789abcdef0123456789abcdef",
    "TORCH_Z": "q7Hf93kLm2Pz81VbX0dT",
    "MS_LONG": "x" * 201,
    "MS_LINES": "a\nb",
    "WANDB_API_KEY": "1",
}


def test_variables_pass_by_an_allow_list_and_their_values() -> None:
    kept, withheld = gathered.clean_variables({**ALLOWED, **WITHHELD})
    assert kept == ALLOWED
    assert withheld == len(WITHHELD)


@pytest.mark.parametrize("name", ["wandb-api-key", "hf_token", "db.password", "apiKey", "GITHUB_TOKEN", "user"])
def test_settings_with_the_name_of_a_secret_are_withheld(name: str) -> None:
    assert gathered.clean_settings({name: 8}) == ({}, 1)


def test_models_and_numbers_stay_as_they_are() -> None:
    settings = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "lr": 1e-4, "tokenizer": "GPT2BPETokenizer", "bf16": True,
        "betas": [0.9, 0.95], "dataset": "c4-en-00001-of-01024", "num_key_value_heads": 8, "eos_token_id": 2,
        "pad-token": 0, "tokenizer-type": "bpe", "max_tokens": 8, "query_key_layer_scaling": True,
    }  # fmt: skip
    assert gathered.clean_settings(settings) == (settings, 0)


def test_of_a_path_only_the_last_part_stays() -> None:
    kept, _ = gathered.clean_settings({"data": "/data/corpus/train.bin", "mix": "0.3 /a/b 0.7 ~/c/d"})
    assert kept == {"data": ".../train.bin", "mix": "0.3 .../b 0.7 .../d"}


def test_lines_of_code_lose_their_secrets() -> None:
    assert gathered.clean_line("noise=torch.rand(2,4); random.random()") == "noise=torch.rand(2,4); random.random()"
    assert gathered.clean_line("torch.manual_seed(0 if var=='a' else 1)") == "torch.manual_seed(0 if var=='a' else 1)"
    assert gathered.clean_line("token = 'abc'; torch.rand(2)") == gathered.WITHHELD
    assert gathered.clean_line("login('correct horse battery'); rand()") == "login('...'); rand()"
