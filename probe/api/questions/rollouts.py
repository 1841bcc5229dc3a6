"""``probe.rollout_check``: log-probabilities of a rollout and of a training, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probe.rollout.report import RolloutReport


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

    Returns:
        The report: `kind`, `kinds`, `line`, `numbers`, `by_sequence`, `worst` and more, made when they are asked for.

    Raises:
        MsprobeException: the sources do not fit each other, and why.

    Example:
        >>> report = probe.rollout_check(old_log_probs, log_probs, mask)  # doctest: +SKIP
        >>> report.kind, report.numbers["k3_kl"]  # doctest: +SKIP
        ('rounding', 2.1e-05)
    """
    # numpy is not needed to import probe.
    from probe.rollout.check import check

    sources = {
        "rollout": rollout, "training": training, "mask": mask, "tokens": tokens, "sequences": sequences,
        "prompt_lengths": prompt_lengths, "step": step, "rollout_entropy": rollout_entropy, "current": current,
        "top_logprobs": top_logprobs,
    }  # fmt: skip
    return check(sources, dtype, vocabulary, layers)
