"""What a generated training is like, all from a seed: the ranks, the model, the parallel form, the kind of fault."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

BLOCKS = ("mlp", "attention", "convolution", "list", "recurrent", "experts", "buffer", "norm", "vocabulary")
_ALONE = tuple(name for name in BLOCKS if name not in ("experts", "vocabulary"))
"""Those in which a shard needs nothing of the others."""
LAYOUTS = (
    (1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 2, 1), (3, 1, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2), (4, 1, 1),
    (1, 4, 1), (1, 1, 4), (1, 5, 1), (3, 2, 1), (2, 2, 2), (1, 4, 2), (1, 2, 4), (4, 2, 1),
)  # fmt: skip
"""Pipeline stages, replicas of the data, and parts that a tensor is split into; their product is the ranks."""

KINDS = (
    *("forward",) * 28, *("backward",) * 14, *("communication",) * 12, *("data",) * 9, *("parameter",) * 8,
    *("optimizer",) * 4, *("uninitialised",) * 5, *("two",) * 7, *("masked",) * 5, *("healthy",) * 8,
)  # fmt: skip
"""The kinds of a hundred cases."""
ON_MODULES = ("forward", "backward", "parameter", "healthy")
"""What a dump at level L0, which has modules and no communication, can show."""


@dataclass(frozen=True)
class Layout:
    """How the ranks share the work: rank ``(stage * replicas + replica) * shards + shard``."""

    stages: int
    replicas: int
    shards: int

    @property
    def world(self) -> int:
        return self.stages * self.replicas * self.shards

    def place(self, rank: int) -> tuple[int, int, int]:
        """Stage, replica and shard of a rank."""
        rest, shard = divmod(rank, self.shards)
        stage, replica = divmod(rest, self.replicas)
        return stage, replica, shard

    def rank(self, stage: int, replica: int, shard: int) -> int:
        return (stage * self.replicas + replica) * self.shards + shard

    def shard_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that hold the other parts of the same tensors."""
        stage, replica, _ = self.place(rank)
        return tuple(self.rank(stage, replica, shard) for shard in range(self.shards))

    def replica_group(self, rank: int) -> tuple[int, ...]:
        """The ranks that have the same weights and other data."""
        stage, _, shard = self.place(rank)
        return tuple(self.rank(stage, replica, shard) for replica in range(self.replicas))

    def groups(self) -> list[tuple[int, ...]]:
        """All groups of more than one rank, in an order that all ranks agree on."""
        found = {group(rank) for rank in range(self.world) for group in (self.shard_group, self.replica_group)}
        return sorted(group for group in found if len(group) > 1)


@dataclass(frozen=True)
class Case:
    """One training; every choice is made before it starts, but for the place of the fault, which `choosing` draws."""

    number: int
    seed: int
    kind: str
    level: str
    layout: Layout
    blocks: tuple[tuple[str, ...], ...]
    """Of each stage."""
    dtype: str
    steps: int
    fault_step: int
    microbatches: int
    gradients: str
    """How replicas add their gradients up."""
    transfer: str
    """How stages send to each other."""
    broadcasts_input: bool
    is_prepared: bool
    """Whether the batch is changed before the model sees it."""
    loss: str
    logs_loss: str
    clips: bool
    steps_inside: bool
    """Whether the optimizer's step is recorded too."""
    is_tagged: bool
    shares_mask: bool
    """Whether a mask of -inf is sent to the shards with the batch."""

    def draw(self, purpose: str) -> random.Random:
        """Random numbers for one purpose, the same on every rank."""
        return random.Random(f"{self.seed} {self.number} {purpose}")

    @property
    def folder(self) -> str:
        return f"case{self.number:03}"


def cases(seed: int, numbers: Sequence[int]) -> list[Case]:
    """The cases of these numbers; what a case is like depends on the seed and its own number only."""
    return [_case(seed, number) for number in numbers]


def _case(seed: int, number: int) -> Case:
    draw = random.Random(f"{seed} {number}")
    # Of a hundred cases in a row each kind comes as often as it is listed.
    kinds = list(KINDS)
    random.Random(f"{seed} {number // len(KINDS)} kinds").shuffle(kinds)
    kind = kinds[number % len(KINDS)]
    level = draw.choices(("mix", "L1", "L0"), (6, 3, 1))[0]
    if level == "L0" and kind not in ON_MODULES:
        level = "mix"
    layout = Layout(*draw.choice(LAYOUTS))
    if kind == "communication" and layout.replicas == 1:
        # Without replicas there may be nothing to add up.
        layout = Layout(*draw.choice([each for each in LAYOUTS if each[1] > 1]))
    steps = draw.choices((1, 2, 3), (5, 4, 1))[0]
    if kind == "optimizer":
        steps = max(steps, 2)
    fault_step = draw.randrange(1 if kind == "optimizer" else 0, steps)
    if level == "L0":
        # Without records of communication only the rank that made a value can be asked.
        layout, steps, fault_step = Layout(1, layout.world, 1), 1, 0
    blocks = tuple(tuple(draw.choices(BLOCKS, k=draw.randint(1, 3))) for _ in range(layout.stages))
    if level == "L0":
        blocks = tuple(tuple(name if name in _ALONE else "mlp" for name in stage) for stage in blocks)
    return Case(
        number=number,
        seed=seed,
        kind=kind,
        level=level,
        layout=layout,
        blocks=blocks,
        dtype=draw.choices(("float32", "bfloat16", "float64"), (7, 1, 2))[0],
        steps=steps,
        fault_step=fault_step,
        microbatches=draw.randint(1, 3) if layout.stages > 1 else draw.choice((1, 1, 2)),
        # What is not recorded is nothing to be named.
        gradients=draw.choice(("each", "later", "bucket", "sharded", *(("unseen",) * (kind != "communication")))),
        transfer=draw.choice(("blocking", "later", "batch")),
        broadcasts_input=draw.random() < 0.5,
        is_prepared=draw.random() < 0.4,
        loss=draw.choice(("square", "classes", "probabilities")),
        logs_loss=draw.choice(("", "all_reduce", "reduce", "all_gather")),
        clips=draw.random() < 0.3,
        steps_inside=draw.random() < 0.3,
        is_tagged=draw.random() < 0.5,
        shares_mask=draw.random() < 0.3,
    )


def batches(drawn: Sequence[Case]) -> Iterator[list[Case]]:
    """Those that one group of processes makes: as many ranks, and the same level."""
    keys = sorted({(case.layout.world, case.level) for case in drawn})
    for key in keys:
        yield [case for case in drawn if (case.layout.world, case.level) == key]
