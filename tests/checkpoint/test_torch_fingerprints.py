"""Fingerprints of modules, state dicts and the parts of ranks, and of a trainer and an engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import probe
from probe.checkpoint.fingerprints.flight import landings
from probe.common.errors import MsprobeException


def model(seed: int = 0) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=200,
    )  # fmt: skip
    made: torch.nn.Module = transformers.LlamaForCausalLM(config)
    return made


def as_engine(state: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights as an inference engine has them: fused, in bfloat16."""
    for name, tensor in state.items():
        path, _, last = name.rpartition("_proj.weight")[0].rpartition(".")
        groups = {"q": ("qkv", "qkv"), "gate": ("gate_up", ("gate", "up"))}
        if last in groups:
            fused, parts = groups[last]
            whole = torch.cat([state[f"{path}.{each}_proj.weight"] for each in parts])
            yield f"{path}.{fused}_proj.weight", whole.to(torch.bfloat16)
        elif last not in ("k", "v", "up"):
            yield name, tensor.to(torch.bfloat16)


def test_a_module_its_state_and_its_file_are_one(tmp_path: Path) -> None:
    module = model()
    torch.save(module.state_dict(), tmp_path / "model.pt")
    path = probe.fingerprint(module, step=3).save(tmp_path / "a.fingerprint")
    assert probe.fingerprint(module).compare(probe.fingerprint(module.state_dict())).answer == "identical"
    report = probe.ckpt_compare(path, tmp_path / "model.pt")
    assert report.answer == "identical" and len(report.parameters) == 21


def test_buffers_views_tied_weights_and_dtypes() -> None:
    module = torch.nn.BatchNorm1d(8)
    module.register_buffer("scratch", torch.ones(3), persistent=False)
    assert list(probe.fingerprint(module).content.weights) == list(module.state_dict())
    base = torch.arange(64.0).reshape(8, 8)
    views = {"turned": base.T, "strided": base[:, ::2], "none": torch.zeros(0, 4), "number": torch.tensor(3)}
    plain = {name: each.contiguous() for name, each in views.items()}
    assert probe.fingerprint(views).compare(probe.fingerprint(plain)).answer == "identical"
    eight = {"w": torch.randn(64, 64).to(torch.float8_e4m3fn)}
    assert probe.fingerprint(eight).compare(probe.fingerprint({"w": eight["w"].float()})).answer == "rounding"


def test_a_module_on_the_meta_device_has_no_weights(tmp_path: Path) -> None:
    with torch.device("meta"):
        found = probe.fingerprint(torch.nn.Linear(4, 4))
    assert not found.content.weights and "2 weights without elements here" in found.content.notes[0]


def test_the_engine_of_a_training_is_fresh_or_stale(tmp_path: Path) -> None:
    module = model()
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    trainer, engine, before = tmp_path / "trainer", tmp_path / "engine", {}
    for step in range(3):
        state = {name: each.detach().clone() for name, each in module.state_dict().items()}
        probe.fingerprint(module, step=step).save(trainer / f"{step}.fingerprint")
        # The second layer stays as it was at the last step.
        sent = {name: before[name] if step == 2 and "layers.1." in name else each for name, each in state.items()}
        probe.fingerprint(as_engine(sent), step=step).save(engine / f"{step}.fingerprint")
        before = state
        tokens = torch.randint(0, 200, (2, 8))
        module(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    fresh, also_fresh, late = landings(str(trainer), str(engine))
    assert fresh.verdict == also_fresh.verdict == "equal" and "rounded to bfloat16" in fresh.sentence
    assert late.verdict == "stale" and set(late.stale.values()) == {1}
    assert late.stale and all("layers.1." in name for name in late.stale)


@pytest.fixture
def ranks() -> Iterator[Any]:
    """Makes this process a rank of two, without any other."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def become(rank: int) -> Any:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=2, store=FakeStore())
        return dist.device_mesh.init_device_mesh("cpu", (2,))

    yield become
    if dist.is_initialized():
        dist.destroy_process_group()


def test_the_parts_of_ranks_add_up_to_the_whole(tmp_path: Path, ranks: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    torch.manual_seed(1)
    weights = {"rows": torch.randn(128, 64), "columns": torch.randn(32, 256), "same": torch.randn(7)}
    placed = {"rows": Shard(0), "columns": Shard(1), "same": Replicate()}
    for rank in range(2):
        mesh = ranks(rank)
        local = {
            name: each.chunk(2, placed[name].dim)[rank].contiguous() if placed[name].is_shard() else each
            for name, each in weights.items()
        }
        state = {
            name: DTensor.from_local(
                each, mesh, [placed[name]], run_check=False, shape=weights[name].shape, stride=weights[name].stride()
            )
            for name, each in local.items()
        }
        found = probe.fingerprint(state)
        assert found.content.rank == rank and set(found.content.parts) == {"rows", "columns"}
        found.save(tmp_path / "ranks" / f"rank{rank}.fingerprint")
    torch.save(weights, tmp_path / "whole.pt")
    report = probe.ckpt_compare(tmp_path / "ranks", tmp_path / "whole.pt")
    assert report.answer == "identical" and "2 ranks" in report.format
    torch.save({**weights, "columns": 2 * weights["columns"]}, tmp_path / "twice.pt")
    report = probe.ckpt_compare(tmp_path / "ranks", tmp_path / "twice.pt")
    (row,) = (each for each in report.parameters if not each.is_fine)
    assert row.name == "columns" and "0.5 times the golden" in row.how
    with pytest.raises(MsprobeException, match="4096 of 8192 elements"):
        probe.ckpt_compare(tmp_path / "ranks" / "rank1.fingerprint", tmp_path / "whole.pt")
