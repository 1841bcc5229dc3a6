"""Tables of the checks: which differences matter, and why. A Python literal, because YAML of this size loads slowly."""

from __future__ import annotations

import ast
import re
from typing import Any

ORDER = "sums are added in another order, so that results differ by rounding"
VISIBLE_DEVICES = ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NO_EFFECT = "not known to change numbers"

KERNELS = "another release has other kernels and defaults"
PACKAGES = {
    **dict.fromkeys(
        ("torch", "torch-npu", "mindspore", "mindnlp", "deepspeed", "megatron", "megatron-core", "megatron-lm",
         "mindspeed", "mindspeed-llm", "flash-attn", "transformer-engine", "apex",
         "triton", "xformers",
         "bitsandbytes", "vllm"),
        ("error", KERNELS)),
    **dict.fromkeys(
        ("transformers", "accelerate", "peft", "trl", "lightning", "pytorch-lightning", "verl", "diffusers", "timm"),
        ("error", "another release may build the model or the training step differently")),
    **dict.fromkeys(("datasets", "tokenizers", "sentencepiece", "tiktoken", "torchvision", "torchaudio", "webdataset"),
                    ("error", "another release may prepare data differently")),
    "numpy": ("error", "numpy's generators and data preparation may differ"),
    **dict.fromkeys(("scipy", "einops", "safetensors", "ml-dtypes", "pandas", "pyarrow", "pillow", "opencv-python"),
                    ("warning", "it may take part in preparing data or loading weights")),
}  # fmt: skip
"""Level and reason by the name of a package, as PyPI normalises it. Which package matters is a judgement."""
OTHER_PACKAGE = ("info", NO_EFFECT)
SAME_BASE = "the same release, built for another device"

DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "bf16mixed", "ampbf16"), "bfloat16"),
    **dict.fromkeys(("fp16", "float16", "half", "16mixed", "ampfp16", "fp16mixed"), "float16"),
    **dict.fromkeys(("fp32", "float32", "float", "32true", "fp32true", "single", "float32true"), "float32"),
}
"""Names of number formats. ``bf16-true`` is none of them: weights are in half precision as well."""
OTHER_HYPERPARAMETER = "the two runs were asked for different things"

SWITCH_WHY = {
    "seeds": "another seed gives other weights, dropout masks and data order",
    "switches": "other kernels run, or they round differently",
    "versions": KERNELS,
    "devices": "kernels of another device add in another order",
    "layout": "another number of processes splits batches and sums differently",
    "random_states": "one run has drawn more random numbers than the other",
    "optimizers": "weights differ after the first update",
    "data": "the runs are trained on different data",
}
DATASET_WHY = "the model gets other data: outputs differ, starting at this step"
WEIGHTS_WHY = "the model has other weights: all outputs differ"
MISSING_WEIGHT = "a weight is missing on one side: the model is another one, or a checkpoint was not loaded completely"
RANDOM_WHY = "one run draws other random numbers, and all later draws are shifted"


# --- values


_TRUE, _FALSE = ("true", "yes", "on"), ("false", "no", "off")
_NOTHING = ("none", "null", "~", "")
_LONGEST = 2000
"""Characters of a text that is read as a list or a mapping; a guess."""


def plain_value(value: Any) -> Any:
    """A value as a number, a truth value, ``None``, a list of these, or a text in which case and dtype are normal.

    Example:
        >>> plain_value("1e-5"), plain_value("True"), plain_value("torch.bfloat16"), plain_value("[1, 2.0]")
        (1e-05, True, 'bfloat16', [1.0, 2.0])
    """
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return float(value) if abs(value) < 1 << 53 else value
    if isinstance(value, (list, tuple)):
        return [plain_value(each) for each in value]
    return _value_of_text(str(value).strip())


def _value_of_text(text: str) -> Any:
    lower = text.lower()
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    if lower in _NOTHING:
        return None
    try:
        number = float(text) if len(text) < 100 else None
    except ValueError:
        number = None
    if number is not None:
        return number if abs(number) < 1 << 53 else text
    if text[0] in "[(" and len(text) < _LONGEST:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text
        return plain_value(found)
    dtype = re.sub(r"[-_]", "", lower.removeprefix("torch.").removeprefix("mindspore."))
    return DTYPES.get(dtype, text)


def are_equal(one: Any, other: Any) -> bool:
    """True if two values are the same, whatever they were written as; a flag is 1 as well."""
    mine, theirs = plain_value(one), plain_value(other)
    if (
        isinstance(mine, bool) != isinstance(theirs, bool)
        and isinstance(mine, (bool, float))
        and isinstance(theirs, (bool, float))
    ):
        return float(mine) == float(theirs)
    return bool(mine == theirs)
