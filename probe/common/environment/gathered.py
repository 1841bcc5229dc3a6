"""The environment of this process as plain data: versions, variables, switches, seeds.

Nothing is changed by gathering it, and no package is imported.
"""

from __future__ import annotations

import array
import os
import platform
import random
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe._version import __version__

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


def without_secrets(code: str) -> str:
    """A line of source code whose texts are left out if one of them may be a secret; other code stays as it is.

    Where `clean_line` leaves out whatever a name makes suspicious, this keeps ``key = self.key(x)``, which models have.

    Example:
        >>> without_secrets("login(token='hf_abcdefgh')"), without_secrets("key = self.key(x, 'mean')")
        ("login(token='...')", "key = self.key(x, 'mean')")
    """
    texts = [match[2] for match in _LITERAL.finditer(code)]
    shown = _LITERAL.sub(lambda match: f"{match[1]}...{match[1]}", code)
    if has_form_of_secret(shown):
        return WITHHELD
    is_named = any(map(is_secret_name, re.findall(r"[\w.]+(?=\s*(?:=[^=]|:))", shown)))
    is_suspicious = any(has_form_of_secret(text) or (is_named and len(text) > _LONGEST_LITERAL) for text in texts)
    return shown if is_suspicious else code


def _has_word(name: str, words: frozenset[str]) -> bool:
    return any(word.lower() in words for word in _WORDS.findall(name))


def _looks_drawn(run: str) -> bool:
    """True if a run of letters and digits changes between their kinds as often as a text that was drawn at random."""
    kinds = ["digit" if each.isdigit() else "upper" if each.isupper() else "lower" for each in run]
    digits = [kind == "digit" for kind in kinds]
    switches = sum(one != other for one, other in zip(digits, digits[1:]))
    return any(digits) and not all(digits) and switches >= _FEW_SWITCHES


# --- gathered


_NOT_AN_INTEGER = 0x80000000
"""The first number in the state of a Mersenne twister that was not seeded with one integer, as the algorithm has it."""
_FRESH = 624
"""The position in the state of a Mersenne twister before the first number is drawn."""


class FrameworkFacts(NamedTuple):
    """The state of a framework in this process."""

    framework: str = ""
    versions: Mapping[str, str] = {}
    """Versions of what it was built with or runs on, such as ``cuda``, by name."""
    devices: Sequence[str] = ()
    """The names of the accelerators that the program has started to use, one for each."""
    switches: Mapping[str, Any] = {}
    """Switches that decide which kernels run or how they round, with plain values."""
    layout: Mapping[str, Any] = {}
    """The size and the backend of the default process group; empty without one."""
    seeds: Mapping[str, int] = {}
    """The seeds of its generators of the CPU, as far as it tells them."""
    random_states: Mapping[str, bytes] = {}
    """The states of these generators, by name."""


NO_FRAMEWORK = FrameworkFacts()


def gathered(facts: FrameworkFacts = NO_FRAMEWORK) -> dict[str, Any]:
    """The environment of this process, as docs/reference/output.md describes the file.

    No secret, path, user name or name of a machine is in it.
    """
    variables, withheld = clean_variables(os.environ)
    seeds = dict(facts.seeds)
    states = {name: f"{zlib.crc32(state):08x}" for name, state in facts.random_states.items()}
    _add_numpy(seeds, states)
    _add_python(seeds, states)
    return {
        "tool": f"msprobe {__version__}",
        "framework": facts.framework,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions(),
        "versions": dict(facts.versions),
        "devices": list(facts.devices),
        "switches": dict(facts.switches),
        "layout": dict(facts.layout),
        "seeds": seeds,
        "random_states": states,
        "variables": variables,
        "withheld": withheld,
    }


def _add_numpy(seeds: dict[str, int], states: dict[str, str]) -> None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "random"):
        return
    state = numpy.random.get_state(legacy=False)
    twister = state.get("state", {})
    keys, position = twister.get("key"), twister.get("pos")
    if state.get("bit_generator") != "MT19937" or keys is None or position is None:
        return  # a generator of the user's own
    states["numpy"] = f"{zlib.crc32(keys.tobytes() + position.to_bytes(4, 'little')):08x}"
    if position == _FRESH and int(keys[0]) != _NOT_AN_INTEGER:
        seeds["numpy"] = int(keys[0])


def _add_python(seeds: dict[str, int], states: dict[str, str]) -> None:
    _, inside, _ = state = random.getstate()
    states["python"] = f"{zlib.crc32(array.array('Q', inside).tobytes()):08x}"
    if inside[-1] != _FRESH:
        return
    # The seed cannot be read from the state, but programs give all generators the same one.
    for seed in dict.fromkeys(seeds.values()):
        if random.Random(seed).getstate() == state:
            seeds["python"] = seed
            return


# --- versions of packages

PACKAGES = (
    "torch", "torch_npu", "mindspore", "mindnlp", "numpy", "transformers", "accelerate", "deepspeed", "megatron_core",
    "mindspeed", "peft", "datasets", "triton", "flash_attn", "transformer_engine", "apex", "lightning", "safetensors",
    "vllm",
)  # fmt: skip
"""By the names of their distributions, ``-`` written as ``_``."""
_FOLDER = re.compile(rf"({'|'.join(PACKAGES)})-([^-]+)\.(?:dist|egg)-info\Z", re.IGNORECASE)


def versions() -> dict[str, str]:
    """The version of each of `PACKAGES` that is installed; of one that is there twice the one that is imported."""
    found: dict[str, str] = {}
    for path in sys.path:
        try:
            names = os.listdir(path or os.curdir)
        except OSError:
            continue
        for name in names:
            match = _FOLDER.match(name) if name.endswith("-info") else None
            if match:
                found.setdefault(match[1].lower(), match[2])
    for name in PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return dict(sorted(found.items()))


def all_versions() -> dict[str, str]:
    """The version of every distribution that is installed, by its name; the first on the path, which is imported."""
    found: dict[str, tuple[str, str]] = {}
    for path in sys.path:
        try:
            folders = os.listdir(path or os.curdir)
        except OSError:
            continue
        for folder in folders:
            stem, dot, kind = folder.rpartition(".")
            name, _, version = stem.partition("-")
            if dot and kind in ("dist-info", "egg-info") and version:
                own = _written_name(os.path.join(path, folder), name)
                # One name in different spellings is one distribution.
                found.setdefault(re.sub(r"[-_.]+", "-", own).lower(), (own, version.split("-py")[0]))
    return dict(found[key] for key in sorted(found))


def _written_name(folder: str, otherwise: str) -> str:
    """The name of a distribution as its author spells it."""
    for name in ("METADATA", "PKG-INFO"):
        try:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
                match = re.search(r"^Name: *([\w.-]+)", stream.read(_HEAD), re.MULTILINE)
        except OSError:
            continue
        if match:
            return match[1]
    return otherwise


_HEAD = 500
"""Characters of a file of metadata, which begins with version and name."""


# --- command


PROGRAM = "program"
"""The name of what runs: the script, or ``-m`` and the module."""
_KERNEL = "ipykernel_launcher"
"""Runs a notebook; its arguments are a file of the connection, another one in each run."""
_MOST_WORDS = 200
"""Words of a command that are kept. No training is known that has as many arguments; the number is a guess."""
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?\Z", re.DOTALL)
_ASSIGNED = re.compile(r"(\+{0,2}[A-Za-z_][\w./-]*)=(.*)\Z", re.DOTALL)
"""``trainer.lr=0.1``, as Hydra and OmegaConf take it."""


def command() -> list[str]:
    """The command line of this process as words: ``python train.py --lr 0.1``, ``python -m package.train --lr 0.1``.

    Of a path only the last part is kept, and the value of an argument that may be a secret or name a machine is left
    out. Empty if the program keeps no words there.
    """
    try:
        first, *words = map(str, sys.argv)
    except (ValueError, TypeError):
        return []  # a program may do what it likes with its arguments
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = "" if spec is None else re.sub(r"\.__main__$", "", spec.name)
    program = ["-m", module] if module else [os.path.basename(first) if os.path.isabs(first) else first]
    if program[-1].startswith(_KERNEL):
        words = []
    return ["python", *program, *_clean(words[:_MOST_WORDS])]


def _clean(words: Sequence[str]) -> Iterator[str]:
    is_secret = False
    for word in words:
        # All values of a secret option are secrets: --tokens A B. One in base64 ends with "=" and is no assignment.
        option = _OPTION.match(word) or (None if is_secret else _ASSIGNED.match(word))
        if option is None:
            yield WITHHELD if is_secret else clean_argument(word)
            continue
        name, value = option.groups()
        is_secret = is_secret_argument(name)
        if has_form_of_secret(name):
            yield WITHHELD
        elif value is None:
            yield name
        else:
            yield f"{name}={WITHHELD if is_secret else clean_argument(value)}"
        is_secret = is_secret and value is None


def named(words: Sequence[str]) -> dict[str, Any]:
    """The words of a command by name: `PROGRAM`, ``--lr``, ``trainer.lr``, and ``argument 1`` of those without a name.

    The value of an option without one is ``True``; of several it is their list.
    """
    rest = list(words[1:])
    program, rest = (" ".join(rest[:2]), rest[2:]) if rest[:1] == ["-m"] else (" ".join(rest[:1]), rest[1:])
    found: dict[str, Any] = {PROGRAM: program}
    last, position = "", 0
    for word in rest:
        option = _OPTION.match(word) or _ASSIGNED.match(word)
        if option is not None:
            name, value = option.groups()
            last = name if value is None else ""
            _add(found, name, True if value is None else value)
        elif last:
            _add(found, last, word)
        else:
            position += 1
            _add(found, f"argument {position}", word)
    return found


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    before = found.get(name, True)
    if before is True:
        found[name] = value
    elif value is not True:
        found[name] = [*(before if isinstance(before, list) else [before]), value]
