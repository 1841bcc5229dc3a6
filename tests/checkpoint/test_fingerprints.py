"""Fingerprints compared in place of checkpoints, their files, and weights in flight."""

from __future__ import annotations

import io
import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_checkpoints import Weights, bfloat16_bits, llama, write_safetensors

import probe
from probe.api import cli
from probe.checkpoint.fingerprints.making import fingerprint_checkpoint
from probe.checkpoint.report import Report
from probe.common.errors import MsprobeException

QUERY = "model.layers.0.self_attn.q_proj.weight"
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def weights() -> Weights:
    return llama(hidden=64)


def both_ways(folder: Path, one: Weights, other: Weights) -> tuple[Report, list[Report]]:
    """The answer of the checkpoints, and those with a fingerprint on the first side, the second and both."""
    paths = [write_safetensors(folder / f"{name}.safetensors", each) for name, each in (("a", one), ("b", other))]
    told = [fingerprint_checkpoint(path) for path in paths]
    sides = [(told[0], paths[1]), (paths[0], told[1]), (told[0], told[1])]
    return probe.ckpt_compare(*paths), [probe.ckpt_compare(*each) for each in sides]


def verdicts(report: Report) -> set[tuple[str, str, str]]:
    return {(each.name, each.other_name, each.verdict) for each in report.parameters}


def how(report: Report, name: str = UP) -> str:
    return next(each.how for each in report.parameters if each.name == name)


def rounded(weights: Weights) -> Weights:
    return {name: bfloat16_bits(each) for name, each in weights.items()}


def changed(weights: Weights, value: Any) -> Weights:
    return {**weights, UP: value}


def exchanged(weights: Weights) -> Weights:
    other = UP.replace("layers.1", "layers.2")
    return {**weights, UP: weights[other], other: weights[UP]}


def fused(weights: Weights) -> Weights:
    found = {}
    for name, array in weights.items():
        path, _, last = name.rpartition("self_attn.")
        if last == "q_proj.weight":
            parts = [weights[f"{path}self_attn.{which}_proj.weight"] for which in "qkv"]
            found[f"{path}self_attn.qkv_proj.weight"] = np.concatenate(parts)
        elif last not in ("k_proj.weight", "v_proj.weight"):
            found[name] = array
    return found


CASES = {
    "the same": lambda w: w,
    "bfloat16": rounded,
    "float16": lambda w: {name: each.astype(np.float16) for name, each in w.items()},
    "bfloat16 in float32": lambda w: {
        name: (each.astype(np.uint32) << 16).view(np.float32) for name, each in rounded(w).items()
    },
    "trained": lambda w: {name: each + np.float32(1e-3) * np.sign(each[..., ::-1]) for name, each in w.items()},
    "a factor": lambda w: changed(w, w[UP] * np.float32(1.5)),
    "rolled": lambda w: changed(w, np.roll(w[UP], 1, 0)),
    "reversed": lambda w: changed(w, w[UP][::-1].copy()),
    "transposed": lambda w: {**w, QUERY: w[QUERY].T.copy()},
    "zero": lambda w: changed(w, 0 * w[UP]),
    "NaN": lambda w: changed(w, np.where(w[UP] == w[UP][3, 3], np.float32(np.nan), w[UP])),
    "exchanged": exchanged,
    "lost": lambda w: {name: each for name, each in w.items() if name != UP},
    "fused": fused,
    "rows more": lambda w: {**w, "lm_head.weight": np.pad(w["lm_head.weight"], ((0, 8), (0, 0)))},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdicts_of_fingerprints_are_those_of_the_checkpoints(tmp_path: Path, weights: Weights, case: str) -> None:
    wanted, told = both_ways(tmp_path, CASES[case](weights), weights)
    for report in told:
        assert report.answer == wanted.answer
        assert verdicts(report) == verdicts(wanted)


def test_what_was_done_is_said(tmp_path: Path, weights: Weights) -> None:
    def said(value: Any) -> list[str]:
        _, told = both_ways(tmp_path, changed(weights, value), weights)
        return [how(report) for report in told]

    assert said(weights[UP] * np.float32(1.5)) == ["1.5 times the golden"] * 3
    assert said(np.roll(weights[UP], 3, 0))[:2] == ["rows are rolled by 3"] * 2
    assert said(0 * weights[UP]) == ["all values are zero"] * 3
    _, told = both_ways(tmp_path, exchanged(weights), weights)
    assert all("layers 1 and 2" in " ".join(each.layers) or how(each).startswith("layer 2") for each in told)


def test_distances_are_measured(tmp_path: Path, weights: Weights) -> None:
    noise = np.random.default_rng(5).standard_normal(weights[UP].shape).astype(np.float32)
    wanted, told = both_ways(tmp_path, changed(weights, weights[UP] + np.float32(0.05) * noise), weights)
    exact = next(each for each in wanted.parameters if each.name == UP).numbers
    for report in told:
        row = next(each for each in report.parameters if each.name == UP)
        assert row.numbers["relative_l2"] == pytest.approx(exact["relative_l2"], rel=0.35)
        assert row.numbers["cos"] == pytest.approx(exact["cos"], abs=1e-3)
        # The largest difference is not known, and no number stands for it.
        assert "max_abs" not in row.numbers


def test_one_part_of_a_fused_parameter_that_differs_is_named(tmp_path: Path, weights: Weights) -> None:
    value = "model.layers.1.self_attn.v_proj.weight"
    other = {**weights, value: weights[value] + np.float32(1)}
    wanted, told = both_ways(tmp_path, fused(weights), other)
    for report in told:
        assert verdicts(report) == verdicts(wanted)


def test_two_fingerprints_in_another_layout_cannot_be_told(tmp_path: Path, weights: Weights) -> None:
    # The rows of q in another order, as other rotary forms have them: equal numbers, and no order to see.
    name = "model.layers.1.self_attn.q_proj.weight"
    turned = {**weights, name: weights[name].reshape(4, 2, 8, 64).swapaxes(1, 2).reshape(64, 64)}
    renamed = {each.replace("self_attn.q_proj", "attention.wq"): array for each, array in turned.items()}
    _, (_, _, report) = both_ways(tmp_path, renamed, weights)
    row = next(each for each in report.parameters if each.other_name == name)
    assert row.verdict in ("different", "cannot be told")
    assert row.verdict == "different" or (report.answer == "cannot be told" and report.found)


# --- the file


def test_the_command_writes_a_small_private_file(tmp_path: Path, weights: Weights, capsys: Any) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", weights)
    assert cli.main(["ckpt_compare", "--fingerprint", path]) == 0
    to = tmp_path / "a.safetensors.fingerprint"
    assert capsys.readouterr().out.split() == [str(to)]
    assert stat.S_IMODE(to.stat().st_mode) == 0o640
    assert to.stat().st_size < 1048 * len(weights) + 4096
    with np.load(to, allow_pickle=False) as archive:
        assert archive["sketch"].shape == (len(weights), 64)
    assert cli.main(["ckpt_compare", str(to), path]) == 0
    assert cli.main(["ckpt_compare", path]) == 2
    files = ["-o", str(tmp_path / "answer"), "--format", "json", "xlsx", "html", "msprobe"]
    other = write_safetensors(tmp_path / "other.safetensors", exchanged(weights))
    assert cli.main(["ckpt_compare", str(to), other, *files]) == 1
    assert len(os.listdir(tmp_path / "answer")) == 4
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    assert cli.main(["ckpt_compare", "--fingerprint", path, "-o", str(link), "--overwrite"]) == 2
    assert not (tmp_path / "elsewhere").exists()


def test_secrets_of_a_checkpoint_are_not_sent(tmp_path: Path, weights: Weights) -> None:
    metadata = {"__metadata__": {"wandb_api_key": "abcdef0123456789", "data": "/disk/of/somebody/corpus", "lr": "0.1"}}
    path = write_safetensors(tmp_path / "a.safetensors", weights, metadata)
    told = fingerprint_checkpoint(path)
    data = Path(told).read_bytes()
    assert b"abcdef0123456789" not in data and b"somebody" not in data and b"metadata.lr" in data
    # What is not sent is no difference.
    assert not probe.ckpt_compare(told, path).settings


def edited(path: Path, change: Any, member: str = "fingerprint.json") -> Path:
    to = path.with_name("edited.fingerprint")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(to, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name == member else data)
    return to


def with_index(change: Any) -> Any:
    def edit(data: bytes) -> bytes:
        index = json.loads(data)
        change(index)
        return json.dumps(index).encode()

    return edit


def _npy(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def _first(**changes: Any) -> Any:
    return with_index(lambda index: index["tensors"][0].update(changes)), "fingerprint.json"


HOSTILE = {
    "another version": (with_index(lambda index: index.update(version=9)), "fingerprint.json"),
    "no json": (lambda data: b"{" * 100_000, "fingerprint.json"),
    "a shape beyond all": _first(shape=[1 << 40, 1 << 40]),
    "a negative shape": _first(shape=[-1]),
    "no such dtype": _first(dtype="float7"),
    "a name twice": (with_index(lambda index: index["tensors"].append(index["tensors"][0])), "fingerprint.json"),
    "a part of itself": _first(of=0),
    "an array beyond the file": (lambda data: _npy("(1099511627776, 64)"), "sketch.npy"),
    "a header that does not end": (lambda data: _npy("(3, 64"), "sketch.npy"),
    "a header of no numbers": (lambda data: _npy("(3 64)"), "sketch.npy"),
    "an array cut off": (lambda data: data[:-8], "sketch.npy"),
    "a pickle": (lambda data: data.replace(b"<f4", b"|O "), "sketch.npy"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_damaged_file_is_refused_in_a_line(tmp_path: Path, weights: Weights, case: str) -> None:
    path = Path(fingerprint_checkpoint(write_safetensors(tmp_path / "a.safetensors", weights)))
    change, member = HOSTILE[case]
    bad = edited(path, change, member)
    with pytest.raises(MsprobeException) as error:
        probe.ckpt_compare(bad, path)
    assert str(bad) in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_is_cut_off_is_refused_wherever(tmp_path: Path, weights: Weights) -> None:
    data = Path(fingerprint_checkpoint(write_safetensors(tmp_path / "a.safetensors", weights))).read_bytes()
    bad = tmp_path / "cut.fingerprint"
    for size in np.linspace(100, len(data) - 1, 12).astype(int):
        bad.write_bytes(data[:size])
        with pytest.raises(MsprobeException):
            probe.ckpt_compare(bad, bad)


def test_a_compressed_bomb_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("fingerprint.json", b" " * (1 << 24))
    bad = tmp_path / "bomb.fingerprint"
    bad.write_bytes(stream.getvalue())
    with pytest.raises(MsprobeException, match="compressed"):
        probe.ckpt_compare(bad, bad)


# --- in flight


def steps_of(folder: Path, states: dict[int, Weights]) -> str:
    for step, state in states.items():
        probe.fingerprint(state, step=step).save(folder / f"step{step}.fingerprint")
    return str(folder)


def trained(weights: Weights, step: int) -> Weights:
    return {name: each + np.float32(step * 1e-3) * np.sign(each) for name, each in weights.items()}


def logprobs(folder: Path) -> tuple[str, str]:
    random = np.random.default_rng(0)
    values = -np.abs(random.standard_normal((8, 40)))
    np.savez(folder / "step.npz", old=values, new=values)
    return f"{folder}/step.npz:old", f"{folder}/step.npz:new"


def test_a_stale_engine_is_named_with_the_step_of_its_weights(tmp_path: Path, weights: Weights, capsys: Any) -> None:
    states = {step: trained(weights, step) for step in range(3)}
    trainer = steps_of(tmp_path / "trainer", states)
    engine = steps_of(tmp_path / "engine", {1: fused(states[1]), 2: fused(states[1])})
    flags = ["--trainer-fingerprint", trainer, "--engine-fingerprint", engine]
    assert cli.main(["rollout_check", *logprobs(tmp_path), *flags, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["kind"] == "stale"
    assert "step 2: all of 30 parameters are the trainer's of step 1" in found["findings"][0]["sentence"]
    assert any("step 1: the engine samples with the trained weights" in each for each in found["remarks"])


def test_stale_lost_and_changed_parameters_are_told_apart(tmp_path: Path, weights: Weights) -> None:
    from probe.checkpoint.fingerprints.flight import landings

    states = {step: trained(weights, step) for step in range(2)}
    trainer = steps_of(tmp_path / "trainer", states)
    one_stale = {**states[1], UP: states[0][UP]}
    (found,) = landings(trainer, steps_of(tmp_path / "a", {1: one_stale}))
    assert (found.verdict, dict(found.stale)) == ("stale", {UP: 0})
    (found,) = landings(trainer, steps_of(tmp_path / "b", {1: {**states[1], UP: states[1][UP][::-1]}}))
    assert found.verdict == "differ" and UP in found.sentence and "another order" in found.sentence
    (found,) = landings(trainer, steps_of(tmp_path / "c", {1: {k: v for k, v in states[1].items() if k != UP}}))
    assert found.verdict == "differ" and "missing" in found.sentence
    (found,) = landings(trainer, steps_of(tmp_path / "d", {1: {k: v.astype(np.float16) for k, v in states[1].items()}}))
    assert found.verdict == "equal" and "rounded to float16" in found.sentence
    with pytest.raises(MsprobeException, match="its steps are 7"):
        landings(trainer, steps_of(tmp_path / "e", {7: states[1]}))


def test_one_of_two_fingerprints_is_refused(tmp_path: Path, weights: Weights) -> None:
    trainer = steps_of(tmp_path / "trainer", {0: weights})
    assert cli.main(["rollout_check", *logprobs(tmp_path), "--trainer-fingerprint", trainer]) == 2


def test_plain_parts_of_ranks_are_put_together(tmp_path: Path, weights: Weights) -> None:
    # As tensor parallelism splits: up by rows, and an output by columns.
    down = np.random.default_rng(2).standard_normal((64, 256)).astype(np.float32)
    whole = {UP: np.pad(weights[UP], ((0, 4), (0, 0))), "down": down, "same": weights["model.norm.weight"]}
    for rank in range(2):
        rows, columns = slice(16 * rank, 16 * rank + 16), slice(128 * rank, 128 * rank + 128)
        local = {**whole, UP: whole[UP][rows], "down": down[:, columns]}
        parts = {UP: ((16 * rank, 0), (32, 64)), "down": ((0, 128 * rank), (64, 256))}
        probe.fingerprint(local, rank=rank, parts=parts).save(tmp_path / "ranks" / f"{rank}.fingerprint")
    one = probe.fingerprint(whole).save(tmp_path / "whole.fingerprint")
    assert probe.ckpt_compare(tmp_path / "ranks", one).answer == "identical"
    probe.fingerprint({"down": down[:4]}, parts={"down": ((0, 0), (8, 256))}).save(tmp_path / "ranks/2.fingerprint")
    with pytest.raises(MsprobeException, match=r"shape \[64, 256\] on a rank.*shape \[8, 256\] on another"):
        probe.ckpt_compare(tmp_path / "ranks", one)
    with pytest.raises(MsprobeException, match="first element"):
        probe.fingerprint(local, parts={UP: ((30, 0), (32, 64))})
    with pytest.raises(MsprobeException, match="rows of 64 elements"):
        probe.fingerprint({"w": down[:, :100]}, parts={"w": ((0, 0), (64, 256))})
    with pytest.raises(MsprobeException, match="parts has v, which no weight is called"):
        probe.fingerprint({"w": down}, parts={"v": ((0, 0), (128, 256))})


def test_a_file_is_replaced_and_a_folder_made(tmp_path: Path, weights: Weights) -> None:
    path = tmp_path / "new" / "a.fingerprint"
    for _ in range(2):
        assert probe.fingerprint(weights.items()).save(path) == str(path)
    assert os.listdir(path.parent) == ["a.fingerprint"]
    with pytest.raises(MsprobeException, match="int is no model"):
        probe.fingerprint(3)
    with pytest.raises(MsprobeException, match="allowed: tensors"):
        probe.fingerprint([("a", "text")])
