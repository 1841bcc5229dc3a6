"""Whole training programs: the same bits as without the tool, and the records they should have."""

from __future__ import annotations

import copy
import dataclasses
import io
import pickle
import subprocess
import sys
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch_parts import LEVELS, Call, bits, collected, neutral

OF_MODULES = pytest.mark.parametrize("level", ["L0", "mix"])


def seeded(make: Any) -> Any:
    def made() -> Any:
        torch.manual_seed(0)
        return make()

    return made


def small() -> Any:
    return nn.Sequential(nn.Linear(2, 2))


@LEVELS
def test_two_networks_with_two_optimizers(runs: Any, level: str) -> None:
    def make() -> Any:
        maker = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4))
        return nn.ModuleDict({"maker": maker, "critic": nn.Sequential(nn.Linear(4, 1))})

    def work(both: Any) -> Any:
        maker, critic = both["maker"], both["critic"]
        of_maker = torch.optim.Adam(maker.parameters(), 0.01)
        of_critic = torch.optim.SGD(critic.parameters(), 0.1)
        fake = maker(torch.randn(6, 3))
        loss = critic(torch.randn(6, 4)).mean() - critic(fake.detach()).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        again = -critic(fake).mean()
        of_maker.zero_grad()
        again.backward()
        of_maker.step()
        return loss, again, list(both.parameters())

    dump = neutral(runs, seeded(make), work, level)
    if level != "L1":
        critic = "Module.critic.0.Linear"
        assert [n for n in dump.forward if "critic.0" in n] == [f"{critic}.forward.{n}" for n in range(3)]
        assert {n for n in dump.backward if "critic.0" in n} == {f"{critic}.backward.{n}" for n in range(3)}
        assert [n for n in dump.backward if "maker.2" in n] == ["Module.maker.2.Linear.backward.0"]
        # Two passes reach the critic's parameters, one the maker's.
        passes = {(n.split(".")[1], n.rsplit(".", 1)[1]) for n in dump.parameter_gradients}
        assert passes == {("critic", "0"), ("critic", "1"), ("maker", "0")}


@LEVELS
@pytest.mark.parametrize(("kind", "outputs"), [("LSTM", 3), ("GRU", 2), ("RNN", 2), ("LSTMCell", 2)])
def test_recurrent_networks(runs: Any, level: str, kind: str, outputs: int) -> None:
    def work(model: Any) -> Any:
        out = model["rnn"](torch.randn(4, 3) if kind.endswith("Cell") else torch.randn(7, 4, 3))
        state = out[1][0] if isinstance(out[1], tuple) else out[1]
        loss = out[0].sum() + state.pow(2).sum()
        loss.backward()
        return loss, [p.grad for p in model.parameters()]

    dump = neutral(runs, seeded(lambda: nn.ModuleDict({"rnn": getattr(nn, kind)(3, 5)})), work, level)
    if level != "L1":
        assert len(dump.data[f"Module.rnn.{kind}.forward.0"]["parameters"]) == 4
        assert [n for n in dump.backward if "Module" in n] == [f"Module.rnn.{kind}.backward.0"]
        assert len(dump.data[f"Module.rnn.{kind}.backward.0"]["input"]) == outputs
        assert len(dump.parameter_gradients) == 1 and len(dump.data[dump.parameter_gradients[0]]) == 4


# --- encoders, whose layers take a fast path where no hook is attached


def encoder(nested: bool = False, heads: int = 4) -> Any:
    layer = nn.TransformerEncoderLayer(32, heads, 64, batch_first=True, dropout=0.0, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()


def encoded(model: Any) -> Any:
    """The results with a causal mask, with a row that is all padding, and with a padding."""
    x = torch.randn(3, 9, 32, generator=torch.Generator().manual_seed(1))
    padding, part = torch.zeros(3, 9, dtype=torch.bool), torch.zeros(3, 9, dtype=torch.bool)
    padding[1], part[1, 3:], part[2, 4:] = True, True, True
    causal = nn.Transformer.generate_square_subsequent_mask(9)
    masks: list[dict[str, Any]] = [{"src_key_padding_mask": part}]
    if not getattr(model, "enable_nested_tensor", False):
        masks.append({"src_key_padding_mask": padding})
    return model(x, causal, is_causal=True), model(x), *(model(x, **mask) for mask in masks)


@LEVELS
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors:UserWarning", "ignore:enable_nested_tensor:UserWarning"
)
def test_a_transformer_encoder_takes_the_same_path(runs: Any, level: str, mode: Any, nested: bool) -> None:
    def work(model: Any) -> Any:
        with mode():
            return encoded(model)

    dump = neutral(runs, seeded(lambda: encoder(nested)), work, level)
    if level != "L1":
        assert "Module.layers.1.TransformerEncoderLayer.forward.1" in dump.names
    if mode is not torch.enable_grad:
        # The fast path is one function: no module inside is called.
        assert not [name for name in dump.names if "self_attn" in name]


@LEVELS
@pytest.mark.parametrize("is_root", [True, False])
def test_a_layer_that_refuses_hooks_computes_what_it_does_without_them(runs: Any, level: str, is_root: bool) -> None:
    model = seeded(encoder)()
    model = model.layers[0] if is_root else model

    def run(model: Any) -> Any:
        with torch.no_grad():
            return bits(encoded(model))

    expected, debugger = run(model), runs.new(level=level)
    for step in range(2):
        debugger.start(model)
        # A copy and a pickled one are those of a model without the tool.
        assert run(model) == run(copy.deepcopy(model)) == run(pickle.loads(pickle.dumps(model))) == expected
        if step == 0:
            with pytest.raises(AssertionError):
                model(torch.randn(3, 9, 31))
        debugger.stop()
        assert run(model) == expected
        debugger.step()
    assert not any("_compiled_call_impl" in vars(module) for module in model.modules())
    assert not [name for name in runs.read(1).names if "self_attn" in name]


@OF_MODULES
def test_the_modules_of_a_layer_that_refuses_hooks_have_records_where_they_are_called(runs: Any, level: str) -> None:
    def work(model: Any) -> Any:
        x = torch.randn(2, 9, 32, requires_grad=True)
        loss = model.train()(x).sum()
        loss.backward()
        return loss, x.grad, [p.grad for p in model.parameters()]

    dump = neutral(runs, seeded(encoder), work, level)
    modules = ("norm1.LayerNorm", "linear2.Linear", "self_attn.MultiheadAttention")
    assert {f"Module.layers.1.{each}.{kind}.0" for each in modules for kind in ("forward", "backward")} <= set(
        dump.names
    )


def test_a_replica_of_a_layer_that_refuses_hooks_computes_with_its_own_parameters(runs: Any) -> None:
    model = encoder()

    def call() -> None:
        replica = model.layers[0].linear1._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.zeros(64, 32), torch.ones(64)
        with torch.no_grad():
            assert torch.equal(replica(torch.randn(2, 9, 32)), torch.ones(2, 9, 64))

    collected(runs, model, call, "L0")


# --- inputs by keyword, and outputs in structures


@dataclasses.dataclass
class Output:
    logits: Any = None
    hidden: Any = None


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As Hugging Face has it: a dataclass-like mapping whose keys leave out what is None."""

    logits = property(lambda self: self["logits"])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, *, hidden_states: Any, attention_mask: Any = None, cache: Any = None) -> Any:
        scores = self.query(hidden_states) @ self.key(hidden_states).transpose(-1, -2)
        return torch.softmax(scores, -1) @ hidden_states, scores


class Body(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.attention, self.kind = Attention(), kind

    def forward(self, input_embeds: Any = None, labels: Any = None) -> Any:
        out, scores = self.attention(hidden_states=input_embeds, attention_mask=None)
        return self.kind(logits=out, hidden=(scores,))


@OF_MODULES
@pytest.mark.parametrize("kind", [Output, ModelOutput])
def test_keyword_only_inputs_and_structured_outputs(runs: Any, kind: Any, level: str) -> None:
    def work(model: Any) -> Any:
        x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).requires_grad_()
        out = model["body"](input_embeds=x, labels=None).logits
        out.sum().backward()
        return x.grad, out, [p.grad for p in model.parameters()]

    make = seeded(lambda: nn.ModuleDict({"body": Body(kind)}))
    dump, attention = neutral(runs, make, work, level), "Module.body.attention.Attention"
    record = dump.data[f"{attention}.forward.0"]
    assert record["input_args"] == [] and set(record["input_kwargs"]) == {"hidden_states", "attention_mask"}
    assert record["input_kwargs"]["attention_mask"] is None
    backward = dump.data[f"{attention}.backward.0"]
    assert [entry["shape"] for entry in backward["output"]] == [[2, 3, 4]]
    assert [entry["shape"] for entry in backward["input"]] == [[2, 3, 4], [2, 3, 3]]
    of_input = work(make())[0].numpy().astype(np.float64)
    assert dump.data["Module.body.Body.backward.0"]["output"][0]["Norm"] == pytest.approx(
        np.linalg.norm(of_input), rel=1e-5
    )
    order = [name for name in dump.backward if name.startswith("Module")]
    assert order[-2:] == [f"{attention}.backward.0", "Module.body.Body.backward.0"]


# --- clipping and the optimizer


def test_clipping_and_the_optimizer_are_places_in_the_tree(runs: Any) -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=False)
    debugger = runs.new(level="mix")
    for _ in range(2):
        debugger.start(model)
        model(torch.ones(1, 2)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        torch.abs(torch.ones(1))
        debugger.stop()
        debugger.step()
    for step in (0, 1):
        tree = runs.read(step).tree
        assert tree["clip_grad"] is None and tree["optimizer"] is None and list(tree).count("optimizer") == 1
        assert {"clip_grad", "optimizer"} <= {parent for name, parent in tree.items() if ".forward" in name}
        assert tree["Torch.abs.0.forward"] is None
        assert tree["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"
        assert not {"clip_grad", "optimizer"} & set(runs.read(step).data)


def test_a_clip_without_gradients_is_no_place_in_the_tree(runs: Any) -> None:
    model = small()
    dump = collected(runs, model, lambda: (nn.utils.clip_grad_norm_(model.parameters(), 1.0), model(torch.ones(1, 2))))
    assert list(dump.tree) == ["Module.0.Linear.forward.0", "Functional.linear.0.forward"]


class Failing(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("no step today")


@pytest.mark.parametrize("fails", ["optimizer", "clip"])
def test_a_failing_optimizer_or_clip_closes_its_place(runs: Any, fails: str) -> None:
    model = small()
    optimizer = Failing(model.parameters(), 0.1)

    def call() -> None:
        model(torch.full((1, 2), float("nan"))).sum().backward()
        with pytest.raises((ValueError, RuntimeError)):
            if fails == "clip":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            else:
                optimizer.step()
        torch.abs(torch.ones(1))
        model(torch.ones(1, 2))

    tree = collected(runs, model, call).tree
    assert tree["Torch.abs.0.forward"] is None and tree["Module.0.Linear.forward.1"] is None


def test_an_optimizer_with_a_closure(runs: Any) -> None:
    def work(model: Any) -> Any:
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.tensor([[1.0, 2.0]])).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return list(model.parameters())

    assert neutral(runs, seeded(small), work).tree["Module.0.Linear.forward.0"] == "optimizer"


# --- other kinds of modules


def test_modules_that_are_called_through_their_forward_are_not_seen(runs: Any) -> None:
    model = small()
    assert collected(runs, model, lambda: model[0].forward(torch.ones(1, 2)), "L0").names == []


def test_a_script_module_is_named_and_left_alone(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(torch.jit.script(nn.Linear(2, 2)), nn.ReLU())
    dump = collected(runs, model, lambda: model(torch.ones(1, 2)))
    assert "ScriptModule" in capsys.readouterr().err and "Module.1.ReLU.forward.0" in dump.names


def test_parametrized_and_weight_normed_modules(runs: Any) -> None:
    def make() -> Any:
        return nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Tanh())

    def work(model: Any) -> Any:
        out = model(torch.ones(2, 3))
        out.sum().backward()
        return out, [p.grad for p in model.parameters()]

    assert [name for name in neutral(runs, seeded(make), work).forward if "ParametrizedLinear" in name]


def test_tied_weights_are_reported_by_the_module_that_was_called_first(runs: Any) -> None:
    model = nn.ModuleDict({"head": nn.Linear(4, 8, bias=False), "embedding": nn.Embedding(8, 4)})
    model["head"].weight = model["embedding"].weight
    theirs: list[int] = []
    # A hook of the program, such as an optimizer's, still comes last.
    model["head"].weight.register_post_accumulate_grad_hook(lambda parameter: theirs.append(parameter.grad.numel()))

    def call() -> None:
        model["head"](model["embedding"](torch.tensor([1, 2]))).sum().backward()

    expected = ["Module.embedding.Embedding.parameters_grad.0", "Module.head.Linear.parameters_grad.0"]
    assert collected(runs, model, call, "L0").parameter_gradients == expected
    assert theirs == [32]


def test_the_last_module_of_a_scope_keeps_its_apis_and_the_range_stays_closed(runs: Any) -> None:
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())
    model = nn.Sequential(OrderedDict(body=body, head=nn.Linear(4, 1)))
    names = [
        # The module that opened the range ends outside it and keeps its inputs, at the place of its begin.
        "Module.body.Sequential.forward.0", "Functional.linear.0.forward", "Module.body.0.Linear.forward.0",
        "Functional.relu.0.forward", "Module.body.1.ReLU.forward.0", "Functional.linear.1.forward",
        "Module.body.2.Linear.forward.0",
    ]  # fmt: skip
    scope = [names[0], names[-1]]
    dump = collected(runs, model, lambda: model(torch.ones(2, 4)), scope=scope, extra_info=False)
    assert dump.names == names
    inputs = {"input_args", "input_kwargs"}
    assert [set(dump.data[name]) for name in scope] == [inputs, {*inputs, "output", "parameters"}]


# --- copies and memory of what was seen


@OF_MODULES
def test_a_copied_or_saved_model_carries_nothing_of_ours(runs: Any, backend: Any, level: str) -> None:
    model, debugger, stream = small(), runs.new(level=level), io.BytesIO()
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    copied = copy.deepcopy(model)
    torch.save(copied, stream)
    debugger.stop()
    debugger.step()
    for each in (copied, copy.deepcopy(model)):
        assert backend.traces_left(each) == []
    torch.save(model, stream)
    assert b"probe" not in stream.getvalue()


LOADS = """
import sys
sys.modules["probe"] = None  # as where it is not installed
import torch
model = torch.load(sys.argv[1], weights_only=False)
print(model(torch.ones(1, 2)).detach().tolist())
"""


@pytest.mark.sampled(least=1, each=False, group="an interpreter")
@OF_MODULES
def test_a_model_that_was_saved_is_loaded_where_the_tool_is_not(runs: Any, tmp_path: Path, level: str) -> None:
    model = small()
    expected = model(torch.ones(1, 2)).detach().tolist()
    collected(runs, model, lambda: torch.save(model, tmp_path / "model.pt"), level)
    command = [sys.executable, "-c", LOADS, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.stdout.strip(), done.returncode) == (str(expected), 0), done.stderr


@LEVELS
@pytest.mark.parametrize("summary_mode", ["statistics", "md5", "xor"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_was_read_can_still_be_resized(runs: Any, level: str, task: str, summary_mode: str) -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), Call(torch.relu)), [torch.ones(4, 4)]
    collected(runs, model, lambda: seen.append(model(seen[0])), level, task=task, summary_mode=summary_mode)
    for tensor in (*seen, model[0].weight):
        assert tensor.untyped_storage().resizable()
    assert seen[0].resize_(8, 8).shape == (8, 8)
