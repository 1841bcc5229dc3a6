"""The one filter between a user's machine and the files of this tool: secrets, home folders and host names stay.

Variables pass by an allow-list of names. Settings and arguments have the names that users gave them, so that for these
there is none: names and values of the form of a secret are left out. A value that may be a secret is left out and
counted: neither its name nor a hash is kept, because short secrets can be guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

PREFIXES = (
    "ACCELERATE_", "ASCEND_", "ATB_", "ATEN_CPU_", "CLOSE_MATMUL_", "CUBLAS", "CUDA_", "CUDNN_", "DEEPSPEED_",
    "DNNL_MAX_", "FSDP_", "GLOO_", "HCCL_", "HIP_", "INF_NAN_", "LCCL_", "MINDSPORE_", "MIOPEN_", "MKL_", "MS_",
    "NCCL_", "NVIDIA_TF32_", "NVTE_", "OMP_", "ONEDNN_MAX_", "OPENBLAS_", "PYTORCH_", "ROCBLAS_", "ROCM_",
    "TASK_QUEUE_", "TORCHINDUCTOR_", "TORCH_", "TRITON_", "XLA_",
)  # fmt: skip
"""The beginnings of the names of variables that change what a training computes, or in which order."""
NAMES = frozenset(
    (
        "PYTHONHASHSEED", "PL_GLOBAL_SEED", "NPROC_PER_NODE", "NNODES", "NUM_NODES", "GPUS_PER_NODE", "RANK_SIZE",
        "DEVICE_NUM", "ROCR_VISIBLE_DEVICES", "VLLM_ATTENTION_BACKEND", "VLLM_USE_V1", "VLLM_BATCH_INVARIANT",
        "TORCHDYNAMO_DISABLE", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK", "LOCAL_RANK", "GLOG_v",
        "TOKENIZERS_PARALLELISM", "COMBINED_ENABLE", "FLASH_ATTENTION_DETERMINISTIC", "MULTI_STREAM_MEMORY_REUSE",
        "CPU_AFFINITY_CONF",
    )
)  # fmt: skip
"""Names of variables that do not begin in this way and are written too."""
LONGEST_VARIABLE = 200
"""Characters of the value of a variable. No switch of a library needs as many; the number is a guess."""
LONGEST_SETTING = 2000
"""Characters of a setting. A list of data sets may be that long; the number is a guess."""

# --- names

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    (
        "account", "apikey", "auth", "authorization", "certificate", "cookie", "credential", "credentials", "email",
        "key", "keys", "login", "pass", "passcode", "passphrase", "passwd", "password", "pat", "pin", "private", "pwd",
        "secret", "secrets", "session", "signature", "sk", "token", "user", "username", "webhook",
    )
)  # fmt: skip
_PLACE_WORDS = frozenset(
    (
        "addr", "address", "endpoint", "endpoints", "host", "hostname", "hosts", "ifname", "ip", "ips", "nodelist",
        "url", "urls",
    )
)  # fmt: skip
"""Words of variables and arguments that name a machine."""
# Arguments of models that have one of these words and are no secrets.
_HARMLESS = re.compile(
    r"(^|[._/-])(num_)?(key_value_heads|kv_heads|query_key|key_size|key_dim|key_length|qk_\w*|\w*key_layer_scaling"
    r"|\w*key_layernorm|\w*_per_token|per_token\w*|(pad|eos|bos|unk|mask|sep|cls|image|video|audio)_token(_id|_ids)?)$"
)

# --- values

_WORDS_OF_SECRETS = re.compile(
    r"(?i:secret|passw(or)?d|passphrase|credential|api[-_ ]?key|private[-_ ]?key|bearer\s|authorization)"
    r"|(?i:\btoken\b|(?<![a-z])token(?=[_-]))|TOKEN|PASSWD|(?<![A-Z])KEY(?![A-Z])|(?i:\bpwd\b\s*[=:])"
)
"""Words in a value."""
_FORMS_OF_SECRETS = re.compile(
    "|".join(
        (
            r"://[^/\s@]+@",  # credentials in an address
            r"\b(ghp|gho|ghu|ghs|ghr|hf|sk|pk|rk|glpat|npm|pypi|xox[abprs]|dop|shpat|AGE)[_-][A-Za-z0-9_-]{6,}",
            r"github_pat_",
            r"\b(AKIA|ASIA|AROA)[A-Z0-9]{8,}",
            r"\bAIza[\w-]{10,}",
            r"\beyJ[\w-]{6,}\.",  # a JSON web token
            r"-----BEGIN",
            r"\bssh-(rsa|ed25519|dss)\b",
            r"\b[0-9a-fA-F]{32,}\b",
            r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b",
            r"[\w.+-]+@[\w-]+\.[\w.]+",  # a mail address
        )
    )
)
"""The forms of tokens of well-known services, of keys and of digests."""
_LONG_RUN = re.compile(r"[A-Za-z0-9+/]{20,}={0,2}")
_FEW_SWITCHES = 4
"""A word in camel case changes between letters and digits less often than a random text of 20 characters; a guess."""
_PLACES = re.compile(r"(^|[\s=:,\"'(])(~[\w-]*/|/(?!/)[\w.@+-]+|[A-Za-z]:\\)|\b\d{1,3}(\.\d{1,3}){3}\b")
_PATH = re.compile(r"(^|(?<=[\s=:,\"'(\[]))(~[\w-]*|[A-Za-z]:)?[/\\](?![/\\])[^\s,;\"')\]]*")

WITHHELD = "<withheld>"
"""The text in the place of a line of code, or of an argument, that may have a secret."""


def is_allowed(name: str) -> bool:
    """True if a variable of this name may be written, as far as the name decides."""
    return (name in NAMES or name.startswith(PREFIXES)) and not _has_word(name, _SECRET_WORDS | _PLACE_WORDS)


def is_secret_name(name: str) -> bool:
    """True if the name says that the value is a secret: ``--wandb-api-key``, ``HF_TOKEN``; not ``eos_token_id``."""
    plain = name.replace("-", "_")
    return _has_word(plain, _SECRET_WORDS) and not _HARMLESS.search(plain)


def is_secret_value(text: str) -> bool:
    """True if a text may be a secret, or have one in it."""
    return bool(_WORDS_OF_SECRETS.search(text)) or has_form_of_secret(text)


def has_form_of_secret(text: str) -> bool:
    """True if a text has the form of a token, a key or a digest in it, whatever its words."""
    return bool(_FORMS_OF_SECRETS.search(text)) or any(_looks_drawn(run[0]) for run in _LONG_RUN.finditer(text))


def clean_variables(variables: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """The variables that may be written, sorted by name, and the number of those that are withheld.

    Values with a path or an address of a machine are withheld too.
    """
    kept = {name: value for name, value in sorted(variables.items()) if is_allowed(name) and _is_plain(value)}
    return kept, len(variables) - len(kept)


def withheld_values(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that are not to be written; for a comparison in memory, which counts those that differ."""
    kept, _ = clean_variables(variables)
    return {name: value for name, value in variables.items() if name not in kept}


def _is_plain(value: str) -> bool:
    return (
        len(value) <= LONGEST_VARIABLE
        and value.isprintable()
        and not _PLACES.search(value)
        and not is_secret_value(value)
    )


def clean_settings(settings: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Hyper-parameters without those that may be secrets, and the number of these.

    Of a path only the last part is kept: ``/data/news/corpus`` becomes ``.../corpus``.

    Args:
        settings: Flat names with plain values.
    """
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if _is_setting_plain(str(name), value):
            kept[str(name)] = _without_paths(value)
    return kept, len(settings) - len(kept)


def is_secret_argument(name: str) -> bool:
    """True if the values of this argument of a command are not written: ``--wandb-api-key``, ``--master_addr``."""
    plain = name.replace("-", "_")
    return is_secret_name(plain) or _has_word(plain, _PLACE_WORDS) or has_form_of_secret(name)


def clean_argument(text: str) -> str:
    """A value of an argument of a command: of a path its last part, `WITHHELD` if it may be a secret or name a machine.

    Example:
        >>> clean_argument("/mnt/disk/data/corpus"), clean_argument("https://user:word@host/x")
        ('.../corpus', '<withheld>')
    """
    shown = str(_without_paths(text))
    if len(text) > LONGEST_VARIABLE or not text.isprintable() or is_secret_value(text) or "://" in text:
        return WITHHELD
    return WITHHELD if _PLACES.search(shown.replace(".../", "")) else shown


def _is_setting_plain(name: str, value: Any) -> bool:
    if is_secret_name(name) or has_form_of_secret(name) or len(name) > LONGEST_VARIABLE:
        return False
    return all(len(text) <= LONGEST_SETTING and not is_secret_value(text) for text in _texts(value))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, each in value.items() for text in (str(key), *_texts(each))]
    if isinstance(value, Sequence):
        return [text for each in value for text in _texts(each)]
    return []


def _without_paths(value: Any) -> Any:
    if isinstance(value, str):
        return _PATH.sub(lambda match: ".../" + re.split(r"[/\\]", match[0].rstrip("/\\"))[-1], value)
    if isinstance(value, Mapping):
        return {key: _without_paths(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_paths(each) for each in value]
    return value


_LITERAL = re.compile(r"""(['"])((?:\\.|(?!\1).)*)\1""")
_LONGEST_LITERAL = 12
"""Characters of a text in a line of code that is shown; a name of an option is shorter as a rule, a password longer."""


def clean_line(code: str) -> str:
    """A line of source code without secrets: long texts in it are left out, or all of it where names say so."""
    assigned = re.findall(r"[\w.]+(?=\s*(?:=[^=]|:))", code)
    if any(map(is_secret_name, assigned)) or is_secret_value(code):
        return WITHHELD
    return _LITERAL.sub(
        lambda match: match[0] if len(match[2]) <= _LONGEST_LITERAL else f"{match[1]}...{match[1]}", code
    )


def _has_word(name: str, words: frozenset[str]) -> bool:
    return any(word.lower() in words for word in _WORDS.findall(name))


def _looks_drawn(run: str) -> bool:
    """True if a run of letters and digits changes between their kinds as often as a text that was drawn at random."""
    kinds = ["digit" if each.isdigit() else "upper" if each.isupper() else "lower" for each in run]
    digits = [kind == "digit" for kind in kinds]
    switches = sum(one != other for one, other in zip(digits, digits[1:]))
    return any(digits) and not all(digits) and switches >= _FEW_SWITCHES
