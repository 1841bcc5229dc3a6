"""Small models of Transformers and torch train to the same bits with the tool on, and the user's hooks fire alike.

Each model meets each task and each way of it, the levels taking turns; two of them meet all of these at every level.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dumped
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from trainings import collecting

transformers = pytest.importorskip("transformers", reason="models of Transformers are needed")

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lr_scheduler.*:UserWarning"
)
STEPS = 3
KINDS: dict[str, dict[str, Any]] = {
    "statistics": {"task": "statistics"},
    "md5": {"task": "statistics", "summary_mode": "md5"},
    "xor": {"task": "statistics", "summary_mode": "xor"},
    "high precision": {"task": "statistics", "precision": "high"},
    "forward": {"task": "statistics", "data_mode": ["forward"]},
    "backward input": {"task": "statistics", "data_mode": ["backward", "input"]},
    "asynchronous statistics": {"task": "statistics", "async_dump": True},
    "tensor": {"task": "tensor"},
    "tensor md5": {"task": "tensor", "summary_mode": "md5"},
    "tensor output": {"task": "tensor", "data_mode": ["output"]},
    "asynchronous tensor": {"task": "tensor", "async_dump": True, "list": ["Linear", "linear", "softmax"]},
    "structure": {"task": "structure"},
}
COMPLETE = ("statistics", "md5", "xor", "high precision", "asynchronous statistics", "tensor", "tensor md5")
"""What leaves no record out."""
LEVELS = ("L0", "L1", "mix")
SMALL = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40,
    "max_position_embeddings": 32,
}  # fmt: skip


# --- models: the loss of a step, or the losses of those that take several


def of_transformers(name: str, config: str, **settings: Any) -> Any:
    return getattr(transformers, name)(getattr(transformers, config)(**settings))


class Convolutions(nn.Module):
    """Activations in place after a convolution, after batch normalization and after a residual sum in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.conv2, self.conv3 = nn.Conv2d(6, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.norm3, self.act = nn.BatchNorm2d(6), nn.ReLU(inplace=True)
        self.pool, self.drop, self.head = nn.MaxPool2d(2), nn.Dropout(0.2, inplace=True), nn.Linear(96, 5)

    def forward(self, images: Any) -> Any:
        x = self.act(self.norm1(self.conv1(images)))
        y = self.norm3(self.conv3(self.act(self.conv2(x))))
        y += x
        return self.head(self.drop(self.pool(self.act(y)).flatten(1)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(40, 8), nn.LSTM(8, 8, 2, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(16, 40)

    def forward(self, tokens: Any) -> Any:
        out, (hidden, _) = self.lstm(self.words(tokens))
        return self.head(out) * hidden.mean()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.words, self.head = nn.Embedding(40, 8), nn.Linear(8, 40)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 8))
            for _ in range(2)
        )

    def forward(self, tokens: Any) -> Any:
        x = self.words(tokens)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 4))
        self.critic = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.2), nn.Linear(8, 1))


class Case(NamedTuple):
    build: Callable[[], Any]
    losses: Callable[[Any, Any], Iterator[Any]]
    """Of a model and a generator of random numbers; a step of the optimizer follows on each."""
    parts: tuple[str, ...] = ("",)
    """The modules that take turns in being trained, each with an optimizer of its own."""
    not_reached: tuple[str, ...] = ()
    """Parts of the names of modules that are called and whose outputs take no gradient."""


def of_words(model: Any, generator: Any) -> Iterator[Any]:
    tokens = torch.randint(0, 40, (2, 9), generator=generator)
    yield model(input_ids=tokens, labels=tokens).loss


def of_images(model: Any, generator: Any) -> Iterator[Any]:
    images = torch.randn(2, 3, 8, 8, generator=generator)
    yield model(pixel_values=images, labels=torch.tensor([1, 0])).loss


def of_scores(model: Any, generator: Any) -> Iterator[Any]:
    tokens = torch.randint(0, 40, (7, 3), generator=generator)
    yield F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def of_classes(model: Any, generator: Any) -> Iterator[Any]:
    yield F.cross_entropy(model(torch.randn(4, 3, 8, 8, generator=generator)), torch.tensor([0, 1, 2, 3]))


def in_bfloat16(losses: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
    def cast(model: Any, generator: Any) -> Iterator[Any]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            (loss,) = losses(model, generator)
        yield loss

    return cast


def of_adversaries(model: Any, generator: Any) -> Iterator[Any]:
    fake = model.maker(torch.randn(6, 3, generator=generator))
    yield model.critic(torch.randn(6, 4, generator=generator)).mean() - model.critic(fake.detach()).mean()
    yield -model.critic(fake).mean()


llama = functools.partial(
    of_transformers, "LlamaForCausalLM", "LlamaConfig", **SMALL, num_key_value_heads=1
)  # fmt: skip
mixtral = functools.partial(
    of_transformers, "MixtralForCausalLM", "MixtralConfig", **SMALL, num_key_value_heads=1, num_local_experts=2,
    num_experts_per_tok=1, output_router_logits=True,
)  # fmt: skip
bert = functools.partial(of_transformers, "BertForMaskedLM", "BertConfig", **SMALL)
gpt2 = functools.partial(
    of_transformers, "GPT2LMHeadModel", "GPT2Config", n_embd=16, n_layer=1, n_head=2, vocab_size=40, n_positions=32
)
vit = functools.partial(
    of_transformers, "ViTForImageClassification", "ViTConfig", hidden_size=16, num_hidden_layers=1,
    num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4, hidden_dropout_prob=0.1,
)  # fmt: skip
t5 = functools.partial(
    of_transformers, "T5ForConditionalGeneration", "T5Config", d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
    vocab_size=40, decoder_start_token_id=0,
)  # fmt: skip
CASES = {
    # Rotary embeddings return nothing that takes a gradient.
    "Llama": Case(llama, of_words, not_reached=("otary",)),
    "Mixtral": Case(mixtral, of_words, not_reached=("otary",)),
    "GPT2": Case(gpt2, of_words),
    "BERT": Case(bert, of_words),
    "ViT": Case(vit, of_images),
    "T5": Case(t5, of_words),
    "convolutions": Case(Convolutions, of_classes),
    "LSTM": Case(Recurrent, of_scores),
    "adversaries": Case(Adversaries, of_adversaries, ("critic", "maker")),
    "checkpoints": Case(functools.partial(Checkpointed, False), of_scores),
    "reentrant checkpoints": Case(functools.partial(Checkpointed, True), of_scores),
    "autocast": Case(llama, in_bfloat16(of_words), not_reached=("otary",)),
    "convolutions in autocast": Case(Convolutions, in_bfloat16(of_classes)),
}

# --- how they are trained

Around = Callable[[Any, Callable[[], None]], None]


class Seen(NamedTuple):
    """Everything that a program can see of its training."""

    bits: dict[str, bytes]
    hooks: list[str]
    """Which of the user's hooks fired, in order."""


def train(case: Case, around: Around, save: Callable[[Any, str], None] = lambda value, name: None) -> Seen:
    """Three steps, each called through `around`; the user's code hands some of what it sees to `save`."""
    torch.manual_seed(0)
    model, values, fired = case.build().train(), {}, []
    parts = [(name, model.get_submodule(name)) for name in case.parts]
    optimizers = [torch.optim.AdamW(part.parameters(), 0.01) for _, part in parts]
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: fired.append(f"{name} called"))
        module.register_forward_hook(lambda *_, name=name: fired.append(f"{name} returned"))
        if name:
            module.register_forward_hook(lambda _, __, output, name=name: save(output, name))
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda _, name=name: fired.append(f"{name} gradient"))
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(f"{name} accumulated"))
    generator = torch.Generator().manual_seed(3)

    def step(number: int) -> None:
        for (name, part), optimizer, loss in zip(parts, optimizers, case.losses(model, generator)):
            optimizer.zero_grad()
            save(loss, "loss")
            loss.backward()
            nn.utils.clip_grad_norm_(part.parameters(), 1.0)
            values[f"{number} loss {name}"] = loss.detach().clone()
            values.update({f"{number} {name} {k}.grad": p.grad.clone() for k, p in part.named_parameters()})
            optimizer.step()

    for number in range(STEPS):
        around(model, functools.partial(step, number))
    values.update(model.named_parameters())
    values.update(model.named_buffers())
    for optimizer in optimizers:
        values.update({f"state {i} {j}": v for i, s in optimizer.state_dict()["state"].items() for j, v in s.items()})
    values["random numbers"] = torch.get_rng_state()
    return Seen({name: value.detach().contiguous().numpy().tobytes() for name, value in values.items()}, fired)


@functools.cache
def without_the_tool(name: str) -> Seen:
    return train(CASES[name], lambda model, step: step())


def functions() -> dict[str, Any]:
    """Every function that users can reach by name, with its code where it is written in Python."""
    owners = (torch, F, torch.Tensor, torch._VF, nn.Module, nn.init, torch.linalg, torch.overrides)
    found: dict[str, Any] = {}
    for owner in owners:
        for name, value in vars(owner).items():
            if callable(value):
                found[f"{owner} {name}"] = value
                found[f"{owner} {name} code"] = getattr(value, "__code__", None)
    return found


def assert_same(found: Seen, expected: Seen) -> None:
    assert list(found.bits) == list(expected.bits)
    assert [key for key, value in expected.bits.items() if found.bits[key] != value] == []
    assert found.hooks == expected.hooks and len(found.hooks) > 40


def selected() -> Iterator[Any]:
    for index, name in enumerate(CASES):
        for place, kind in enumerate(KINDS):
            of_all = name in ("Llama", "convolutions")
            for level in LEVELS if of_all else [LEVELS[(index + place + place // 3) % 3]]:
                yield pytest.param(name, level, kind, id=f"{name}-{level}-{kind}")


@pytest.mark.sampled(least=5, each=False)
@pytest.mark.parametrize(("name", "level", "kind"), list(selected()))
def test_training_gives_the_same_bits(runs: Any, name: str, level: str, kind: str) -> None:
    expected, before = without_the_tool(name), functions()
    settings = KINDS[kind]
    found = train(CASES[name], collecting(runs.new(level=level, **settings)))
    assert_same(found, expected)
    after = functions()
    assert list(after) == list(before) and [key for key in before if after[key] is not before[key]] == []
    if (level, kind) == ("L1", "structure"):
        return  # the tree of modules of a level without modules
    dump = runs.read(STEPS - 1)
    recorded = dump.tree if kind == "structure" else dump.data
    assert len(recorded) >= (6 if kind in (*COMPLETE, "structure") else 1), "something was collected"
    assert all(parent is None or parent in dump.tree for parent in dump.tree.values())
    if level != "L1" and kind in COMPLETE:
        assert modules_without_backward(dump, CASES[name].not_reached) == set()


@pytest.mark.sampled(least=2, each=False)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("name", CASES)
def test_saving_single_values_changes_nothing(runs: Any, name: str, task: str) -> None:
    """Level debug: the outputs of all modules and the loss are saved with their gradients, from hooks of the user."""
    debugger = runs.new(level="debug", task=task, **({"summary_mode": "md5"} if len(name) % 2 else {}))

    def around(model: Any, step: Callable[[], None]) -> None:
        step()
        debugger.step()

    found = train(CASES[name], around, debugger.save)
    assert_same(found, without_the_tool(name))
    saved = dumped.read_debug(runs.path, STEPS - 1)["data"]
    assert len([key for key in saved if "_grad." in key and saved[key] is not None]) >= 4


def modules_without_backward(dump: Any, not_reached: tuple[str, ...]) -> set[str]:
    """Modules whose backward has no record, or none of the gradient of the first output."""
    called = {name.rsplit(".forward", 1)[0] for name in dump.forward if name.startswith("Module")}
    complete = {name.rsplit(".backward", 1)[0] for name in dump.backward if dump.data[name]["input"][0] is not None}
    return {module for module in called - complete if not any(part in module for part in not_reached)}
