"""Small healthy trainings. The rules were chosen by those that are `LISTED`, and never by those that are `HELD_OUT`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Record = Callable[[nn.Module, torch.optim.Optimizer], Any]
Training = Callable[[Record, int], None]


class Block(nn.Module):
    def __init__(self, width: int, heads: int = 2, causal: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.ln1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.drop(self.proj(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.ln2(x)))))


class Gpt(nn.Module):
    def __init__(self, width: int = 32, layers: int = 3, vocabulary: int = 40, dropout: float = 0.1) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(16, width) * 0.02)
        self.blocks = nn.ModuleList([Block(width, dropout=dropout) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


def _tokens(vocabulary: int = 40, batch: int = 8, length: int = 17) -> torch.Tensor:
    start = torch.randint(0, vocabulary, (batch, 1))
    return (start + torch.arange(length) * torch.randint(1, 3, (batch, 1))) % vocabulary


def _steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[], torch.Tensor], record: Record, steps: int,
    clip: float | None = None, schedule: Any = None,
) -> None:  # fmt: skip
    record(model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()


def gpt_adamw(record: Record, steps: int) -> None:
    model = Gpt()

    def loss() -> torch.Tensor:
        ids = _tokens()
        return F.cross_entropy(model(ids[:, :-1]).reshape(-1, 40), ids[:, 1:].reshape(-1))

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 20))
    _steps(model, optimizer, loss, record, steps, clip=1.0, schedule=schedule)


def mlp_sgd(record: Record, steps: int) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    centres = torch.randn(5, 20) * 2

    def loss() -> torch.Tensor:
        label = torch.randint(0, 5, (32,))
        return F.cross_entropy(model(centres[label] + torch.randn(32, 20)), label)

    _steps(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loss, record, steps)


def cnn_batchnorm(record: Record, steps: int) -> None:
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 4))

    def loss() -> torch.Tensor:
        label = torch.randint(0, 4, (16,))
        image = torch.randn(16, 1, 8, 8) * 0.3
        image[torch.arange(16), 0, label * 2] += 2
        return F.cross_entropy(model(image), label)

    _steps(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4), loss, record, steps)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tok, self.lstm, self.head = nn.Embedding(12, 16), nn.LSTM(16, 32, 2, batch_first=True), nn.Linear(32, 12)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.tok(ids))[0])


def lstm_adam(record: Record, steps: int) -> None:
    model = Lstm()

    def loss() -> torch.Tensor:
        ids = _tokens(12)
        return F.cross_entropy(model(ids[:, :-1]).reshape(-1, 12), ids[:, 1:].reshape(-1))

    _steps(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, record, steps)


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))


def gan_critic(record: Record, steps: int) -> None:
    model = Gan()
    own = torch.optim.Adam(model.generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
    critic = torch.optim.Adam(model.critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    record(model.critic, critic)
    for _ in range(steps):
        angle = torch.rand(64, 1) * 2 * math.pi
        real = torch.cat((angle.cos(), angle.sin()), 1)
        made = model.generator(torch.randn(64, 4))
        critic.zero_grad()
        judged = model.critic(torch.cat((real, made.detach())))
        truth = torch.cat((torch.ones(64, 1), torch.zeros(64, 1)))
        F.binary_cross_entropy_with_logits(judged, truth).backward()
        critic.step()
        own.zero_grad()
        model.critic.eval()
        F.softplus(-model.critic(made)).mean().backward()
        model.critic.train()
        own.step()


def vae_adam(record: Record, steps: int) -> None:
    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.spread = nn.Linear(16, 32), nn.Linear(32, 8)
            self.decode, self.out = nn.Linear(4, 32), nn.Linear(32, 16)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            mean, log = self.spread(torch.tanh(self.encode(x))).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (log / 2).exp()
            return self.out(torch.tanh(self.decode(z))), mean, log

    model, basis = Vae(), torch.randn(3, 16)

    def loss() -> torch.Tensor:
        x = torch.randn(32, 3) @ basis
        made, mean, log = model(x)
        return F.mse_loss(made, x) + 0.01 * (mean.square() + log.exp() - log - 1).mean()

    _steps(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, record, steps)


# --- held out


def vit_cosine(record: Record, steps: int) -> None:
    """A vision transformer with a warm-up from zero and a cosine to zero."""

    class Vit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.cls = nn.Conv2d(1, 32, 2, 2), nn.Parameter(torch.zeros(1, 1, 32))
            self.blocks = nn.ModuleList([Block(32, causal=False) for _ in range(4)])
            self.ln, self.head = nn.LayerNorm(32), nn.Linear(32, 4)
            nn.init.zeros_(self.head.weight)

        def forward(self, image: torch.Tensor) -> torch.Tensor:
            x = self.patch(image).flatten(2).transpose(1, 2)
            x = torch.cat((self.cls.expand(len(x), 1, -1), x), 1)
            for block in self.blocks:
                x = block(x)
            return self.head(self.ln(x[:, 0]))

    model = Vit()

    def loss() -> torch.Tensor:
        label = torch.randint(0, 4, (16,))
        image = torch.randn(16, 1, 8, 8) * 0.3
        image[torch.arange(16), 0, label * 2] += 2
        return F.cross_entropy(model(image), label)

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    shape = lambda step: min(1.0, step / 10) * 0.5 * (1 + math.cos(math.pi * step / steps))  # noqa: E731
    _steps(model, optimizer, loss, record, steps, schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, shape))


def translate_rmsprop(record: Record, steps: int) -> None:
    model = nn.ModuleDict({"tok": nn.Embedding(12, 16), "body": nn.Transformer(16, 2, 2, 2, 32, 0.1, batch_first=True),
                           "head": nn.Linear(16, 12)})  # fmt: skip

    def loss() -> torch.Tensor:
        ids = torch.randint(1, 12, (16, 8))
        target = torch.cat((torch.zeros(16, 1, dtype=torch.long), ids.flip(1)), 1)
        mask = nn.Transformer.generate_square_subsequent_mask(8)
        out = model["body"](model["tok"](ids), model["tok"](target[:, :-1]), tgt_mask=mask)
        return F.cross_entropy(model["head"](out).reshape(-1, 12), target[:, 1:].reshape(-1))

    _steps(model, torch.optim.RMSprop(model.parameters(), lr=1e-3), loss, record, steps)


def resnet_nesterov(record: Record, steps: int) -> None:
    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.an = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.b, self.bn = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            nn.init.zeros_(self.bn.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(x + self.bn(self.b(F.relu(self.an(self.a(x))))))

    model = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), *[Residual(12) for _ in range(3)], nn.AdaptiveAvgPool2d(2),
                          nn.Flatten(), nn.Linear(48, 4))  # fmt: skip

    def loss() -> torch.Tensor:
        label = torch.randint(0, 4, (16,))
        image = torch.randn(16, 1, 8, 8) * 0.5
        image[torch.arange(16), 0, :, label * 2] += 2
        return F.cross_entropy(model(image), label)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps // 2, steps * 3 // 4])
    _steps(model, optimizer, loss, record, steps, schedule=schedule)


def q_learning_adam(record: Record, steps: int) -> None:
    """Batches of its own experience, and a target that jumps."""
    model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    target = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    record(model, optimizer)
    for step in range(steps):
        if step % 20 == 0:
            target.load_state_dict(model.state_dict())
        state = torch.randn(32, 4)
        action = torch.randint(0, 2, (32, 1))
        after = state + (action * 2 - 1) * 0.3 + torch.randn(32, 4) * 0.1
        reward = (after[:, :1] > 1.5).float() * 10
        with torch.no_grad():
            wanted = reward + 0.95 * target(after).max(1, keepdim=True).values
        optimizer.zero_grad()
        F.smooth_l1_loss(model(state).gather(1, action), wanted).backward()
        optimizer.step()


def experts_adafactor(record: Record, steps: int) -> None:
    """A mixture of experts of which some have no token in a step."""

    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.router = nn.Embedding(20, 16), nn.Linear(16, 6)
            self.experts = nn.ModuleList(
                [nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(6)]
            )
            self.head = nn.Linear(16, 20)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tok(ids).flatten(0, 1)
            weight, choice = self.router(x).softmax(-1).max(-1)
            out = torch.zeros_like(x)
            for index, expert in enumerate(self.experts):
                at = (choice == index).nonzero()[:, 0]
                out = out.index_add(0, at, expert(x[at]) * weight[at, None])
            return self.head(x + out)

    model = Experts()

    def loss() -> torch.Tensor:
        ids = _tokens(20, 4, 9)
        return F.cross_entropy(model(ids[:, :-1]), ids[:, 1:].reshape(-1))

    _steps(model, torch.optim.Adafactor(model.parameters(), lr=1e-2), loss, record, steps)


def diffusion_adagrad(record: Record, steps: int) -> None:
    model = nn.Sequential(nn.Linear(3, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 2))

    def loss() -> torch.Tensor:
        angle, time = torch.rand(64, 1) * 6.28, torch.rand(64, 1)
        clean, noise = torch.cat((angle.cos(), angle.sin()), 1), torch.randn(64, 2)
        noisy = clean * (1 - time).sqrt() + noise * time.sqrt()
        return F.mse_loss(model(torch.cat((noisy, time), 1)), noise)

    _steps(model, torch.optim.Adagrad(model.parameters(), lr=0.05), loss, record, steps)


LISTED: dict[str, Training] = {
    each.__name__: each for each in (gpt_adamw, mlp_sgd, cnn_batchnorm, lstm_adam, gan_critic, vae_adam)
}
HELD_OUT: dict[str, Training] = {
    each.__name__: each
    for each in (vit_cosine, translate_rmsprop, resnet_nesterov, q_learning_adam, experts_adafactor,
                 diffusion_adagrad)
}  # fmt: skip
