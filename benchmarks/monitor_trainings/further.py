"""Further healthy trainings: no warm-up, starving experts, accumulation, short types, sparse rows, curricula.

The rules were made with those that are `LISTED`; no rule was changed by those that are `HELD_OUT`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from monitor_trainings.healthy import Gpt, Lstm, Record, Training, _steps, _tokens
from torch import nn
from torch.nn import functional as F


def _next_token(model: nn.Module, ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    return F.cross_entropy(model(ids[:, :-1]).reshape(-1, vocabulary), ids[:, 1:].reshape(-1))


def _stripes(batch: int = 16, classes: int = 4, noise: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    label = torch.randint(0, classes, (batch,))
    image = torch.randn(batch, 1, 8, 8) * noise
    image[torch.arange(batch), 0, label * (8 // classes)] += 2
    return image, label


def gpt_no_warmup(record: Record, steps: int) -> None:
    """A GPT by AdamW at 3e-3 without warm-up, clipped at 1."""
    model = Gpt(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    _steps(model, optimizer, lambda: _next_token(model, _tokens(), 40), record, steps, clip=1.0)


def gpt_fixed_set(record: Record, steps: int) -> None:
    """A wider GPT by AdamW at 3e-3 without warm-up, on 32 random sequences that it learns by heart."""
    model, ids = Gpt(48, 2, 40, 0.0), torch.randint(0, 40, (32, 17))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    pick = lambda: ids[torch.randint(0, 32, (8,))]  # noqa: E731
    _steps(model, optimizer, lambda: _next_token(model, pick(), 40), record, steps, clip=1.0)


class Mixture(nn.Module):
    """Experts of which each token takes the best `top`."""

    def __init__(self, experts: int = 8, top: int = 1, width: int = 16, vocabulary: int = 20) -> None:
        super().__init__()
        self.tok, self.router, self.top = nn.Embedding(vocabulary, width), nn.Linear(width, experts, bias=False), top
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width)) for _ in range(experts)]
        )
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)
        self.forced: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids).flatten(0, 1)
        weight, choice = self.forced(self.router(x)).softmax(-1).topk(self.top, -1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            at, nth = (choice == index).nonzero(as_tuple=True)
            if len(at):
                out = out.index_add(0, at, expert(x[at]) * weight[at, nth, None])
        return self.head(self.ln(x + out))


def _mixture(record: Record, steps: int, model: Mixture, optimizer: torch.optim.Optimizer) -> None:
    _steps(model, optimizer, lambda: _next_token(model, _tokens(20, 4, 9), 20), record, steps, clip=1.0)


def experts_starving(record: Record, steps: int) -> None:
    """Eight experts, one for each token, without a balancing loss: some get no token for a hundred steps."""
    model = Mixture()
    _mixture(record, steps, model, torch.optim.AdamW(model.parameters(), lr=3e-3))


def experts_top2_sgd(record: Record, steps: int) -> None:
    """Six experts, two for each token."""
    model = Mixture(6, 2)
    _mixture(record, steps, model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9))


def experts_bias_starved(record: Record, steps: int) -> None:
    """Eight experts of which five get no token any more from step 80 on, as a router learns to."""
    model = Mixture(8, 1)
    count = [0]

    def forced(logits: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        off = torch.arange(logits.shape[1]) < 5
        return logits.masked_fill(off, -30.0) if count[0] > 80 else logits

    model.forced = forced
    _mixture(record, steps, model, torch.optim.AdamW(model.parameters(), lr=1e-3))


def accumulated_amp(record: Record, steps: int) -> None:
    """Four micro batches of a GPT in bfloat16 by autocast, with a cosine and a warm-up."""
    model = Gpt(32, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    shape = lambda step: min(1.0, step / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, shape)
    record(model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                loss = _next_token(model, _tokens(batch=2), 40) / 4
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def scaled_half(record: Record, steps: int) -> None:
    """An MLP in float16 by autocast with a loss scale that grows, overflows and is halved again."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=10)
    record(model, optimizer)
    for _ in range(steps):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), x[:, :4].argmax(1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def tuned_head(record: Record, steps: int) -> None:
    """A pretrained body with a new head and a learning rate of its own, warmed up."""
    body = nn.Sequential(nn.Linear(20, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
    old, first = nn.Linear(64, 20), torch.optim.Adam(body.parameters(), lr=1e-3)
    for _ in range(40):
        x = torch.randn(32, 20)
        first.zero_grad()
        F.mse_loss(old(body(x)), x).backward()
        first.step()
    model = nn.Sequential(body, nn.Dropout(0.3), nn.Linear(64, 3))
    groups = [{"params": body.parameters(), "lr": 1e-4}, {"params": model[2].parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 30))

    def loss() -> torch.Tensor:
        x = torch.randn(16, 20)
        return F.cross_entropy(model(x), x[:, :3].argmax(1), label_smoothing=0.1)

    _steps(model, optimizer, loss, record, steps, schedule=schedule)


def batch_of_one(record: Record, steps: int) -> None:
    """One example in a batch, of values with heavy tails."""
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def loss() -> torch.Tensor:
        x = torch.distributions.StudentT(4.0).sample((1, 6))
        return F.smooth_l1_loss(model(x), x.sum(1, keepdim=True))

    _steps(model, torch.optim.SGD(model.parameters(), lr=0.02), loss, record, steps)


def curriculum(record: Record, steps: int) -> None:
    """Sequences that get longer and batches that get smaller, with SGD by Nesterov."""
    model = Lstm()
    now = [0]

    def loss() -> torch.Tensor:
        now[0] += 1
        length = 4 + 4 * (now[0] // 50)
        return _next_token(model, _tokens(12, 64 // length, length), 12)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True)
    _steps(model, optimizer, loss, record, steps, clip=1.0)


def rare_words(record: Record, steps: int) -> None:
    """Words by Zipf's law, averaged: most rows of the table have no gradient in a step."""
    model = nn.Sequential(nn.EmbeddingBag(2000, 16, mode="mean"), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))
    odds = 1 / torch.arange(1, 2001, dtype=torch.float)

    def loss() -> torch.Tensor:
        ids = torch.multinomial(odds, 8 * 12, replacement=True).view(8, 12)
        return F.cross_entropy(model(ids), (ids < 20).sum(1).gt(4).long())

    _steps(model, torch.optim.Adagrad(model.parameters(), lr=0.1), loss, record, steps)


def tied_lm(record: Record, steps: int) -> None:
    """A language model whose head is its embedding, with restarts of a cosine."""
    model = Gpt(32, 2)
    model.head.weight = model.tok.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, max(steps // 4, 1))
    _steps(model, optimizer, lambda: _next_token(model, _tokens(), 40), record, steps, clip=1.0, schedule=schedule)


def adapters(record: Record, steps: int) -> None:
    """Low-rank adapters, whose second factors begin as zero, beside frozen weights."""

    class Adapted(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.base = nn.Linear(width, width).requires_grad_(False)
            self.a, self.b = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.b(self.a(x)) * 2

    model = nn.Sequential(Adapted(24), nn.GELU(), Adapted(24), nn.GELU(), Adapted(24))

    def loss() -> torch.Tensor:
        x = torch.randn(16, 24)
        return F.mse_loss(model(x), x.roll(1, 1))

    _steps(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3), loss, record, steps)


def step_decay_cnn(record: Record, steps: int) -> None:
    """A CNN with group normalisation and dropout by SGD with step decay."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2),
        nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 4),
    )  # fmt: skip

    def loss() -> torch.Tensor:
        image, label = _stripes(32)
        return F.cross_entropy(model(image), label)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(steps // 4, 1), 0.2)
    _steps(model, optimizer, loss, record, steps, schedule=schedule)


def tasks_in_turn(record: Record, steps: int) -> None:
    """Two heads on one body, each trained in every third step or so."""
    body = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
    model = nn.ModuleDict({"body": body, "sign": nn.Linear(48, 2), "sum": nn.Linear(48, 1)})

    def loss() -> torch.Tensor:
        x = torch.randn(32, 12)
        hidden = model["body"](x)
        if torch.rand(()) < 0.4:
            return F.cross_entropy(model["sign"](hidden), (x[:, 0] > 0).long())
        return F.mse_loss(model["sum"](hidden), x.sum(1, keepdim=True))

    _steps(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, record, steps)


# --- held out


def policy_gradient(record: Record, steps: int) -> None:
    """Rewards times log-probabilities: signs change, sizes differ from step to step."""
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))

    def loss() -> torch.Tensor:
        state = torch.randn(16, 4)
        choice = torch.distributions.Categorical(logits=model(state))
        action = choice.sample()
        reward = (action == state[:, :3].argmax(1)).float()
        return -(choice.log_prob(action) * (reward - reward.mean())).mean() - 0.01 * choice.entropy().mean()

    _steps(model, torch.optim.RMSprop(model.parameters(), lr=3e-3), loss, record, steps)


def contrastive(record: Record, steps: int) -> None:
    """Two towers and a learned temperature, clamped."""

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            self.right = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
            self.scale = nn.Parameter(torch.tensor(2.66))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            left, right = F.normalize(self.left(a), dim=-1), F.normalize(self.right(b), dim=-1)
            return left @ right.T * self.scale.clamp(max=4.6).exp()

    model, mix = Towers(), torch.randn(16, 16) / 4

    def loss() -> torch.Tensor:
        a = torch.randn(24, 16)
        logits, at = model(a, a @ mix + 0.1 * torch.randn(24, 16)), torch.arange(24)
        return (F.cross_entropy(logits, at) + F.cross_entropy(logits.T, at)) / 2

    _steps(model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.2), loss, record, steps)


def dropped_layers(record: Record, steps: int) -> None:
    """Residual layers of which each is left out in a third of the steps."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(10, 32)
            self.layers = nn.ModuleList(
                [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32)) for _ in range(5)]
            )
            self.last = nn.Linear(32, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for layer in self.layers:
                if torch.rand(()) > 0.33:
                    x = x + layer(x)
            return self.last(x)

    model = Dropped()

    def loss() -> torch.Tensor:
        x = torch.randn(32, 10)
        return F.cross_entropy(model(x), x[:, :3].argmax(1))

    _steps(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss, record, steps)


def sparse_codes(record: Record, steps: int) -> None:
    """A sparse autoencoder: a ReLU of which nearly all outputs become zero."""
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 16, bias=False))
    basis = torch.randn(40, 16)

    def loss() -> torch.Tensor:
        x = (torch.rand(64, 40) < 0.05).float() @ basis
        codes = model[:2](x)
        return F.mse_loss(model[2](codes), x) + 0.02 * codes.abs().mean() + 0 * model(x).sum()

    _steps(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, record, steps)


def interpolated_targets(record: Record, steps: int) -> None:
    """A GRU for a long sum, with a large first loss that falls by five decades."""

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.out = nn.GRU(2, 24, batch_first=True), nn.Linear(24, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.gru(x)[0][:, -1])

    model = Sum()

    def loss() -> torch.Tensor:
        x = torch.rand(32, 10, 2)
        return F.mse_loss(model(x), (x[..., 0] * x[..., 1]).sum(1, keepdim=True) * 10)

    _steps(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, record, steps, clip=5.0)


def generator_and_critic(record: Record, steps: int) -> None:
    """Both halves of a GAN under one optimizer with two groups, the generator in every second step."""
    model = nn.ModuleDict({
        "make": nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2)),
        "judge": nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)),
    })  # fmt: skip
    groups = [{"params": model[name].parameters(), "lr": 1e-3} for name in model]
    optimizer = torch.optim.Adam(groups, betas=(0.5, 0.99))

    def loss() -> torch.Tensor:
        angle = torch.rand(64, 1) * 2 * math.pi
        real, made = torch.cat((angle.cos(), angle.sin()), 1), model["make"](torch.randn(64, 4))
        fooled = F.softplus(-model["judge"](made)).mean()
        told = F.softplus(-model["judge"](real)).mean() + F.softplus(model["judge"](made.detach())).mean()
        return fooled + told

    _steps(model, optimizer, loss, record, steps)


def experts_soft(record: Record, steps: int) -> None:
    """Four experts that are all run, and mixed by a softmax which sharpens."""

    class Soft(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
            self.out = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mix = self.gate(x).softmax(-1)
            return self.out(torch.stack([each(x) for each in self.experts], -1).matmul(mix[..., None])[..., 0])

    model = Soft()

    def loss() -> torch.Tensor:
        x = torch.randn(32, 8)
        return F.mse_loss(model(x), torch.stack((x[:, 0].abs(), x[:, 1] * (x[:, 2] > 0)), 1))

    _steps(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, record, steps)


def one_cycle(record: Record, steps: int) -> None:
    """A residual MLP by SGD whose rate and momentum follow one cycle."""
    model = nn.Sequential(
        nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)
    )
    centres = torch.randn(5, 20)

    def loss() -> torch.Tensor:
        label = torch.randint(0, 5, (32,))
        return F.cross_entropy(model(centres[label] + torch.randn(32, 20)), label)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps + 1)
    _steps(model, optimizer, loss, record, steps, schedule=schedule)


def averaged_teacher(record: Record, steps: int) -> None:
    """A student and a teacher that is its moving average, without gradients."""
    student = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 8))
    teacher = nn.Sequential(nn.Linear(12, 48), nn.GELU(), nn.Linear(48, 8)).requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    model = nn.ModuleDict({"student": student, "teacher": teacher})

    def loss() -> torch.Tensor:
        with torch.no_grad():
            for mine, other in zip(teacher.parameters(), student.parameters()):
                mine.lerp_(other, 0.05)
        x = torch.randn(32, 12)
        wanted = (teacher(x) * 2).softmax(-1)
        return -(wanted * student(x + 0.1 * torch.randn(32, 12)).log_softmax(-1)).sum(-1).mean()

    _steps(model, torch.optim.AdamW(student.parameters(), 1e-3), loss, record, steps)


def many(*trainings: Training) -> dict[str, Training]:
    return {each.__name__: each for each in trainings}


LISTED: dict[str, Any] = many(
    gpt_no_warmup, gpt_fixed_set, experts_starving, experts_top2_sgd, experts_bias_starved, accumulated_amp,
    scaled_half, tuned_head, batch_of_one, curriculum, rare_words, tied_lm, adapters, step_decay_cnn, tasks_in_turn,
)  # fmt: skip
HELD_OUT: dict[str, Any] = many(
    policy_gradient, contrastive, dropped_layers, sparse_codes, interpolated_targets, generator_and_critic,
    experts_soft, one_cycle, averaged_teacher,
)  # fmt: skip
