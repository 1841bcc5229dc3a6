"""One model, saved by torch and Transformers in every format and layout, is identical to itself."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forks
import numpy as np
import pytest
import sharded_by_fsdp
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import probe
from probe.common.errors import MsprobeException

transformers = pytest.importorskip("transformers")
State = dict[str, torch.Tensor]
LAYERS, HIDDEN, HEADS, GROUPS, FFN, WORDS = 4, 32, 4, 2, 48, 40


def random_model(model: nn.Module) -> nn.Module:
    """A model whose parameters are all random, norms and biases as well."""
    torch.manual_seed(1)
    for each in model.parameters():
        nn.init.normal_(each)
    return model


@pytest.fixture(scope="module")
def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return random_model(transformers.LlamaForCausalLM(config))


def megatron(state: State) -> State:
    """The parameters of Llama under the names and in the layout of Megatron core with TransformerEngine."""
    padding = torch.zeros(8, HIDDEN)
    found = {
        "embedding.word_embeddings.weight": torch.cat([state["model.embed_tokens.weight"], padding]),
        "decoder.final_layernorm.weight": state["model.norm.weight"],
        "output_layer.weight": torch.cat([state["lm_head.weight"], padding]),
    }
    for number in range(LAYERS):
        old, new = f"model.layers.{number}.", f"decoder.layers.{number}."
        parts = [state[f"{old}self_attn.{letter}_proj.weight"].view(GROUPS, -1, HIDDEN) for letter in "qkv"]
        found[f"{new}self_attention.linear_qkv.weight"] = torch.cat(parts, 1).reshape(-1, HIDDEN)
        found[f"{new}self_attention.linear_proj.weight"] = state[f"{old}self_attn.o_proj.weight"]
        both = [state[f"{old}mlp.{name}_proj.weight"] for name in ("gate", "up")]
        found[f"{new}mlp.linear_fc1.weight"] = torch.cat(both)
        found[f"{new}mlp.linear_fc2.weight"] = state[f"{old}mlp.down_proj.weight"]
        found[f"{new}self_attention.linear_qkv.layer_norm_weight"] = state[f"{old}input_layernorm.weight"]
        found[f"{new}mlp.linear_fc1.layer_norm_weight"] = state[f"{old}post_attention_layernorm.weight"]
    return found


def part_of(name: str, tensor: torch.Tensor, rank: int, tp: int) -> torch.Tensor:
    """The part of a tensor-parallel rank."""
    if "norm" in name:
        return tensor
    if "linear_fc1" in name:
        return torch.cat([half.chunk(tp)[rank] for half in tensor.chunk(2)])
    axis = 1 if "linear_proj" in name or "linear_fc2" in name else 0
    return tensor.chunk(tp, axis)[rank].clone()


def save_megatron(whole: State, folder: Path, tp: int, pp: int, vpp: int = 1) -> Path:
    """A checkpoint with this layout, of which each rank has a folder."""
    args = argparse.Namespace(
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, expert_model_parallel_size=1, swiglu=True,
        num_attention_heads=HEADS, num_query_groups=GROUPS, params_dtype=torch.float32,
    )  # fmt: skip
    each = LAYERS // (pp * vpp)
    for rank, stage in ((rank, stage) for rank in range(tp) for stage in range(pp)):
        value: dict[str, Any] = {"args": args, "iteration": 10, "checkpoint_version": 3.0}
        for chunk in range(vpp):
            held, begin = {}, (chunk * pp + stage) * each
            for name, tensor in whole.items():
                if ".layers." in name:
                    number = int(name.split(".")[2])
                    if begin <= number < begin + each:
                        local = name.replace(f".{number}.", f".{number - begin}.", 1)
                        held[local] = part_of(name, tensor, rank, tp)
                elif (stage, chunk) == ((0, 0) if name.startswith("embedding") else (pp - 1, vpp - 1)):
                    held[name] = part_of(name, tensor, rank, tp)
            value["model" if vpp == 1 else f"model{chunk}"] = held
        path = folder / "iter_0000010" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pp > 1 else ""))
        path.mkdir(parents=True)
        torch.save(value, path / "model_optim_rng.pt")
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    return folder


def saved(path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def pretrained(model: Any, path: Path, **options: Any) -> Path:
    model.save_pretrained(path, **options)
    return path


def numpy_file(path: Path, state: State, save: Callable[..., None]) -> Path:
    save(path, **{name: each.numpy() for name, each in state.items()})
    return path


@pytest.fixture(scope="module")
def every_format(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same weights in each format."""
    root = tmp_path_factory.mktemp("formats")
    state = {name: each.detach().clone() for name, each in llama.state_dict().items()}
    whole = megatron(state)
    training = {"model": state, "optimizer": torch.optim.Adam(llama.parameters()).state_dict(), "step": 3}
    with warnings.catch_warnings():
        # It says that this is one process.
        warnings.simplefilter("ignore", UserWarning)
        dcp.save({"model": state, "step": 3}, checkpoint_id=root / "dcp", no_dist=True)
    return {
        "transformers": pretrained(llama, root / "transformers"),
        "sharded": pretrained(llama, root / "sharded", max_shard_size="30KB"),
        "pt": saved(root / "a.pt", training),
        "before 1.6": saved(root / "b.bin", state, _use_new_zipfile_serialization=False),
        "npz": numpy_file(root / "c.npz", state, np.savez),
        "compressed npz": numpy_file(root / "d.npz", state, np.savez_compressed),
        "dcp": root / "dcp",
        "megatron": save_megatron(whole, root / "whole", 1, 1),
        "tp 2": save_megatron(whole, root / "tp", 2, 1),
        "tp 2 pp 2": save_megatron(whole, root / "tppp", 2, 2),
        "vpp 2": save_megatron(whole, root / "vpp", 1, 2, 2),
    }


def test_every_format_is_identical_to_every_other(every_format: dict[str, Path]) -> None:
    # Round in a circle: what is identical to the next one all the way is identical to each, and stands on both sides.
    names = list(every_format)
    for name, other_name in zip(names, [*names[1:], names[0]]):
        report = probe.ckpt_compare(every_format[name], every_format[other_name])
        assert report.answer == "identical", f"{name} and {other_name}: {report.why}"


def test_replicated_parameters_that_differ_between_ranks_are_findings(
    every_format: dict[str, Path], tmp_path: Path
) -> None:
    path = next(every_format["tp 2"].rglob("mp_rank_01/*.pt"))
    # torch's own loader, since this is a file that the test made.
    value = torch.load(path, weights_only=False)
    before = path.read_bytes()
    value["model"]["decoder.final_layernorm.weight"] += 1
    torch.save(value, path)
    report = probe.ckpt_compare(every_format["transformers"], every_format["tp 2"])
    path.write_bytes(before)
    assert report.found and [each.name for each in report.replicas] == ["decoder.final_layernorm.weight"]
    assert report.replicas[0].max_abs == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_of_ranks_are_joined_along_the_dimension_that_fits(axis: int, tmp_path: Path) -> None:
    whole = {"tok_embeddings.weight": torch.randn(12, 8), "norm.weight": torch.randn(8), "table": torch.randn(6, 4)}
    for rank in range(2):
        parts = {
            "tok_embeddings.weight": whole["tok_embeddings.weight"].chunk(2, axis)[rank].clone(),
            "table": whole["table"].chunk(2, 1 - axis)[rank].clone(),
            "norm.weight": whole["norm.weight"],
        }
        saved(tmp_path / f"consolidated.{rank:02d}.pth", parts)
    (tmp_path / "whole").mkdir()
    report = probe.ckpt_compare(tmp_path, saved(tmp_path / "whole" / "a.pt", whole))
    assert report.answer == "identical" and not report.replicas, report.why


def test_dtypes_of_torch_are_read_bit_by_bit(tmp_path: Path) -> None:
    tensors = {
        name: (torch.arange(12) - 5).to(getattr(torch, name)).reshape(3, 4)
        for name in (
            "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16",
            "int8", "uint8", "bool", "complex64",
        )
    }  # fmt: skip
    tensors.update(
        turned=torch.randn(3, 5).T, part=torch.arange(10)[2:7:2], single=torch.tensor(2.5), empty=torch.ones(0, 3)
    )
    path = saved(tmp_path / "a.pt", tensors)
    from probe.checkpoint.readers.opening import open_checkpoint

    found = open_checkpoint(str(path))
    for name, tensor in tensors.items():
        words = found.weights[name].read()
        assert words.shape == tuple(tensor.shape), name
        assert words.tobytes() == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), name
    assert not probe.ckpt_compare(path, path).found


def test_a_model_of_fsdp_is_the_one_that_was_sharded(tmp_path: Path) -> None:
    (tmp_path / "ranks").mkdir()
    server = forks.server(*forks.MODULES["torch"])
    for ended in server.run(Path(sharded_by_fsdp.__file__), *((str(tmp_path), str(rank)) for rank in range(2))):
        assert ended.status == 0, ended.err
    for sharded in ("dcp", "ranks"):
        report = probe.ckpt_compare(tmp_path / "whole0.pt", tmp_path / sharded)
        assert report.answer == "identical" and not report.replicas, report.why
    (tmp_path / "ranks" / "model_world_size_2_rank_0.pt").unlink()
    with pytest.raises(probe.common.errors.MsprobeException, match="rank 0 is missing"):
        probe.ckpt_compare(tmp_path / "whole0.pt", tmp_path / "ranks")


def test_the_state_of_optimizers_is_compared_by_option(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    paths = []
    for number in range(2):
        paths.append(
            saved(tmp_path / f"{number}.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        )
        optimizer.state[model.weight]["exp_avg"] *= 2
    assert not probe.ckpt_compare(*paths).found
    report = probe.ckpt_compare(*paths, optimizer=True)
    assert report.found and [each.name for each in report.optimizer if not each.is_fine] == [
        "optimizer.state.0.exp_avg"
    ]


def test_a_module_that_was_saved_whole_is_refused_with_what_to_save(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    torch.save(module, tmp_path / "whole.pt")
    torch.save({"model": module, "epoch": 1}, tmp_path / "nested.pt")
    torch.save({"ema": module.state_dict(), "model": module}, tmp_path / "both.pt")
    for name in ("whole.pt", "nested.pt"):
        with pytest.raises(MsprobeException, match=r"whole module \(torch.nn.*Sequential\).*model.state_dict\(\)"):
            probe.ckpt_compare(tmp_path / name, tmp_path / name)
    report = probe.ckpt_compare(tmp_path / "both.pt", tmp_path / "both.pt")
    assert report.answer == "identical" and any("whole module" in note for note in report.notes), report.notes
