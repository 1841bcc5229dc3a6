"""Which PyTorch calls `random_save` sees."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import forks
import pytest

# The scripts run the very package that is tested here, installed or not.
ENVIRONMENT = {**os.environ, "PYTHONPATH": forks.CHECKOUT}
PRELUDE = """
import pickle, random, sys, torch
from torch import nn
from probe.api.randomness import random_save, seed_all
from probe.backends.torch import randomness
"""


def rows_of(tmp_path: Path, code: str, whole_stacks: bool = False) -> list[list[str]]:
    """Run `code` after PRELUDE as a script that records into ``out``; return the rows.

    With `whole_stacks` it has an interpreter of its own, in which the script is the outermost frame.
    """
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + code, encoding="utf-8")
    if whole_stacks:
        command = [sys.executable, str(script)]
        done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True)
    else:
        done = forks.run_python("torch", script, tear_down=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "out").iterdir()
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return [[path.name], *list(csv.reader(stream))[1:]]


DROPPING = {
    "nn.Dropout()(value)": "functional_random.dropout",
    "nn.Dropout(inplace=True)(value.clone())": "functional_random.dropout",
    "nn.functional.dropout(value)": "functional_random.dropout",
    "torch.dropout(value, 0.5, True)": "torch_random.dropout",
    "torch.dropout_(value.clone(), p=0.5, train=True)": "torch_random.dropout_",
    "nn.Dropout1d()(value)": "functional_random.dropout1d",
    "nn.Dropout2d()(value[None])": "functional_random.dropout2d",
    "nn.Dropout3d()(value[None, None])": "functional_random.dropout3d",
    "nn.AlphaDropout()(value)": "functional_random.alpha_dropout",
    "nn.functional.alpha_dropout(value, 0.5, True)": "functional_random.alpha_dropout",
    "nn.FeatureAlphaDropout()(value)": "functional_random.feature_alpha_dropout",
    "torch.feature_alpha_dropout(value, 0.5, True)": "torch_random.feature_alpha_dropout",
    "attention(value, value, value, dropout_p=0.1)": "functional_random.scaled_dot_product_attention",
    "nn.MultiheadAttention(4, 2, 0.1)(value, value, value)": "functional_random.dropout",
    "nn.MultiheadAttention(4, 2, 0.1)(value, value, value, need_weights=False)":
        "functional_random.scaled_dot_product_attention",
    "torch.jit.script(nn.Sequential(nn.Dropout()))(value)": "",
    "nn.Dropout().eval()(value)": "",
    "nn.Dropout(0.0)(value)": "",
    "nn.functional.alpha_dropout(value, 0.5)": "",
    "torch.dropout(value, 0.5, False)": "",
    "attention(value, value, value)": "",
    "nn.MultiheadAttention(4, 2, 0.1).eval()(value, value, value)": "",
}  # fmt: skip


def test_dropout_is_seen_in_each_form_where_it_drops_something(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        """
attention = nn.functional.scaled_dot_product_attention
value = torch.ones(2, 3, 4)
random_save(randomness.dropping_calls(), randomness.rank, "out")
attention = nn.functional.scaled_dot_product_attention
"""
        + "\n".join(f"{call}; random.random()" for call in DROPPING),
    )
    found = [row[0].rpartition(".")[0] for row in rows[1:]]
    expected = [[name] if name else [] for name in DROPPING.values()]
    assert found == [name for names in expected for name in [*names, "python_random.random"]]


def test_functions_methods_and_initialisation_are_seen(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        """
random_save(randomness.random_calls(), randomness.rank, "out")
value = torch.rand(2, 2)
torch.randn_like(value)
torch.empty(3).normal_()
torch.randperm(4)
value.multinomial(1)
nn.Linear(3, 2)
nn.functional.dropout(value, 0.5)
torch.zeros(3)
""",
        whole_stacks=True,
    )
    assert [row[0] for row in rows[1:]] == [
        "torch_random.rand.0",
        "torch_random.randn_like.0",
        "tensor_random.normal_.0",
        "torch_random.randperm.0",
        "tensor_random.multinomial.0",
        "tensor_random.uniform_.0",
        "tensor_random.uniform_.1",
    ]
    # Innermost first, with the frames of torch itself in between.
    assert "kaiming_uniform_" in rows[6][1].split("\n")[0]
    assert rows[6][1].endswith("in <module>, \n nn.Linear(3, 2)\n")


@pytest.mark.sampled(least=2, each=False, group="several processes with a framework")
def test_the_file_takes_the_rank_of_the_process_group(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        """
import torch.distributed as dist
random_save(randomness.random_calls(), randomness.rank, "out")
torch.rand(1)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.rand(1)
dist.destroy_process_group()
torch.rand(1)
""",
    )
    assert rows[0][0].startswith("random_rank0_")
    assert [row[0] for row in rows[1:]] == [f"torch_random.rand.{number}" for number in range(3)]


def test_recording_and_fixing_work_together(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path,
        """
random_save(randomness.random_calls(), randomness.rank, "out")
seed_all(randomness, is_enhanced=True)
assert torch.equal(torch.rand(3), torch.rand(3))
assert random.random() == random.random()
randomness.fix_random_calls().remove()
assert not torch.equal(torch.rand(3), torch.rand(3))
""",
    )
    assert [row[0] for row in rows[1:]] == [
        "torch_random.rand.0",
        "torch_random.rand.1",
        "python_random.random.0",
        "python_random.random.1",
        "torch_random.rand.2",
        "torch_random.rand.3",
    ]


def test_every_listed_call_is_watched_and_can_still_be_pickled_compiled_and_moved(tmp_path: Path) -> None:
    rows_of(
        tmp_path,
        """
places = randomness.random_calls()
before = [getattr(place.owner, place.name) for place in places]
assert {place.owner for place in places} == {torch, torch.Tensor} and all(map(callable, before))
random_save(places, randomness.rank, "out")
assert all(vars(place.owner)[place.name] is not was for place, was in zip(places, before))
assert pickle.loads(pickle.dumps(torch.rand)) is torch.rand
assert pickle.loads(pickle.dumps(torch.Tensor.uniform_)) is torch.Tensor.uniform_
with torch.device("meta"):
    assert torch.rand(2).is_meta
assert torch.compile(lambda x: x + torch.rand(2), backend="eager", fullgraph=True)(torch.ones(2)).shape == (2,)
""",
    )
