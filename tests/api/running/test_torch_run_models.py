"""``msprobe run`` with PyTorch: which models of a program are seen, and under which names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_running import quick

# Each starts programs: of the parameters of a test one set is drawn, and `make reliability` runs all.
pytestmark = pytest.mark.sampled(least=1, each=False)

THREE_LAYERS = """
words, memory, head = nn.Embedding(10, 8), nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)
parameters = [*words.parameters(), *memory.parameters(), *head.parameters()]
optimizer, loss = torch.optim.SGD(parameters, 0.1), nn.CrossEntropyLoss()
for step in range(3):
    optimizer.zero_grad()
    states, _ = memory(words(torch.arange(10).reshape(2, 5)))
    loss(head(states[:, -1]), torch.tensor([1, 3])).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_layers_in_variables_of_their_own_are_models(scripts: Any, tmp_path: Path, level: str) -> None:
    ran = quick(scripts, tmp_path, THREE_LAYERS, "--level", level)
    assert (ran.status, ran.steps, ran.warnings) == (0, ["step0", "step1"], []), ran.err
    bases = ["Module.Embedding", "Module.model~2.LSTM", "Module.model~3.Linear"]
    for step in (0, 1):
        data = ran.data(step)
        assert ran.forwards(step) == [f"{base}.forward.0" for base in bases]
        assert {f"{base}.{what}.0" for base in bases for what in ("backward", "parameters_grad")} <= set(data)
        assert list(data["Module.model~2.LSTM.parameters_grad.0"])
    (path,) = ran.folder.glob("step0/*/construct.json")
    tree = json.loads(path.read_text())
    assert all(tree[f"{base}.{what}.0"] is None for base in bases for what in ("forward", "backward"))
    if level == "mix":
        assert tree["Functional.linear.0.forward"] == "Module.model~3.Linear.forward.0"


NAMES_OF_MODELS = """
import gc

class Named(nn.Module):
    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, x):
        for child in self.children():
            x = child(x)
        return x

def layer():
    return nn.Linear(8, 8)

def train(*models):
    for model in models:
        model(torch.randn(2, 8)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()

optimizers = []
def train_with(*models):
    optimizers[:] = [torch.optim.SGD([p for model in models for p in model.parameters()], 0.1)]
    train(*models)
"""


@pytest.mark.parametrize(
    ("program", "names"),
    [
        # A child of the first model has a child; so has the second model.
        (
            "first, second = nn.Sequential(layer(), nn.Sequential(layer())), nn.Sequential(layer())\n"
            "train_with(first, second)",
            [["0.Linear", "1.0.Linear", "1.Sequential", "model~2.0.Linear"]],
        ),
        # One has the name that the second model would get.
        (
            "first, second = nn.ModuleDict({'model~2': nn.Sequential(layer())}), nn.Sequential(layer())\n"
            "first.forward = first['model~2'].forward\n"
            "train_with(first, second)\n",
            [["model~2.0.Linear", "model~2.0~2.Linear"]],
        ),
        # In the middle of a step, and in a later step.
        (
            "first, second, third = Named(a=layer()), Named(b=layer()), Named(c=layer())\n"
            "train_with(first)\ntrain_with(first, second)\ntrain_with(third, second)",
            [["a.Linear"], ["a.Linear", "model~2.b.Linear"], ["model~3.c.Linear", "model~2.b.Linear"]],
        ),
        # A module of two models.
        (
            "shared = layer()\nfirst, second = Named(a=shared), Named(b=shared, c=layer())\n"
            "train_with(first, second)\ntrain_with(second)",
            [["a.Linear", "a.Linear", "model~2.c.Linear"], ["a.Linear", "model~2.c.Linear"]],
        ),
        # A model becomes a child of another one, which is found later.
        (
            "trunk, word = Named(a=layer()), layer()\ntrain_with(word, trunk)\n"
            "whole = Named(word=word, trunk=trunk, head=layer())\ntrain_with(whole)",
            [
                ["Linear", "model~2.a.Linear"],
                ["Linear", "model~2.a.Linear", "model~3.trunk.Named", "model~3.head.Linear"],
            ],
        ),
        # A model is gone, and another one comes; of the third one a part lives on.
        (
            "model = Named(a=layer())\ntrain_with(model)\noptimizers.clear()\nmodel = None\n"
            "model = Named(a=layer())\ntrain_with(model)\noptimizers.clear()\nmodel = None\n"
            "part = Named(b=layer())\nmodel = Named(part=part, c=layer())\nmodel.myself = [model]\n"
            "train_with(model)\noptimizers.clear()\nmodel = None\ngc.collect()\ntrain_with(part, layer())",
            [
                ["a.Linear"],
                ["model~2.a.Linear"],
                ["model~3.part.b.Linear", "model~3.part.Named", "model~3.c.Linear"],
                ["model~3.part.b.Linear", "model~3.part.Named", "model~4.Linear"],
            ],
        ),
    ],
    ids=["nested", "taken", "later", "shared", "child", "gone"],
)
def test_no_two_modules_of_a_run_have_one_name(
    scripts: Any, tmp_path: Path, program: str, names: list[list[str]]
) -> None:
    ran = quick(scripts, tmp_path, NAMES_OF_MODELS + program, "--level", "L0", "--step", "all")
    assert ran.status == 0, ran.err
    found = [[name.partition(".forward.")[0] for name in ran.forwards(step)] for step in range(len(ran.steps))]
    assert found == [[f"Module.{name}" for name in step] for step in names]


def test_names_do_not_depend_on_the_steps_that_are_collected(scripts: Any, tmp_path: Path) -> None:
    program = NAMES_OF_MODELS + (
        "first, second = Named(a=layer()), Named(b=layer())\ntrain_with(first)\ntrain_with(second)\ntrain_with(second)"
    )
    ran = quick(scripts, tmp_path, program, "--level", "L0", "--step", "1-2")
    assert ran.forwards(1) == ran.forwards(2) == ["Module.model~2.b.Linear.forward.0"]


TWO_NETWORKS = """
maker = nn.Sequential(nn.Linear(4, 16), nn.Sequential(nn.Linear(16, 16), nn.Tanh()), nn.Linear(16, 8))
judge = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
{fault}
makers, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge.parameters())
entropy = nn.BCEWithLogitsLoss()
for step in range(2):
    fake = maker(torch.randn(5, 4))
    judges.zero_grad()
    (entropy(judge(torch.randn(5, 8)), torch.ones(5, 1)) + entropy(judge(fake.detach()), torch.zeros(5, 1))).backward()
    judges.step()
    makers.zero_grad()
    entropy(judge(fake), torch.ones(5, 1)).backward()
    makers.step()
"""
ONE_MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.memory, self.head = words, memory, head

    def forward(self, x):
        return self.head(self.memory(self.words(x))[0][:, -1])

words, memory, head = nn.Embedding(10, 8), nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 4)
model, loss = Model(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    optimizer.zero_grad()
    loss(model(torch.arange(10).reshape(2, 5)), torch.tensor([1, 3])).backward()
    optimizer.step()
"""


def compared(scripts: Any, folder: Path, target: str, golden: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a comparison says of two programs that were run one after the other."""
    from probe.api.cli import main

    for name, program in (("target", target), ("golden", golden)):
        (folder / name).mkdir()
        assert quick(scripts, folder / name, program, "--step", "0").status == 0
    capsys.readouterr()
    main(["compare", "-tp", f"{folder}/target/out/step0", "-gp", f"{folder}/golden/out/step0", "-o", f"{folder}/table"])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("judge[1].negative_slope = 0.3", "model~2.1 (LeakyReLU), "),
        ("maker[1][0].weight.data[0, 0] += 0.01", "parameter 1.0.weight"),
        ("judge[0].weight.data[0, 0] += 0.01", "parameter model~2.0.weight"),
    ],
    ids=["slope", "first", "second"],
)
def test_a_fault_in_one_of_two_networks_is_found_in_it(
    scripts: Any, tmp_path: Path, fault: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden = TWO_NETWORKS.format(fault=fault), TWO_NETWORKS.format(fault="")
    text = compared(scripts, tmp_path, target, golden, capsys)
    assert text.startswith("first divergence") and said in text.partition(" rows by ")[0], text


def test_layers_in_variables_are_compared_with_those_of_one_model(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = compared(scripts, tmp_path, THREE_LAYERS, ONE_MODEL, capsys)
    assert text.startswith("no divergence: nothing differs") and "without match" not in text, text
