"""Whole training programs: the same bits as without the tool, and the records they should have."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])


def bits(*values: Any) -> list[bytes]:
    return [value.detach().contiguous().numpy().tobytes() for value in values]


@LEVELS
def test_two_networks_with_two_optimizers(runs: Any, level: str) -> None:
    def work(start: Any, end: Any) -> list[bytes]:
        torch.manual_seed(0)
        maker, critic = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)), nn.Sequential(nn.Linear(4, 1))
        both = nn.ModuleDict({"maker": maker, "critic": critic})
        of_maker = torch.optim.Adam(maker.parameters(), 0.01)
        of_critic = torch.optim.SGD(critic.parameters(), 0.1)
        losses = []
        for _ in range(2):
            start(both)
            fake = maker(torch.randn(6, 3))
            loss = critic(torch.randn(6, 4)).mean() - critic(fake.detach()).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            again = -critic(fake).mean()
            of_maker.zero_grad()
            again.backward()
            of_maker.step()
            losses += [loss, again]
            end()
        return bits(*losses, *both.parameters())

    expected = work(lambda model: None, lambda: None)
    debugger = runs.new(level=level)

    def end() -> None:
        debugger.stop()
        debugger.step()

    assert work(debugger.start, end) == expected
    dump = runs.read(1)
    if level != "L1":
        assert [n for n in dump.forward if "critic.0" in n] == [f"Module.critic.0.Linear.forward.{n}" for n in range(3)]
        assert {n for n in dump.backward if "critic.0" in n} == {
            f"Module.critic.0.Linear.backward.{n}" for n in range(3)
        }
        assert [n for n in dump.backward if "maker.2" in n] == ["Module.maker.2.Linear.backward.0"]
        # Two passes reach the critic's parameters, one the maker's.
        assert {n.rsplit(".", 1)[1] for n in dump.parameter_gradients if "critic" in n} == {"0", "1"}
        assert {n.rsplit(".", 1)[1] for n in dump.parameter_gradients if "maker" in n} == {"0"}


@LEVELS
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN", "LSTMCell"])
def test_recurrent_networks(runs: Any, level: str, kind: str) -> None:
    def work(start: Any) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.ModuleDict({"rnn": getattr(nn, kind)(3, 5)})
        start(model)
        out = model["rnn"](torch.randn(4, 3) if kind.endswith("Cell") else torch.randn(7, 4, 3))
        first = out[0]
        state = out[1]
        loss = first.sum() + (state[0] if isinstance(state, tuple) else state).pow(2).sum()
        loss.backward()
        return bits(loss, *(p.grad for p in model.parameters()))

    expected = work(lambda model: None)
    debugger = runs.new(level=level)
    assert work(debugger.start) == expected
    debugger.stop()
    dump = runs.read()
    if level != "L1":
        record = dump.data[f"Module.rnn.{kind}.forward.0"]
        assert len(record["parameters"]) == 4
        assert [n for n in dump.backward if "Module" in n] == [f"Module.rnn.{kind}.backward.0"]
        count = {"LSTM": 3, "GRU": 2, "RNN": 2, "LSTMCell": 2}[kind]
        assert len(dump.data[f"Module.rnn.{kind}.backward.0"]["input"]) == count
        assert len(dump.parameter_gradients) == 1 and len(dump.data[dump.parameter_gradients[0]]) == 4


@LEVELS
@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "slow path"])
@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors:UserWarning", "ignore:enable_nested_tensor:UserWarning"
)
def test_a_transformer_encoder_takes_the_same_path(runs: Any, level: str, fast: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(3, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    # With a gradient wanted the layers take the slow path.
    inference = torch.inference_mode(fast)
    with inference:
        expected = bits(model(x), model(x, src_key_padding_mask=mask))
    debugger = runs.new(level=level)
    debugger.start(model)
    with torch.inference_mode(fast):
        found = bits(model(x), model(x, src_key_padding_mask=mask))
    debugger.stop()
    assert found == expected
    if level != "L1":
        assert "Module.layers.1.TransformerEncoderLayer.forward.1" in runs.read().names


def encoder() -> tuple[nn.Module, Any]:
    """An encoder in evaluation, and a function that runs it with a causal mask and with a row that is all padding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0, activation="gelu")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(3, 9, 32)
    padding = torch.zeros(3, 9, dtype=torch.bool)
    padding[1] = True
    causal = nn.Transformer.generate_square_subsequent_mask(9)

    def run(model: nn.Module = model) -> list[bytes]:
        with torch.no_grad():
            return bits(model(x, causal, is_causal=True), model(x, src_key_padding_mask=padding))

    return model, run


@LEVELS
@pytest.mark.parametrize("is_root", [True, False])
def test_a_layer_that_refuses_hooks_computes_what_it_does_without_them(runs: Any, level: str, is_root: bool) -> None:
    model, run = encoder()
    model = model.layers[0] if is_root else model
    expected = run(model)
    debugger = runs.new(level=level)
    for step in range(2):
        debugger.start(model)
        assert run(model) == expected
        # A copy, a pickled one and a replica of DataParallel are those of a model without the tool.
        assert run(copy.deepcopy(model)) == expected
        assert run(pickle.loads(pickle.dumps(model))) == expected
        if step == 0:
            with pytest.raises(AssertionError):
                model(torch.randn(3, 9, 31))
        debugger.stop()
        assert run(model) == expected
        debugger.step()
    assert not any("_compiled_call_impl" in vars(module) for module in model.modules())
    names = runs.read(1).names
    if level != "L1" and not is_root:
        assert "Module.layers.1.TransformerEncoderLayer.forward.1" in names
    # The fast path is one function: no module inside is called.
    assert not [name for name in names if "self_attn" in name]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_modules_of_a_layer_that_refuses_hooks_have_records_where_they_are_called(runs: Any, level: str) -> None:
    def work(start: Any) -> list[bytes]:
        model, _ = encoder()
        start(model)
        x = torch.randn(2, 9, 32, requires_grad=True)
        loss = model.train()(x).sum()
        loss.backward()
        return bits(loss, x.grad, *(p.grad for p in model.parameters()))

    expected = work(lambda model: None)
    debugger = runs.new(level=level)
    assert work(debugger.start) == expected
    debugger.stop()
    dump = runs.read()
    for kind in ("forward", "backward"):
        for module in ("norm1.LayerNorm", "linear2.Linear", "self_attn.MultiheadAttention"):
            assert f"Module.layers.1.{module}.{kind}.0" in dump.names


def test_a_replica_of_a_layer_that_refuses_hooks_computes_with_its_own_parameters(runs: Any) -> None:
    model, _ = encoder()
    x = torch.randn(2, 9, 32)
    debugger = runs.new(level="L0")
    debugger.start(model)
    replica = model.layers[0].linear1._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(64, 32), torch.ones(64)
    with torch.no_grad():
        assert torch.equal(replica(x), torch.ones(2, 9, 64))
    debugger.stop()


@dataclasses.dataclass
class Output:
    loss: Any = None
    logits: Any = None
    hidden: Any = None


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """As Hugging Face has it: a dataclass-like mapping whose keys leave out what is None."""

    @property
    def logits(self) -> Any:
        return self["logits"]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, *, hidden_states: Any, attention_mask: Any = None, cache: Any = None) -> Any:
        scores = self.query(hidden_states) @ self.key(hidden_states).transpose(-1, -2)
        return torch.softmax(scores, -1) @ hidden_states, scores


@pytest.mark.parametrize("kind", ["dataclass", "mapping"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_keyword_only_inputs_and_structured_outputs(runs: Any, kind: str, level: str) -> None:
    class Body(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention()

        def forward(self, input_embeds: Any = None, labels: Any = None) -> Any:
            out, scores = self.attention(hidden_states=input_embeds, attention_mask=None)
            if kind == "dataclass":
                return Output(logits=out, hidden=(scores,))
            return ModelOutput(logits=out, hidden=(scores,))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = Body()

        def forward(self, x: Any) -> Any:
            return self.body(input_embeds=x, labels=None).logits

    def work(model: Any) -> list[bytes]:
        x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).requires_grad_()
        out = model(x)
        out.sum().backward()
        return bits(out, x.grad, *(p.grad for p in model.parameters()))

    expected = work(Net())
    model, debugger = Net(), runs.new(level=level)
    debugger.start(model)
    assert work(model) == expected
    debugger.stop()
    dump = runs.read()
    record = dump.data["Module.body.attention.Attention.forward.0"]
    assert record["input_args"] == [] and set(record["input_kwargs"]) == {"hidden_states", "attention_mask"}
    assert record["input_kwargs"]["attention_mask"] is None
    backward = dump.data["Module.body.attention.Attention.backward.0"]
    assert len(backward["output"]) == 1 and backward["output"][0]["shape"] == [2, 3, 4]
    (given, unused) = backward["input"]
    assert given["shape"] == [2, 3, 4] and unused["shape"] == [2, 3, 3]
    body = dump.data["Module.body.Body.backward.0"]
    x_gradient = np.frombuffer(expected[1], np.float32).astype(np.float64)
    assert body["output"][0]["Norm"] == pytest.approx(np.linalg.norm(x_gradient), rel=1e-5)
    order = [name for name in dump.backward if name.startswith("Module")]
    assert order[-2:] == ["Module.body.attention.Attention.backward.0", "Module.body.Body.backward.0"]


def test_clipping_and_the_optimizer_are_places_in_the_tree(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
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
        assert tree["clip_grad"] is None and tree["optimizer"] is None
        parents = {parent for name, parent in tree.items() if ".forward" in name}
        assert {"clip_grad", "optimizer"} <= parents
        assert tree["Torch.abs.0.forward"] is None
        assert tree["Functional.linear.0.forward"] == "Module.0.Linear.forward.0"
        assert list(tree).count("optimizer") == 1
        assert "clip_grad" not in runs.read(step).data and "optimizer" not in runs.read(step).data


def test_a_clip_without_gradients_is_no_place_in_the_tree(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="mix")
    debugger.start(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model(torch.ones(1, 2))
    debugger.stop()
    assert list(runs.read().tree) == ["Module.0.Linear.forward.0", "Functional.linear.0.forward"]


def test_a_failing_optimizer_closes_its_place(runs: Any) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise ValueError("no step today")

    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = Failing(model.parameters(), 0.1)
    debugger = runs.new(level="mix")
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match="no step today"):
        optimizer.step()
    torch.abs(torch.ones(1))
    model(torch.ones(1, 2))
    debugger.stop()
    tree = runs.read().tree
    assert tree["Torch.abs.0.forward"] is None
    assert tree["Module.0.Linear.forward.1"] is None


def test_a_failing_clip_closes_its_place(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="mix")
    debugger.start(model)
    model(torch.full((1, 2), float("nan"))).sum().backward()
    with pytest.raises(RuntimeError, match="non-finite"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    torch.abs(torch.ones(1))
    debugger.stop()
    assert runs.read().tree["Torch.abs.0.forward"] is None


def test_an_optimizer_with_a_closure(runs: Any) -> None:
    def work(start: Any) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2))
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        start(model)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.tensor([[1.0, 2.0]])).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return bits(*model.parameters())

    expected = work(lambda model: None)
    debugger = runs.new(level="mix")
    assert work(debugger.start) == expected
    debugger.stop()
    assert runs.read().tree["Module.0.Linear.forward.0"] == "optimizer"


def test_modules_that_are_called_through_their_forward_are_not_seen(runs: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="L0")
    debugger.start(model)
    model[0].forward(torch.ones(1, 2))
    debugger.stop()
    assert runs.read().names == []


def test_a_script_module_is_named_and_left_alone(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(nn.Linear(2, 2))
    model = nn.Sequential(scripted, nn.ReLU())
    debugger = runs.new(level="mix")
    debugger.start(model)
    model(torch.ones(1, 2))
    debugger.stop()
    assert "ScriptModule" in capsys.readouterr().err
    assert "Module.1.ReLU.forward.0" in runs.read().names


def test_a_copied_or_pickled_model_carries_nothing_of_ours(runs: Any, backend: Any) -> None:
    import copy
    import io

    model = nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="mix")
    debugger.start(model)
    model(torch.ones(1, 2)).sum().backward()
    debugger.stop()
    debugger.step()
    assert backend.traces_left(copy.deepcopy(model)) == []
    stream = io.BytesIO()
    torch.save(model, stream)
    assert b"probe" not in stream.getvalue()


def test_a_state_dict_loaded_while_collecting_is_the_users(runs: Any) -> None:
    model, other = nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))
    debugger = runs.new(level="mix")
    debugger.start(model)
    model.load_state_dict(other.state_dict())
    model(torch.ones(1, 2))
    debugger.stop()
    assert torch.equal(model[0].weight, other[0].weight)


def test_parametrized_and_weight_normed_modules(runs: Any) -> None:
    def work(start: Any) -> list[bytes]:
        torch.manual_seed(0)
        model = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.Tanh())
        start(model)
        out = model(torch.ones(2, 3))
        out.sum().backward()
        return bits(out, *(p.grad for p in model.parameters()))

    expected = work(lambda model: None)
    debugger = runs.new(level="mix")
    assert work(debugger.start) == expected
    debugger.stop()
    assert [name for name in runs.read().forward if "ParametrizedLinear" in name]


@LEVELS
@pytest.mark.parametrize("summary_mode", ["statistics", "md5", "xor"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_what_was_read_can_still_be_resized(runs: Any, level: str, task: str, summary_mode: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.ones(4, 4)
    debugger = runs.new(level=level, task=task, summary_mode=summary_mode)
    debugger.start(model)
    out = model(x)
    debugger.stop()
    for tensor in (x, out, model[0].weight):
        assert tensor.untyped_storage().resizable()
    assert x.resize_(8, 8).shape == (8, 8)
