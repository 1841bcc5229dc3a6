"""Whole numbers and truth values have no rounding error: if they differ, a run got other data, in every precision."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from probe.compare.runner import summaries
from probe.compare.summary import Summary

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

TOKENS, LENGTH, ROWS, WIDTH = 64, 24, 8, 32


class Data(NamedTuple):
    ids: Any
    positions: Any
    mask: Any
    labels: Any
    unused: Any


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH + 1, WIDTH)
        self.mix, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, TOKENS)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, data: Data) -> Any:
        hidden = self.tokens(data.ids) + self.places(data.positions)
        hidden = hidden + self.mix(hidden).masked_fill(data.mask, 0.0)
        # The kernel of the loss takes labels of 64 bits alone.
        return self.loss(self.head(hidden).flatten(0, 1), data.labels.flatten().long())


def _data(whole: Any) -> Data:
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(1, TOKENS - 1, (ROWS, LENGTH), generator=generator).to(whole)
    # The extremes stay, whatever else differs.
    ids[0, 0], ids[0, 1] = 0, TOKENS - 1
    mask = torch.rand(ROWS, LENGTH, 1, generator=generator) < 0.5
    return Data(ids, torch.arange(LENGTH).expand(ROWS, -1).to(whole), mask, ids.roll(-1, 1), ids.clone())


def _changed(data: Data, kind: str) -> Data:
    """The same data with one element of `kind` changed, or the tokens of a row in another order."""
    if kind == "order":
        ids = data.ids.clone()
        ids[2, 3:9] = ids[2, 3:9].flip(0)
        assert not torch.equal(ids, data.ids)
        return data._replace(ids=ids)
    found = getattr(data, kind).clone()
    found[3, 5] = ~found[3, 5] if kind == "mask" else (found[3, 5] + 7) % LENGTH
    assert not torch.equal(found, getattr(data, kind))
    return data._replace(**{kind: found})


def _dump(new_debugger: Any, path: Path, data: Data, dtype: Any, level: str, mode: str) -> None:
    torch.manual_seed(2)
    model = Network().to(dtype)
    config = path.parent / f"{path.name}.json"
    task = {"task": "statistics", "level": level, "dump_path": str(path), "statistics": {"summary_mode": mode}}
    config.write_text(json.dumps(task))
    debugger = new_debugger(str(config))
    debugger.start(model)
    with torch.no_grad():
        model(data)
    debugger.stop()
    debugger.step()


class Denoiser(nn.Module):
    """Takes a time step by a function of its own, in a dtype that is given, and noise as it is."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.dtype, self.mix = dtype, nn.Linear(WIDTH, WIDTH)

    def forward(self, noise: Any, time: Any) -> Any:
        angles = time.to(self.dtype)[:, None] * torch.arange(1, WIDTH + 1).to(self.dtype)
        return self.mix(torch.cat([angles.sin().float()])) + self.mix(noise)


def test_what_a_program_makes_of_its_data_is_not_said_to_be_another_batch(new_debugger: Any, tmp_path: Path) -> None:
    noise, time = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(5)), torch.arange(101, 105)
    for name, dtype in (("target", torch.bfloat16), ("golden", torch.float32)):
        torch.manual_seed(3)
        model, debugger = Denoiser(dtype), new_debugger(level="mix", dump_path=str(tmp_path / name))
        debugger.start(model)
        model(noise, time).sum().backward()
        debugger.stop()
        debugger.step()
    found = _compared(tmp_path, "target", "golden")
    assert found.answer == "divergence" and not [each for each in found.outside if each.kind == "data"], found.outside


def _compared(path: Path, *names: str) -> Summary:
    (found,) = summaries(*(str(path / name) for name in names))
    return found


@pytest.mark.sampled(least=1, each=False)
@pytest.mark.parametrize(("dtype", "whole"), [("bfloat16", "int64"), ("bfloat16", "int32"), ("float32", "int64")])
@pytest.mark.parametrize("mode", ["statistics", "md5"])
def test_other_data_is_never_no_divergence(
    new_debugger: Any, tmp_path: Path, dtype: str, whole: str, mode: str
) -> None:
    data = _data(getattr(torch, whole))
    kinds = ("ids", "positions", "mask", "labels", "order")
    seen = 0
    for level, kind in itertools.product(("L0", "L1", "mix"), ("golden", "same", "unused", *kinds)):
        given = data if kind in ("golden", "same") else _changed(data, kind)
        _dump(new_debugger, tmp_path / f"{level}-{kind}", given, getattr(torch, dtype), level, mode)
        if kind == "golden":
            continue
        found = _compared(tmp_path, f"{level}-{kind}", f"{level}-golden")
        if kind in ("same", "unused"):
            assert found.answer == "none", (level, kind, found.why)
        elif kind == "mask" and level == "L0":
            continue  # No module takes it.
        elif mode == "md5" or kind not in ("mask", "order"):
            # Without checksums a mask, and tokens in another order, have the statistics of the other side's.
            seen += 1
            assert found.answer != "none", (level, kind, found.why)
        if kind == "ids":
            assert found.answer == "divergence", (level, found.why)
            assert "other token ids" in found.why, (level, found.why)
    assert seen == (14 if mode == "md5" else 9)
