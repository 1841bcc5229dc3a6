"""The sheets of ``result.xlsx``, row by row as msProbe 26.2 writes them.

Where it exchanges the columns of ``env`` and lets a missing weight or another seed pass, so do these. What it writes
twice by mistake is written twice.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from probe.configcheck.model import inputs, paired
from probe.configcheck.pack import Pack

Rows = list[list[Any]]
_PASS, _WARNING, _ERROR = "pass", "warning", "error"

# NPU name, GPU name, default. The PCIe entry has the name of the RoCE one there.
_VARIABLES: tuple[tuple[str, str, Any], ...] = (
    ("HCCL_DETERMINISTIC", "NCCL_DETERMINISTIC", False),
    ("HCCL_ALGO", "NCCL_ALGO", None),
    ("HCCL_INTRA_ROCE_ENABLE", "", 0),
    ("HCCL_INTRA_ROCE_ENABLE", "", 1),
    ("ASCEND_LAUNCH_BLOCKING", "CUDA_LAUNCH_BLOCKING", 0),
    ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", None),
)
_PACKAGES = ("transformers", "deepspeed", "megatron", "numpy", "datasets", "peft", "mindspore", "torch")
_ALIASES = {
    "learning_rate": ("lr", "learningrate"),
    "batch_size": ("batch", "bs", "batch_size_per_gpu"),
    "epochs": ("num_epochs", "max_epochs", "epoch"),
    "weight_decay": ("wd", "weightdecay"),
    "dropout_rate": ("dropout", "drop_rate"),
    "compute_dtype": ("bf16", "fp32"),
    "residual_dtype": ("fp32_residual_connection",),
    "softmax_compute_dtype": ("attention_softmax_in_fp32",),
}
_LEAST_SIMILARITY = 0.8
"""Likeness of two names from which on msProbe 26.2.0 takes them for one; observed."""
_STATISTICS = ("max", "min", "mean", "norm")


def sheets(bench: Pack, cmp: Pack) -> dict[str, Rows]:
    """The header and the rows of each sheet, the summary first; only checks that both packs have."""
    found: dict[str, Rows] = {}
    if bench.env is not None and cmp.env is not None:
        found["env"] = [
            ["bench_env_name", "cmp_env_name", "bench_value", "cmp_value", "level"],
            *_env(bench.env, cmp.env),
        ]
    if bench.pip is not None and cmp.pip is not None:
        found["pip"] = [["package", "bench version", "cmp version", "level"], *_pip(bench.pip, cmp.pip)]
    if bench.hyperparameters and cmp.hyperparameters:
        head = ["file_name", "bench_para", "cmp_para", "bench_value", "cmp_value", "matched_with", "level"]
        found["hyperparameters"] = [head, *_hyperparameters(bench.hyperparameters, cmp.hyperparameters)]
    for name, kind, tag in (("dataset", "dataset", "tag"), ("weights", "weights", "weight_name")):
        one, other = (pack.dataset if kind == "dataset" else pack.weights for pack in (bench, cmp))
        if one and other:
            head = ["step", "rank", tag, "equal", *(f"{each}_relative_diff" for each in _STATISTICS)]
            found[name] = [head, *_tensors(one, other, kind == "dataset")]
    if bench.random and cmp.random:
        head = ["op", "rank", "bench_stack", "cmp_stack", "bench_count", "cmp_count", "check_result"]
        found["random"] = [head, *_random(bench.random, cmp.random)]
    summary = [["filename", "pass_check"], *([name, _worst(name, rows)] for name, rows in found.items())]
    return {"summary": summary, **found}


def _worst(name: str, rows: Rows) -> str:
    if name in ("dataset", "weights", "random"):
        column = rows[0].index("check_result" if name == "random" else "equal")
        return _ERROR if any(row[column] is False for row in rows[1:]) else _PASS
    levels = [row[-1] for row in rows[1:]]
    return next((level for level in (_ERROR, _WARNING) if level in levels), _PASS)


def _platform(variables: Mapping[str, str]) -> str:
    """The platform by the variable of visible devices; empty without one."""
    npu, gpu = _VARIABLES[-1][:2]
    return "npu" if npu in variables else "gpu" if gpu in variables else ""


def _env(bench: Mapping[str, str], cmp: Mapping[str, str]) -> Iterator[list[Any]]:
    # Values and names of the two are exchanged there.
    one, other = cmp, bench
    platforms = _platform(one), _platform(other)
    if "" in platforms:
        return
    for npu, gpu, default in _VARIABLES:
        names = tuple(npu if platform == "npu" else gpu for platform in platforms)
        if names == ("", ""):
            continue
        if "" in names:
            # Counted once for the side that has it, under the name of that side.
            side = "bench" if names[0] else "cmp"
            missing = f"only {side} has this env"
            cells = [
                names[0] or missing,
                names[1] or missing,
                default if names[0] else None,
                default if names[1] else None,
            ]
            yield [*cells, _WARNING]
            continue
        values = one.get(names[0], default), other.get(names[1], default)
        if values[0] != values[1]:
            yield [*names, *values, _ERROR]


def _pip(bench: Mapping[str, str], cmp: Mapping[str, str]) -> Iterator[list[Any]]:
    for name in _PACKAGES:
        if bench.get(name) != cmp.get(name):
            yield [name, bench.get(name, "None"), cmp.get(name, "None"), _ERROR]


def _last(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _pure(name: str) -> str:
    return re.sub(r"[-_]", "", _last(name))


def _hyperparameters(bench: Mapping[str, Mapping[str, Any]], cmp: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    rows = []
    for file in bench:
        if file in cmp:
            rows += [[file, *row] for row in _file_rows(bench[file], cmp[file])]
    # Sorted by the name on the bench side, as text.
    return sorted(rows, key=lambda row: str(row[1]))


def _file_rows(bench: Mapping[str, Any], cmp: Mapping[str, Any]) -> Iterator[list[Any]]:
    left = dict(cmp)
    for name, value in bench.items():
        match, how = _match(name, left)
        if match is None:
            yield [name, "Only in benchmark", _text(value), None, None, _WARNING]
            continue
        other = left.pop(match)
        if _text(value) != _text(other):
            yield [name, match, _text(value), _text(other), how, _ERROR]
    for name, value in left.items():
        yield ["Only in comparison", name, None, value, None, _WARNING]


def _text(value: Any) -> str:
    return str(value)


def _match(name: str, others: Mapping[str, Any]) -> tuple[str | None, str]:
    pure = _pure(name)
    for each in others:
        if _pure(each) == pure:
            return each, "pure name"
    for group, aliases in _ALIASES.items():
        names = {_pure(each) for each in (group, *aliases)}
        for each in others:
            if pure in names and _pure(each) in names:
                return each, "mapping"
    last = _last(name)
    ratios = [(difflib.SequenceMatcher(None, last, _last(each)).ratio(), each) for each in others]
    ratio, best = max(ratios, default=(0.0, ""))
    return (best, f"similarity:{ratio}") if ratio >= _LEAST_SIMILARITY else (None, "")


def _tensors(bench: Mapping[Any, Any], cmp: Mapping[Any, Any], are_inputs: bool) -> Iterator[list[Any]]:
    for place in sorted({*bench, *cmp}):
        one, other = bench.get(place, {}), cmp.get(place, {})
        if are_inputs:
            one, other = ({tag: value for tag, value in inputs(each).items() if value != ""} for each in (one, other))
        for name in dict.fromkeys((*one, *other)):
            if name not in one or name not in other:
                yield [*place, name, "only bench have" if name in one else "only cmp have", *([None] * 4)]
                continue
            pairs = [(one[name].get(each), other[name].get(each)) for each in _STATISTICS]
            yield [*place, name, all(mine == theirs for mine, theirs in pairs), *(_relative(*pair) for pair in pairs)]


def _relative(bench: Any, cmp: Any) -> Any:
    if not isinstance(bench, (int, float)) or not isinstance(cmp, (int, float)) or bench == 0:
        return None
    # The sign is that of the bench; workbooks are written with 16 digits there.
    return float(f"{abs(cmp - bench) / bench:.16g}")


def _random(bench: Mapping[int, Any], cmp: Mapping[int, Any]) -> list[list[Any]]:
    rows = []
    for rank in sorted({*bench, *cmp}):
        one, other = bench.get(rank, {}), cmp.get(rank, {})
        for op in dict.fromkeys((*one, *other)):
            for mine, theirs in paired(one.get(op, ()), other.get(op, ())):
                stacks = [
                    "no match stack" if each is None else "\n".join(each.get("stack") or ()) for each in (mine, theirs)
                ]
                counts = [0 if each is None else each.get("count", 0) for each in (mine, theirs)]
                rows.append([op, rank, *stacks, *counts, None not in (mine, theirs) and counts[0] == counts[1]])
    return rows
