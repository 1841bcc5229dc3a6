"""Pairs of runs that differ as real runs do, and what is true of each.

`right` is what the text of the first divergence has to hold, its step and its label included; empty where nothing
diverges, and naming anything is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SILENT = "silent"
OLD, NEW = "transformers4", "torch"
"""The environments of tox.ini whose interpreters run the older and the newer release of Transformers."""


@dataclass(frozen=True)
class Run:
    """What a run does otherwise than train two steps in float32 with AdamW."""

    environment: str = NEW
    fault: str = ""
    attention: str = ""
    """``eager`` or ``sdpa``; the default of the release where empty."""
    checkpointing: str = ""
    """``reentrant`` or ``nonreentrant``."""
    dtype: str = ""
    autocast: str = ""
    threads: int = 1
    data: str = ""
    padded: bool = False
    dropout: float = 0.0
    configuration: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = "AdamW"
    learning_rate: float = 1e-3
    weight_decay: float | None = None
    clip: float = 0.0
    keeps_gradients: bool = False
    loss_factor: float = 1.0
    backwards: int = 1
    """Over how many parts of the batch gradients are accumulated."""
    ranks: int = 0
    whole_batch: bool = False
    """Whether every rank gets the whole batch."""
    fault_rank: int | None = None
    """The only rank with the fault."""


@dataclass(frozen=True)
class Pair:
    """Two runs of one model."""

    model: str
    right: str
    target: Run
    golden: Run
    kind: str
    note: str = ""
    """Why the truth is what it is, where that is not plain."""

    def needs(self, environment: str) -> bool:
        return environment in (self.target.environment, self.golden.environment)

    @property
    def is_fault(self) -> bool:
        return bool(self.right) and not self.right.startswith(f"^{SILENT}")

    @property
    def precision(self) -> str:
        runs = (self.target, self.golden)
        target, golden = (f"autocast {run.autocast}" if run.autocast else run.dtype for run in runs)
        return (target or "float32") if target == golden else "mixed"


def _pair(
    kind: str,
    model: str,
    right: str = "",
    target: Mapping[str, Any] | None = None,
    golden: Mapping[str, Any] | None = None,
    note: str = "",
    **both: Any,
) -> Pair:
    return Pair(model, right, Run(**{**both, **(target or {})}), Run(**{**both, **(golden or {})}), kind, note)


_OLD = {"environment": OLD}
_EAGER, _SDPA = {"attention": "eager"}, {"attention": "sdpa"}

_RELEASE, _RELEASE_FAULT = "another release", "another release, one fault"
_OTHER_CALLS, _TYPES, _NOTHING = "other calls", "other types", "nothing, or rounding"
_DATA, _FAULT, _STEPS, _RANKS = "data and randomness", "one fault", "between steps", "ranks"

LISTED: dict[str, Pair] = {
    # The same weights: modules and calls are renamed, added, dropped, reordered.
    "release-llama": _pair(_RELEASE, "llama", golden=_OLD, padded=True),
    "release-gpt2": _pair(_RELEASE, "gpt2", golden=_OLD),
    "release-bert": _pair(_RELEASE, "bert", golden=_OLD, padded=True),
    "release-llama-fault": _pair(
        _RELEASE_FAULT, "llama", r"layers\.1\.self_attn\.q_proj", {"fault": "transposed-q-llama"}, _OLD, padded=True
    ),
    "release-gpt2-fault": _pair(_RELEASE_FAULT, "gpt2", r"h\.1\.ln_2", {"fault": "epsilon-gpt2"}, _OLD),
    "release-bert-fault": _pair(
        _RELEASE_FAULT, "bert", r"layer\.1\.intermediate\.dense", {"fault": "drawn-again-bert"}, _OLD, padded=True
    ),
    # The same mathematics by other calls.
    "attention-llama": _pair(_OTHER_CALLS, "llama", target=_EAGER, golden=_SDPA, padded=True),
    "attention-llama-nomask": _pair(_OTHER_CALLS, "llama", target=_EAGER, golden=_SDPA),
    "attention-gpt2": _pair(_OTHER_CALLS, "gpt2", target=_EAGER, golden=_SDPA),
    "checkpoint-llama": _pair(_OTHER_CALLS, "llama", target={"checkpointing": "nonreentrant"}),
    "checkpoint-reentrant-gpt2": _pair(_OTHER_CALLS, "gpt2", target={"checkpointing": "reentrant"}),
    # Other types by design; with a fault behind them.
    "bfloat16-llama": _pair(_TYPES, "llama", target={"dtype": "bfloat16"}),
    "bfloat16-llama-fault": _pair(
        _TYPES, "llama", r"layers\.1\.mlp\.down_proj", {"dtype": "bfloat16", "fault": "scaled-down-llama"}
    ),
    "autocast-llama": _pair(
        _TYPES, "llama", rf"^{SILENT}$|bfloat16", {"autocast": "bfloat16"}, note="silent, or named as bfloat16"
    ),
    "same-llama": _pair(_NOTHING, "llama"),
    "threads-gpt2": _pair(_NOTHING, "gpt2", target={"threads": 2}),
    "padding-side-llama": _pair(
        _DATA,
        "llama",
        r"input_ids|embed_tokens|attention_mask|layers\.0\.self_attn",
        {"data": "left"},
        padded=True,
    ),
    "label-shift-llama": _pair(
        _DATA,
        "llama",
        r"labels|cross_entropy|nll_loss|Functional\.pad\.0|lm_head.*backward",
        {"data": "shifted-labels"},
    ),
    "dropout-off-gpt2": _pair(
        _DATA, "gpt2", r"transformer\.drop\b|transformer\.drop\.", {"dropout": 0.0}, {"dropout": 0.1}
    ),
    "eps-llama": _pair(_FAULT, "llama", r"layers\.0\.input_layernorm", {"configuration": {"rms_norm_eps": 1e-5}}),
    "transposed-llama": _pair(_FAULT, "llama", r"layers\.1\.self_attn\.q_proj", {"fault": "transposed-q-llama"}),
    "swapped-layers-llama": _pair(_FAULT, "llama", r"layers\.1\.", {"fault": "swapped-layers-llama"}),
    "gelu-kind-gpt2": _pair(_FAULT, "gpt2", r"h\.0\.mlp\.act", {"configuration": {"activation_function": "gelu"}}),
    "scale-llama": _pair(_FAULT, "llama", r"layers\.1\.mlp\.up_proj", {"fault": "scaled-slightly-llama"}),
    "nan-llama": _pair(_FAULT, "llama", r"layers\.1\.mlp\.up_proj", {"fault": "nan-llama"}),
    "tied-gpt2": _pair(_FAULT, "gpt2", r"step0.*(wte|lm_head).*grad", {"fault": "untied-gpt2"}),
    "frozen-bert": _pair(_FAULT, "bert", r"embeddings", {"fault": "frozen-bert"}),
    "learning-rate-llama": _pair(_STEPS, "llama", r"(?i)step1.*(optimizer|learning rate)", {"learning_rate": 3e-3}),
    "no-zero-grad-llama": _pair(
        _STEPS, "llama", r"(?i)step1.*(accumul|zero_grad|sum)", {"keeps_gradients": True}, optimizer="SGD"
    ),
    "loss-scale-llama": _pair(_STEPS, "llama", r"(?i)backward|loss|__mul__", {"loss_factor": 2.0}),
    "ranks-same-llama": _pair(_RANKS, "llama", target={"ranks": 2, "whole_batch": True}),
}
"""The pairs by which rules were made, all with two models of one family and two others."""

_POSITIONS = "the encoder's positions train in one of the two releases only"
# A row further, a weight has the same statistics, and without a bias so has what the projection returns.
_ROLLED = "statistics show it behind the projection"

HELD_OUT: dict[str, Pair] = {
    **{f"release-{model}": _pair(_RELEASE, model, golden=_OLD) for model in ("qwen2", "mixtral", "t5", "vit")},
    "release-whisper": _pair(
        _RELEASE, "whisper", r"embed_positions|step1.*encoder\.layers\.0\.", golden=_OLD, note=_POSITIONS
    ),
    "release-qwen2-padded": _pair(_RELEASE, "qwen2", golden=_OLD, padded=True),
    "release-t5-padded": _pair(_RELEASE, "t5", golden=_OLD, padded=True),
    **{
        f"release-{fault}": _pair(
            _RELEASE_FAULT,
            fault.rpartition("-")[2],
            right,
            {"fault": fault},
            _OLD,
            _ROLLED if fault in ("rolled-q-mixtral", "rolled-q-t5") else "",
        )
        for fault, right in (
            ("scaled-up-qwen2", r"layers\.1\.mlp\.up_proj"),
            ("rolled-q-qwen2", r"layers\.1\.self_attn\.q_proj"),
            ("bias-qwen2", r"layers\.2\.self_attn\.k_proj"),
            ("epsilon-qwen2", r"layers\.1\.post_attention_layernorm"),
            ("rolled-q-mixtral", r"layers\.1\.self_attn\b"),
            ("router-mixtral", r"layers\.1\.(mlp|block_sparse_moe)\b"),
            ("swapped-experts-mixtral", r"layers\.1\.(mlp|block_sparse_moe)\b"),
            ("rolled-q-t5", r"encoder\.block\.1\.layer\.0\.SelfAttention\b"),
            ("scaled-wo-t5", r"decoder\.block\.1\.layer\.2\.DenseReluDense\.wo"),
            ("epsilon-t5", r"encoder\.block\.1\.layer\.1\.layer_norm"),
            ("conv-whisper", r"encoder\.conv2"),
            ("bias-whisper", r"decoder\.layers\.1\.fc1"),
            ("rolled-q-whisper", r"decoder\.layers\.1\.encoder_attn\.q_proj"),
            ("rolled-q-vit", r"vit\.layers\.1\.attention\.q_proj|layer\.1\.attention\.attention\.query"),
            ("bias-vit", r"vit\.layers\.1\.mlp\.fc1|layer\.1\.intermediate\.dense"),
            ("epsilon-vit", r"vit\.layers\.1\.layernorm_after|layer\.1\.layernorm_after"),
            ("conv-vit", r"patch_embeddings\.projection"),
            ("scaled-vit", r"vit\.layers\.2\.mlp\.fc2|layer\.2\.output\.dense"),
        )
    },
    **{
        f"attention-{model}": _pair(_OTHER_CALLS, model, target=_EAGER, golden=_SDPA)
        for model in ("qwen2", "mixtral", "whisper", "vit")
    },
    "attention-rolled-q-vit": _pair(
        _OTHER_CALLS,
        "vit",
        r"layers\.1\.attention\.q_proj",
        {**_EAGER, "fault": "rolled-q-vit"},
        _SDPA,
    ),
    "attention-bias-qwen2": _pair(
        _OTHER_CALLS, "qwen2", r"layers\.2\.self_attn\.k_proj", {**_EAGER, "fault": "bias-qwen2"}, _SDPA, padded=True
    ),
    "checkpoint-reentrant-qwen2": _pair(_OTHER_CALLS, "qwen2", target={"checkpointing": "reentrant"}),
    "checkpoint-t5": _pair(_OTHER_CALLS, "t5", target={"checkpointing": "nonreentrant"}),
    "checkpoint-reentrant-scaled-qwen2": _pair(
        _OTHER_CALLS,
        "qwen2",
        r"layers\.1\.mlp\.up_proj",
        {"checkpointing": "reentrant", "fault": "scaled-up-qwen2"},
    ),
    "bfloat16-qwen2": _pair(_TYPES, "qwen2", target={"dtype": "bfloat16"}),
    "bfloat16-vit": _pair(_TYPES, "vit", target={"dtype": "bfloat16"}),
    "bfloat16-scaled-vit": _pair(_TYPES, "vit", r"layers\.2\.mlp\.fc2", {"dtype": "bfloat16", "fault": "scaled-vit"}),
    "bfloat16-both-rolled-q-t5": _pair(
        _TYPES,
        "t5",
        r"encoder\.block\.1\.layer\.0\.SelfAttention\b",
        {"fault": "rolled-q-t5"},
        note=_ROLLED,
        dtype="bfloat16",
    ),
    "autocast-vit": _pair(
        _TYPES, "vit", rf"^{SILENT}$|bfloat16", {"autocast": "bfloat16"}, note="silent, or named as bfloat16"
    ),
    "autocast-rolled-q-qwen2": _pair(
        _TYPES,
        "qwen2",
        r"layers\.1\.self_attn\.q_proj",
        {"autocast": "bfloat16", "fault": "rolled-q-qwen2"},
        {"autocast": "bfloat16"},
    ),
    "same-whisper": _pair(_NOTHING, "whisper"),
    "threads-mixtral": _pair(_NOTHING, "mixtral", target={"threads": 2}),
    "other-batch-vit": _pair(_DATA, "vit", r"input|projection|embeddings", {"data": "other"}),
    "other-batch-t5": _pair(_DATA, "t5", r"input|shared|embed|encoder\.block\.0", {"data": "other"}),
    **{
        f"fault-{fault}": _pair(_FAULT, fault.rpartition("-")[2], right, {"fault": fault})
        for fault, right in (
            ("conv-whisper", r"encoder\.conv2"),
            ("epsilon-whisper", r"encoder\.layers\.1\.final_layer_norm"),
            ("epsilon-mixtral", r"layers\.2\.input_layernorm"),
            ("router-mixtral", r"layers\.1\.mlp\b"),
            ("frozen-qwen2", r"layers\.0\."),
        )
    },
    "learning-rate-vit": _pair(
        _STEPS, "vit", r"(?i)step1.*(optimizer|learning rate)", {"learning_rate": 2e-2}, optimizer="SGD"
    ),
    "optimizer-qwen2": _pair(_STEPS, "qwen2", r"(?i)step1.*optimizer", {"optimizer": "Adam"}, {"optimizer": "SGD"}),
    "weight-decay-t5": _pair(
        _STEPS,
        "t5",
        r"(?i)step1.*(optimizer|weight decay)",
        {"weight_decay": 0.5},
        optimizer="SGD",
        learning_rate=0.1,
    ),
    "clip-whisper": _pair(
        _STEPS,
        "whisper",
        r"(?i)step[01].*(optimizer|clip|scaled|learning rate|grad)",
        {"clip": 0.1},
        optimizer="SGD",
        learning_rate=0.1,
    ),
    "no-zero-grad-vit": _pair(
        _STEPS, "vit", r"(?i)step1.*(accumul|zero_grad|sum)", {"keeps_gradients": True}, optimizer="SGD"
    ),
    # The gradients after both halves of the batch are those of the whole.
    "accumulation-qwen2": _pair(_STEPS, "qwen2", target={"backwards": 2}, note="two halves of the batch"),
    "ranks-same-qwen2": _pair(_RANKS, "qwen2", target={"ranks": 2, "whole_batch": True}),
    "ranks-same-vit": _pair(_RANKS, "vit", target={"ranks": 2}, golden={"ranks": 2}),
    "ranks-fault-qwen2": _pair(
        _RANKS, "qwen2", r"rank1.*layers\.1\.mlp\.up_proj", {"fault": "scaled-up-qwen2", "fault_rank": 1}, ranks=2
    ),
    "ranks-shard-qwen2": _pair(
        _RANKS, "qwen2", r"(?i)input|embed|batch|shard", {"ranks": 2}, note="each rank gets half the batch"
    ),
}
"""Pairs of the same kinds with other models and other faults, by which no rule was made."""

_FAULTS_OF_RELEASES = {
    "transposed-q-llama": r"layers\.1\.self_attn",
    "scaled-down-llama": r"layers\.1\.mlp\.down_proj",
    "epsilon-llama": r"layers\.1\.post_attention_layernorm",
    "epsilon-gpt2": r"h\.1\.ln_2",
    "scaled-fc-gpt2": r"h\.1\.mlp\.c_fc",
    "bias-gpt2": r"h\.2\.attn",
    "drawn-again-bert": r"layer\.1\.intermediate\.dense",
    "bias-bert": r"layer\.1\.output\.dense",
    "epsilon-bert": r"layer\.2\.attention\.output\.LayerNorm",
    "scaled-up-qwen2": r"layers\.1\.mlp\.up_proj",
    "rolled-q-qwen2": r"layers\.1\.self_attn",
    "epsilon-qwen2": r"layers\.1\.post_attention_layernorm",
}
_OTHER_FAULTS_OF_RELEASES = (
    "rolled-q-mixtral", "router-mixtral", "rolled-q-t5", "scaled-wo-t5", "epsilon-t5", "conv-whisper", "bias-whisper",
    "rolled-q-whisper", "rolled-q-vit", "bias-vit", "epsilon-vit",
)  # fmt: skip


def _of_releases(models: Sequence[str], faults: Mapping[str, str]) -> dict[str, Pair]:
    """Two releases of a library, both in bfloat16 (bf16), and one in bfloat16 and one in float32 (mixed)."""
    found = {}
    for precision, both, golden in (("bf16", {"dtype": "bfloat16"}, {}), ("mixed", {}, {"dtype": "bfloat16"})):
        for model in models:
            # With caches, of which one release says more in its calls.
            more = {} if model in ("bert", "vit") else {"configuration": {"use_cache": True}}
            of_model = {name: where for name, where in faults.items() if name.endswith(model)}
            for fault, where in {"": "", **of_model}.items():
                target, older = {"fault": fault} if fault else {}, {**_OLD, **golden}
                kind = "two releases in short types, one fault" if fault else "two releases in short types"
                name = f"{precision}-release-{fault or model}"
                of_release = HELD_OUT["release-whisper"].right if model == "whisper" and not fault else ""
                found[name] = _pair(kind, model, where or of_release, target, older, **more, **both)
    return found


SHORT_RELEASES = _of_releases(("llama", "gpt2", "bert", "qwen2"), _FAULTS_OF_RELEASES)
OTHER_SHORT_RELEASES = _of_releases(
    ("mixtral", "t5", "whisper", "vit"),
    {
        **{fault: HELD_OUT[f"release-{fault}"].right for fault in _OTHER_FAULTS_OF_RELEASES},
        # Rounding hides it up to the module around it.
        "scaled-wo-t5": r"decoder\.block\.1\.layer\.2\b",
        "rolled-q-vit": r"layers?\.1\.attention\b",
    },
)
"""The same with models by which no rule was made."""

_BFLOAT16, _FLOAT16, _AUTOCAST = {"dtype": "bfloat16"}, {"dtype": "float16"}, {"autocast": "bfloat16"}
_DEEP_FAULTS = {
    "skipped-llama8": r"layers\.[56]\b",
    "unscaled-llama8": r"layers\.4\.self_attn",
    "relu-llama8": r"layers\.6\.mlp",
    "transposed-o-llama8": r"layers\.5\.self_attn",
    "rolled-up-llama8": r"layers\.3\.mlp",
    "rolled-q-bert8": r"layer\.4\.attention",
    "rolled-dense-bert8": r"layer\.3\.output",
    "rolled-fc-vit8": r"layers\.5\.mlp",
    "skipped-vit8": r"layers\.[45]\b",
}


def _deep(fault: str, target: Mapping[str, Any], **golden: Any) -> Pair:
    return _pair(_TYPES, fault.rpartition("-")[2], _DEEP_FAULTS[fault], {**target, "fault": fault}, golden)


PRECISIONS: dict[str, Pair] = {
    **{f"bfloat16-{model}": _pair(_TYPES, model, target=_BFLOAT16) for model in ("llama8", "bert8", "vit8")},
    "float16-llama8": _pair(
        _TYPES, "llama8", rf"^{SILENT}$|step1.*NaN", _FLOAT16, note="float16 has no epsilon of 1e-8: NaN in AdamW"
    ),
    "autocast-llama8": _pair(_TYPES, "llama8", rf"^{SILENT}$|bfloat16", _AUTOCAST),
    "bfloat16-attention-llama8": _pair(_TYPES, "llama8", target={**_BFLOAT16, **_EAGER}, golden={**_BFLOAT16, **_SDPA}),
    **{f"bfloat16-{fault}": _deep(fault, _BFLOAT16) for fault in _DEEP_FAULTS},
    "float16-transposed-o-llama8": _deep("transposed-o-llama8", _FLOAT16),
    "autocast-rolled-up-llama8": _deep("rolled-up-llama8", _AUTOCAST),
    "bfloat16-both-unscaled-llama8": _deep("unscaled-llama8", _BFLOAT16, **_BFLOAT16),
}
"""Deep models in two precisions; a fault moves what its module returns by 8 to 60 times what rounding does there."""

LISTS = {
    "pairs": LISTED,
    "precision": PRECISIONS,
    "heldout": HELD_OUT,
    "releases": {**SHORT_RELEASES, **OTHER_SHORT_RELEASES},
}
PAIRS = {name: pair for pairs in LISTS.values() for name, pair in pairs.items()}
