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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probe._version import __version__
from probe.common.environment.secrets import clean_variables

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
