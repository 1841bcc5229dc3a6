"""The filter of variables, settings and lines of code."""

from __future__ import annotations

import pytest

from probe.common.environment import secrets

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
    kept, withheld = secrets.clean_variables({**ALLOWED, **WITHHELD})
    assert kept == ALLOWED
    assert withheld == len(WITHHELD)


@pytest.mark.parametrize(
    "name",
    ["num_key_value_heads", "eos_token_id", "pad-token", "tokenizer-type", "max_tokens", "query_key_layer_scaling"],
)
def test_arguments_of_models_are_no_secrets(name: str) -> None:
    assert secrets.clean_settings({name: 8})[0] == {name: 8}


@pytest.mark.parametrize("name", ["wandb-api-key", "hf_token", "db.password", "apiKey", "GITHUB_TOKEN", "user"])
def test_settings_with_the_name_of_a_secret_are_withheld(name: str) -> None:
    assert secrets.clean_settings({name: 8}) == ({}, 1)


def test_models_and_numbers_stay_as_they_are() -> None:
    settings = {
        "model": "meta-llama/Llama-3.1-8B-Instruct", "lr": 1e-4, "tokenizer": "GPT2BPETokenizer", "bf16": True,
        "betas": [0.9, 0.95], "dataset": "c4-en-00001-of-01024",
    }  # fmt: skip
    assert secrets.clean_settings(settings) == (settings, 0)


def test_of_a_path_only_the_last_part_stays() -> None:
    kept, _ = secrets.clean_settings({"data": "/data/corpus/train.bin", "mix": "0.3 /a/b 0.7 ~/c/d"})
    assert kept == {"data": ".../train.bin", "mix": "0.3 .../b 0.7 .../d"}


def test_lines_of_code_lose_their_secrets() -> None:
    assert secrets.clean_line("noise=torch.rand(2,4); random.random()") == "noise=torch.rand(2,4); random.random()"
    assert secrets.clean_line("torch.manual_seed(0 if var=='a' else 1)") == "torch.manual_seed(0 if var=='a' else 1)"
    assert secrets.clean_line("token = 'abc'; torch.rand(2)") == secrets.WITHHELD
    assert secrets.clean_line("login('correct horse battery'); rand()") == "login('...'); rand()"
