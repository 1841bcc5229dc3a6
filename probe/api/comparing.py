"""The comparisons in Python: ``probe.verdict``, ``graph_diff``, ``ckpt_compare`` and ``rollout_check``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

from msgspec.structs import replace

from probe.api.rules import PROBE, graph_rules, is_asked_for, rules_for

if TYPE_CHECKING:
    from probe.checkpoint.report import Report
    from probe.compare.in_python import Verdict
    from probe.compare.options import Options
    from probe.graph.in_python import GraphView
    from probe.rollout.report import RolloutReport

Path = Union[str, "os.PathLike[str]"]


def verdict(
    target: Path,
    golden: Path,
    output: Path | None = None,
    options: Options | None = None,
    *,
    rules: str | None = None,
    rank_size: Sequence[int] | None = None,
    tp: Sequence[int] | None = None,
    pp: Sequence[int] | None = None,
    vpp: Sequence[int] | None = None,
    order: Sequence[str] | None = None,
    rerun: bool = False,
    max_memory: float | None = None,
) -> Verdict:
    """Compare two runs as ``msprobe compare`` does.

    Args:
        target: The run under test: dump.json, debug.json, the folder of a process or a step, or a folder of steps.
        golden: The run it is compared with, in the same form.
        output: A folder for the tables; by default none is written.
        options: How to match and measure; `rules` wins over those of the options.
        rules: Whose rules give rows their results: ``probe`` (default), which adds our columns to the tables if it is
            named, or ``msprobe``. The variable ``MSPROBE_RULES`` is the default.
        rank_size: How many ranks target and golden run have, if one or both are split; their ranks are merged then.
        tp, pp, vpp, order: How each is split, as the flags of these names say; `tp` and `pp` go with `rank_size`.
        rerun: Run the first five calls that diverge again on the golden run's inputs, with dumps of ``tensor``.
        max_memory: GB that such a call may take; ``None`` for a quarter of the machine's memory.

    Raises:
        MsprobeException: the two cannot be compared, and why.

    Example:
        >>> print(probe.verdict("run_a", "run_b"))  # doctest: +SKIP
        >>> print(probe.verdict("split", "whole", rank_size=(4, 1), tp=(2, 1), pp=(2, 1)))  # doctest: +SKIP
    """
    # Each question needs much that the others do not.
    from probe.compare import in_python as comparisons
    from probe.compare.options import Options
    from probe.shards.split import splits_of

    asked = replace(options or Options(), rules=rules_for("rows", rules), distances=is_asked_for(PROBE, rules))
    splits = splits_of(2, {"rank_size": rank_size, "tp": tp, "pp": pp, "vpp": vpp, "order": order})
    run_again = None
    if rerun:
        from probe.api.replaying import run_again_for

        run_again = run_again_for(target, golden, splits, max_memory)
    return comparisons.verdict(target, golden, output, asked, splits, run_again)


def graph_diff(
    target: Path | Sequence[Path],
    golden: Path | Sequence[Path] | None = None,
    options: Options | None = None,
    *,
    pairs: Path | None = None,
    rules: str | None = None,
    overflow: bool = False,
    micro_step: str | int = "auto",
    strip_paths: Sequence[str] = (),
) -> GraphView:
    """Show dumps as graphs as ``msprobe graph_visualize`` does.

    Args:
        target: The run under test: dump.json, the folder of a process or a step, or a folder of steps; several next to
            one golden run.
        golden: The run it is compared with, in the same form; several next to one target. Without it the graph of one.
        options: How to match and measure; `rules` wins over those of the options.
        pairs: A file of pairs of nodes that belong together.
        rules: Whose statuses nodes get: ``probe`` (default) or ``msprobe``. The variable ``MSPROBE_RULES`` is the
            default.
        overflow: Look for numbers that are too large, even where none is infinite.
        micro_step: ``auto``, ``off`` or the number of micro steps.
        strip_paths: Beginnings of paths that the page does not show.

    Raises:
        MsprobeException: the two cannot be compared, and why.

    Example:
        >>> probe.graph_diff("run_a", "run_b").to_html("graph.html")  # doctest: +SKIP
        'graph.html'
    """
    from probe.compare.options import Options
    from probe.graph import in_python as graphs

    of_nodes, of_rows = graph_rules(rules)
    asked = replace(options or Options(), rules=of_rows)
    return graphs.graph_diff(
        target, golden, asked, pairs=pairs, rules=of_nodes, overflow=overflow, micro_step=micro_step,
        strip_paths=strip_paths,
    )  # fmt: skip


def ckpt_compare(
    one: Path,
    other: Path,
    *,
    names: str | None = None,
    heads: tuple[int, int] | None = None,
    tp: int = 0,
    pp: int = 1,
    optimizer: bool = False,
    weights: str = "master",
) -> Report:
    """Compare the weights of two checkpoints, whatever their formats, layouts and names.

    Args:
        one: The run under test, a file or a folder.
        other: The baseline.
        names: A YAML file of names of `one` and their counterparts in `other`.
        heads: Attention heads, and groups of them that share keys and values.
        tp, pp: Tensor-parallel ranks and pipeline stages, for files of ranks that do not say so.
        optimizer: Compare the state of the optimizers as well.
        weights: Of ZeRO: ``master`` (float32) or ``model``.

    Raises:
        MsprobeException: one cannot be read, and what to do.

    Example:
        >>> print(probe.ckpt_compare("a.safetensors", "b").why)  # doctest: +SKIP
    """
    from probe.checkpoint.comparison import compare_checkpoints
    from probe.checkpoint.report import CheckpointOptions

    return compare_checkpoints(one, other, CheckpointOptions(names, tp, pp, heads, optimizer, weights))


def rollout_check(
    rollout: Any,
    training: Any,
    mask: Any = None,
    tokens: Any = None,
    sequences: Any = None,
    *,
    prompt_lengths: Any = None,
    step: Any = None,
    rollout_entropy: Any = None,
    current: Any = None,
    top_logprobs: Any = None,
    dtype: str = "",
    vocabulary: int = 0,
    layers: int = 0,
    trainer_fingerprint: str | None = None,
    engine_fingerprint: str | None = None,
) -> RolloutReport:
    """Compare two sets of log-probabilities of the same tokens as ``msprobe rollout_check`` does.

    Each source is a tensor or array of shape [sequences, tokens] or [tokens], a list of those of one dimension, or a
    text such as ``file.npz:key``. Tensors of PyTorch, MindSpore and MSAdapter are fetched from their device.

    Args:
        rollout: Log-probabilities of the inference engine, in nats.
        training: Those of the trainer.
        mask: 1 for the tokens of responses that count.
        tokens: Their ids.
        sequences: Ids of sequences; of the sequence of each token where `rollout` has one dimension.
        prompt_lengths: Tokens of the prompt of each sequence.
        step: The step of each sequence.
        rollout_entropy: The entropy of the distribution of each token, in nats.
        current: Log-probabilities after the update; `training` are those at sampling time then.
        top_logprobs: Log-probabilities of the likeliest tokens at each position, [sequences, tokens, candidates], by
            which garbled responses are found.
        dtype: In which both sides compute; by default any up to bfloat16 may be.
        vocabulary: The size of the vocabulary; by default from the ids, or 131072.
        layers: The number of layers of the model, 64 by default.
        trainer_fingerprint: A file of `probe.fingerprint` of the trainer's weights, or a folder of such, by step.
        engine_fingerprint: That of the engine, which proves whether its weights are stale.

    Returns:
        The report: `kind`, `kinds`, `line`, `numbers`, `by_sequence`, `worst` and more, made when they are asked for.

    Raises:
        MsprobeException: the sources do not fit each other, and why.

    Example:
        >>> report = probe.rollout_check(old_log_probs, log_probs, mask)  # doctest: +SKIP
        >>> report.kind, report.numbers["k3_kl"]  # doctest: +SKIP
        ('rounding', 2.1e-05)
    """
    from probe.api.weights_in_flight import findings_of
    from probe.rollout.check import check

    proven, remarks = findings_of(trainer_fingerprint, engine_fingerprint)
    sources = {
        "rollout": rollout, "training": training, "mask": mask, "tokens": tokens, "sequences": sequences,
        "prompt_lengths": prompt_lengths, "step": step, "rollout_entropy": rollout_entropy, "current": current,
        "top_logprobs": top_logprobs,
    }  # fmt: skip
    return check(sources, dtype, vocabulary, layers, proven, remarks)
