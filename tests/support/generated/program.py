"""A generated training: the model of each rank, and one step of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from generated.blocks import BLOCKS, POSITIONS, SAMPLES, WIDTH, Block, Site
from generated.cases import Case
from generated.communication import Run

_SHAPE = (SAMPLES, POSITIONS, WIDTH)


class Stage(nn.Module):
    """The blocks of one stage; the first changes the batch, the last gives scores."""

    def __init__(self, case: Case, stage: int) -> None:
        super().__init__()
        self.run: Run
        draw = case.draw(f"model {stage}")
        self.is_first = stage == 0
        self.blocks = nn.ModuleList(BLOCKS[name](draw, case.layout.shards) for name in case.blocks[stage])
        for block in self.blocks:
            # At this level nothing else is recorded.
            block.has_module_site |= case.level == "L0"
        self.head: nn.Module | None = nn.Linear(WIDTH, WIDTH) if stage == case.layout.stages - 1 else None

    def forward(self, h: Tensor) -> Tensor:
        first, *others = self.blocks
        h = self.run.first(first, h) if self.is_first else first(h)
        for block in others:
            h = block(h)
        return h if self.head is None else self.run.use(self.head, h)


class Training:
    """The part of a training that one rank does."""

    def __init__(self, case: Case, rank: int) -> None:
        self.case, self.rank = case, rank
        layout = case.layout
        self.stage, self.replica, self.shard = layout.place(rank)
        self.shards, self.replicas = layout.shard_group(rank), layout.replica_group(rank)
        # Replicas begin with the same weights, stages and shards have their own.
        torch.manual_seed(hash((case.seed, case.number, self.stage, self.shard)) % 2**31)
        self.model = Stage(case, self.stage).to(getattr(torch, case.dtype))
        self.optimizer = self._optimizer(case.draw("optimizer"))

    def _optimizer(self, draw: random.Random) -> torch.optim.Optimizer:
        name = draw.choice(("SGD", "Adam", "AdamW"))
        made: torch.optim.Optimizer = getattr(torch.optim, name)(self.model.parameters(), lr=1e-3)
        return made

    def batch(self, step: int) -> list[Tensor]:
        """The batches of a step, which all shards of a replica have."""
        torch.manual_seed(hash((self.case.seed, self.case.number, step, self.replica)) % 2**31)
        dtype = getattr(torch, self.case.dtype)
        return [torch.randn(_SHAPE, dtype=dtype) for _ in range(self.case.microbatches)]

    def step(self, run: Run, batches: list[Tensor]) -> None:
        """One step: forward, backward, gradients of the replicas added up."""
        for module in self.model.modules():
            if isinstance(module, (Stage, Block, Site)):
                module.run = run
            if isinstance(module, Block):
                module.ranks = self.shards
        self.optimizer.zero_grad()
        losses = self._forward_backward(run, batches)
        self._add_gradients(run)
        if losses:
            self._log(run, torch.stack(losses).sum())
        if self.case.clips:
            self._clip(run)
        if self.case.steps_inside:
            self.optimizer.step()

    # --- forward and backward of the stages

    def _forward_backward(self, run: Run, batches: list[Tensor]) -> list[Tensor]:
        layout = self.case.layout
        before = layout.rank(self.stage - 1, self.replica, self.shard) if self.stage else None
        after = layout.rank(self.stage + 1, self.replica, self.shard) if self.stage + 1 < layout.stages else None
        taken, given, losses, waits = [], [], [], []
        for batch in batches:
            if before is None:
                h = self._input(run, batch)
            else:
                h = run.receive(_SHAPE, before, "forward", lambda: torch.ones(3).sum()).requires_grad_()
            output = self.model(h)
            if after is None:
                output = self._loss(run, output)
                losses.append(output.detach())
            else:
                waits.append(run.send(output.detach(), after, "forward"))
            taken.append(h)
            given.append(output)
        for h, output in zip(taken, given):
            if after is None:
                output.backward()
            else:
                output.backward(run.receive(_SHAPE, after, "backward", lambda: torch.ones(3).sum()))
            if before is not None:
                assert h.grad is not None
                waits.append(run.send(h.grad, before, "backward"))
        for wait in waits:
            wait()
        return losses

    def _input(self, run: Run, batch: Tensor) -> Tensor:
        first = self.shards[0]
        if self.case.broadcasts_input and len(self.shards) > 1:
            if self.rank != first:
                batch = torch.empty_like(batch)
            run.broadcast(batch, first, self.shards)
        if self.case.shares_mask and len(self.shards) > 1:
            self._share_mask(run)
        if self.case.is_prepared:
            batch = run.first(torch.sub, batch, 0.1)
        return batch

    def _share_mask(self, run: Run) -> None:
        mask = torch.empty(POSITIONS, POSITIONS)
        if self.rank == self.shards[0]:
            mask = torch.full((POSITIONS, POSITIONS), float("-inf")).triu(1)
        run.send_to_shards(mask, self.shards)
        F.softmax(mask, dim=-1)

    def _loss(self, run: Run, scores: Tensor) -> Tensor:
        scores = run.site(scores)
        rows = scores.reshape(-1, WIDTH)
        if self.case.loss == "square":
            return (rows * rows).mean()
        labels = torch.arange(rows.shape[0]) % WIDTH
        if self.case.loss == "classes":
            return F.cross_entropy(rows, labels)
        # As in decoding: what is not allowed has the probability 0, and its logarithm is never taken for the loss.
        allowed = rows.masked_fill(F.one_hot((labels + 1) % WIDTH, WIDTH).bool(), float("-inf"))
        logarithms = F.log_softmax(allowed, dim=-1)
        return -logarithms.gather(-1, labels.unsqueeze(-1)).mean()

    # --- after the backward

    def _add_gradients(self, run: Run) -> None:
        ranks = self.replicas
        if len(ranks) == 1:
            return
        parameters = [each for each in self.model.parameters() if each.grad is not None]
        gradients = [each.grad for each in parameters if each.grad is not None]
        if self.case.gradients == "each":
            for gradient in gradients:
                run.all_reduce(gradient, ranks)
                gradient /= len(ranks)
        elif self.case.gradients == "unseen":
            for gradient in gradients:
                run.add_unseen(gradient, ranks)
                gradient /= len(ranks)
        elif self.case.gradients == "later":
            self._add_later(run, gradients, ranks)
        else:
            self._add_flat(run, gradients, ranks)

    def _add_later(self, run: Run, gradients: list[Tensor], ranks: tuple[int, ...]) -> None:
        waits: list[Callable[[], None]] = [run.begin_all_reduce(each, ranks) for each in gradients]
        # Something to do meanwhile, which is a place for a fault as well: nothing comes of it.
        run.site(torch.ones(2, WIDTH, dtype=gradients[0].dtype, requires_grad=True) * 2, has_backward=False)
        for gradient, wait in zip(gradients, waits):
            wait()
            gradient /= len(ranks)

    def _add_flat(self, run: Run, gradients: list[Tensor], ranks: tuple[int, ...]) -> None:
        sizes = [each.numel() for each in gradients]
        missing = -sum(sizes) % len(ranks)
        flat = torch.cat([*(each.reshape(-1) for each in gradients), gradients[0].new_zeros(missing)])
        if self.case.gradients == "bucket":
            run.all_reduce(flat, ranks)
        else:
            flat = torch.cat(run.all_gather(run.reduce_scatter(flat, ranks), ranks))
        flat = flat / len(ranks)
        for gradient, part in zip(gradients, flat.split([*sizes, missing])):
            gradient.copy_(part.view_as(gradient))

    def _log(self, run: Run, loss: Tensor) -> None:
        ranks = self.replicas
        if len(ranks) == 1:
            return
        if self.case.logs_loss == "all_reduce":
            run.all_reduce(loss, ranks)
        elif self.case.logs_loss == "reduce":
            run.reduce(loss, ranks[0], ranks)
        elif self.case.logs_loss == "all_gather":
            torch.stack(run.all_gather(loss.reshape(1), ranks)).mean()

    def _clip(self, run: Run) -> None:
        gradients = [each.grad for each in self.model.parameters() if each.grad is not None]
        square = torch.stack([gradient.float().pow(2).sum() for gradient in gradients]).sum()
        if len(self.shards) > 1:
            run.all_reduce(square, self.shards)
        factor = torch.clamp(1.0 / (torch.sqrt(square) + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))


def spoil_weight(module: nn.Module, value: float, draw: random.Random) -> None:
    """Write `value` into one element of a weight of the module."""
    weights = [each for each in module.parameters(recurse=False) if each.dim() >= 1]
    with torch.no_grad():
        flat: Any = draw.choice(weights).view(-1)
        flat[draw.randrange(len(flat))] = value


def spoil_by_optimizer(module: nn.Module) -> None:
    """Step an optimizer that divides by nothing: Adam without epsilon, where the gradient is zero."""
    optimizer = torch.optim.Adam(module.parameters(recurse=False), eps=0.0)
    for parameter in module.parameters(recurse=False):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
