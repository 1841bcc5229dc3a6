"""The differences between the environments of two runs, the most likely cause of a divergence first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from probe.common.environment.environment_file import Environment

SEED, DATA, OPTIMIZER, COMMAND, SWITCH, VERSION, DEVICE, VARIABLE, RANDOM, MINOR = (
    "seed", "data", "optimizer", "command", "switch", "version", "device", "variable", "random", "minor",
)  # fmt: skip
"""The kinds, in the order in which they explain divergences. The order is a judgement, not a measurement."""
KINDS = (SEED, DATA, OPTIMIZER, COMMAND, SWITCH, VERSION, DEVICE, VARIABLE, RANDOM, MINOR)

_FRAMEWORKS = ("torch", "torch_npu", "mindspore", "mindnlp")
_NUMERIC = (*_FRAMEWORKS, "transformers", "deepspeed", "megatron_core", "mindspeed", "flash_attn", "transformer_engine",
            "apex", "accelerate", "peft", "triton")  # fmt: skip
"""Packages whose release may change numbers; other packages are minor."""
_TITLES = {
    "matmul_tf32": "TF32 in matrix products",
    "cudnn_tf32": "TF32 in cuDNN",
    "deterministic_algorithms": "deterministic algorithms",
    "cudnn_deterministic": "deterministic cuDNN",
    "cudnn_benchmark": "cuDNN benchmark",
    "cudnn_enabled": "cuDNN",
    "float32_matmul_precision": "precision of float32 matrix products",
    "float16_reduced_precision_reduction": "reduced-precision sums of float16",
    "bfloat16_reduced_precision_reduction": "reduced-precision sums of bfloat16",
    "flash_attention": "flash attention",
    "memory_efficient_attention": "memory-efficient attention",
    "math_attention": "math attention",
    "default_dtype": "default dtype",
    "threads": "CPU threads",
    "mode": "execution mode",
}
_MINOR_SWITCHES = frozenset(("threads", "runtime_num_threads", "max_call_depth"))
_OF_OUTPUT = re.compile(
    r"(?i)-o\Z|(.*[-_.])?(dump|log|logs|logging|out|output|outputs|save|tag|(run|job|exp|experiment)[-_.]?name)([-_.].*)?\Z"
)
"""Names of arguments that say where a run writes or what it is called. Two runs differ in them as a rule."""
_ABSENT = "not there"
_OF_COMMAND = "command-line "
NOT_SET = "not set"
_DRAWN = 1 << 48
"""The least seed that a framework drew itself, because the program set none: torch draws 64 bits, of which one in
65,536 is less. Seeds that people set fit in 32 bits, as NumPy asks for."""


class OutsideDifference(msgspec.Struct, frozen=True):
    """One difference outside of the model."""

    kind: str
    """The kind, one of `KINDS`."""
    name: str
    """The name as in the file: ``packages.torch``, ``seeds.numpy``, ``variables.NCCL_ALGO``."""
    title: str
    """The name for people."""
    target: Any
    golden: Any

    @property
    def text(self) -> str:
        """Example: ``seed 1 (golden: 2)``."""
        if self.kind == DATA:
            return self.title
        title = f"{self.title} is" if self.title.startswith(_OF_COMMAND) else self.title
        return f"{title} {in_words(self.target)} (golden: {in_words(self.golden)})"


def in_words(value: Any) -> str:
    """A value for people: ``on`` and ``off`` for switches."""
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(map(in_words, value)) or _ABSENT
    return str(value)


def is_same_value(one: Any, other: Any) -> bool:
    """True if two plain values are the same; 1 and 1.0 are, 1 and True are not."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def differences(target: Environment, golden: Environment) -> list[OutsideDifference]:
    """Differences between two environments, the most likely cause of a divergence first.

    A value that only one framework has is not compared if the frameworks differ.
    """
    found = list(_found(target, golden))
    seeds = {(str(each.target), str(each.golden)) for each in found if each.name.startswith("seeds")}
    # `seed_all` sets it to the seed.
    found = [each for each in found if each.title != "PYTHONHASHSEED" or (each.target, each.golden) not in seeds]
    known = {(str(each.target), str(each.golden)) for each in found}
    # ``--seed 1`` says what the seed says.
    found += (
        each for each in _differing_arguments(target, golden) if (str(each.target), str(each.golden)) not in known
    )
    return sorted(found, key=lambda each: KINDS.index(each.kind))


def _differing_arguments(target: Environment, golden: Environment) -> Iterator[OutsideDifference]:
    """The arguments that differ; none if one run did not record its command."""
    commands = target.get("command"), golden.get("command")
    if not all(isinstance(each, list) and each for each in commands):
        return
    # Gathering is much to import for the few runs whose commands were recorded.
    from probe.common.environment.gathered import WITHHELD, named

    one, other = (named([str(word) for word in each or ()]) for each in commands)
    for name in dict.fromkeys((*one, *other)):
        pair = one.get(name), other.get(name)
        # A value that is withheld tells nothing.
        if not is_same_value(*pair) and not _OF_OUTPUT.match(name) and not any(WITHHELD in str(each) for each in pair):
            title = f"{_OF_COMMAND}{name}" if name.startswith("argument ") else name
            yield OutsideDifference(COMMAND, f"command.{name}", title, *pair)


def _found(target: Environment, golden: Environment) -> Iterator[OutsideDifference]:
    same_framework = target.get("framework") == golden.get("framework")
    yield from _seeds(target, golden)
    yield from _optimizers(target, golden)
    for kind, section in ((SWITCH, "switches"), (VERSION, "versions"), (DEVICE, "layout")):
        if same_framework:
            for name, one, other in _pairs(target, golden, section):
                which = MINOR if name in _MINOR_SWITCHES else kind
                yield OutsideDifference(
                    which, f"{section}.{name}", _TITLES.get(name, name.replace("_", " ")), one, other
                )
    for name, one, other in _pairs(target, golden, "packages"):
        if same_framework or name not in _FRAMEWORKS:
            yield OutsideDifference(_kind_of_package(name, one, other), f"packages.{name}", name, one, other)
    for name, one, other in _pairs(target, golden, "variables"):
        yield OutsideDifference(VARIABLE, f"variables.{name}", name, one, other)
    for name, title, kind in (
        ("devices", "device", DEVICE),
        ("platform", "platform", DEVICE),
        ("python", "Python", MINOR),
    ):
        one, other = target.get(name), golden.get(name)
        if one != other:
            yield OutsideDifference(kind, name, title, one, other)


def _pairs(target: Environment, golden: Environment, section: str) -> Iterator[tuple[str, Any, Any]]:
    one, other = _section(target, section), _section(golden, section)
    for name in dict.fromkeys((*one, *other)):
        if not is_same_value(one.get(name), other.get(name)):
            yield name, one.get(name), other.get(name)


def _section(environment: Environment, name: str) -> Mapping[str, Any]:
    found = environment.get(name)
    return found if isinstance(found, Mapping) else {}


def _seeds(target: Environment, golden: Environment) -> Iterator[OutsideDifference]:
    """One seed for all generators is one difference; a state that differs is named if the seed is the same.

    A program that sets no seed has another one in each run. This is a cause only if it draws numbers.
    """
    one, other = _section(target, "seeds"), _section(golden, "seeds")
    both = [name for name in one if name in other]
    differing = {
        name: (seed_in_words(one[name]), seed_in_words(other[name])) for name in both if one[name] != other[name]
    }
    if len(set(differing.values())) == 1:
        (pair,) = set(differing.values())
        title = "seed" if len(differing) == len(both) else f"seed of {' and '.join(differing)}"
        yield OutsideDifference(_kind_of_seed(*pair), "seeds", title, *pair)
    else:
        for name, pair in differing.items():
            yield OutsideDifference(_kind_of_seed(*pair), f"seeds.{name}", f"seed of {name}", *pair)
    states, others = _section(target, "random_states"), _section(golden, "random_states")
    for name in states:
        seeded = name in one and one[name] == other.get(name)
        if seeded and name in others and states[name] != others[name]:
            title = f"random state of {name}, from the same seed,"
            yield OutsideDifference(RANDOM, f"random_states.{name}", title, states[name], others[name])


def seed_in_words(seed: Any) -> Any:
    """A seed that a program set; the words for none if the framework drew it."""
    return NOT_SET if isinstance(seed, int) and seed >= _DRAWN else seed


def _kind_of_seed(target: Any, golden: Any) -> str:
    return RANDOM if NOT_SET in (target, golden) else SEED


def _optimizers(target: Environment, golden: Environment) -> Iterator[OutsideDifference]:
    one, other = target.get("optimizers"), golden.get("optimizers")
    if not isinstance(one, list) or not isinstance(other, list):
        return  # no update yet in one of them
    if len(one) != len(other):
        yield OutsideDifference(OPTIMIZER, "optimizers", "number of optimizers", len(one), len(other))
    for number, (mine, theirs) in enumerate(zip(one, other)):
        whose = "optimizer" if len(one) == 1 else f"optimizer {number}"
        if mine.get("type") != theirs.get("type"):
            yield OutsideDifference(OPTIMIZER, f"optimizers.{number}.type", whose, mine.get("type"), theirs.get("type"))
            continue
        yield from _groups(f"optimizers.{number}", mine.get("groups") or [], theirs.get("groups") or [])


def _groups(name: str, one: Sequence[Any], other: Sequence[Any]) -> Iterator[OutsideDifference]:
    if len(one) != len(other):
        yield OutsideDifference(OPTIMIZER, f"{name}.groups", "number of parameter groups", len(one), len(other))
        return
    found: dict[tuple[str, str, str], list[tuple[int, Any, Any]]] = {}
    for number, (mine, theirs) in enumerate(zip(one, other)):
        for option in dict.fromkeys((*mine, *theirs)):
            pair = mine.get(option), theirs.get(option)
            if not is_same_value(*pair):
                found.setdefault((option, str(pair[0]), str(pair[1])), []).append((number, *pair))
    for (option, *_), groups in found.items():
        # Groups that differ in the same way are one difference.
        number, *values = groups[0]
        title = option if len(groups) == len(one) else f"group {', '.join(str(each[0]) for each in groups)}: {option}"
        yield OutsideDifference(OPTIMIZER, f"{name}.groups.{number}.{option}", title, *values)


def _kind_of_package(name: str, one: Any, other: Any) -> str:
    if name not in _NUMERIC:
        return MINOR
    # Of one release, built for another device.
    return MINOR if base_version(one) == base_version(other) else VERSION


def base_version(version: Any) -> str:
    """A version without its local tag: ``2.13.0`` of ``2.13.0+cpu``."""
    return str(version).partition("+")[0]
