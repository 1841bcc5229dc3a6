"""The reason why a call has other bits in a second run of the same program, as far as the dumps tell it.

The list of operations without an order of their own is that of ``torch.use_deterministic_algorithms``; of one that is
named here the dumps prove that it has other bits from the same arguments, and the documentation says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from probe.common.environment.differences import NOT_SET, seed_in_words
from probe.common.environment.environment_file import Environment
from probe.common.operations.function import DOT_PRODUCT, Trait
from probe.common.operations.lookup import function
from probe.compare.twice.first_bits import How, OtherBits

_HASHES = "PYTHONHASHSEED"


class Reason(NamedTuple):
    """The cause of other bits, and what to do about it."""

    cause: str
    next: str = ""


class Environments(NamedTuple):
    """The environments of both runs; empty where a run has none."""

    first: Environment
    second: Environment

    def seeds(self) -> tuple[Any, Any]:
        """The seeds of the framework's generator in words; ``None`` where they are not recorded."""
        found = []
        for each in self:
            seeds = each.get("seeds")
            seeds = seeds if isinstance(seeds, Mapping) else {}
            # The generator of mint has a seed of its own; MindSpore's is there if somebody has set it.
            unset = NOT_SET if "mint" in seeds else None
            found.append(seed_in_words(seeds.get("torch", seeds.get("mindspore", unset))))
        return found[0], found[1]

    def states(self) -> tuple[list[str], list[str]]:
        """The generators in the same, and in another state before the first step."""
        first, second = (each.get("random_states") for each in self)
        if not isinstance(first, Mapping) or not isinstance(second, Mapping):
            return [], []
        same = [name for name in first if first[name] == second.get(name)]
        return same, [name for name in first if name in second and name not in same]

    def is_on(self, switch: str) -> bool:
        """True if a switch is on in the first run."""
        switches = self.first.get("switches")
        return isinstance(switches, Mapping) and switches.get(switch) is True

    @property
    def threads(self) -> int:
        """The threads of a kernel on the CPU; 1 if it is not known."""
        switches = self.first.get("switches")
        found = switches.get("threads") if isinstance(switches, Mapping) else None
        return found if type(found) is int else 1

    @property
    def has_device(self) -> bool:
        """True if the machine has a GPU or an NPU that the framework sees."""
        return bool(self.first.get("devices"))

    def variable(self, name: str) -> str | None:
        """An environment variable of the first run."""
        variables = self.first.get("variables")
        found = variables.get(name) if isinstance(variables, Mapping) else None
        return None if found is None else str(found)


class StepBefore(Enum):
    """The step before the one in which a call has other bits."""

    RECORDED = "recorded"
    NONE = "none"
    """The step is the first one of the program."""
    NOT_RECORDED = "not recorded"


def reason(
    found: OtherBits,
    environments: Environments,
    before: StepBefore = StepBefore.RECORDED,
    elsewhere: Sequence[str] = (),
) -> Reason:
    """The reason of a call with other bits.

    Args:
        found: the call.
        environments: the environments of both runs.
        before: the step before.
        elsewhere: the steps in which the second run has the tensor that it should have here.
    """
    if found.how is How.RESULT:
        return _of_result(found, environments)
    if found.how is How.DRAW:
        return _of_draws(environments)
    if found.how is How.ARGUMENT:
        values = f"{found.item} is {found.values[0]}, and {found.values[1]} in the second run"
        where = "the program computes it outside of tensors, such as from time, a random number, an address or a hash"
        return Reason(f"{values}; {where}", _seed_others(environments))
    if found.how in (How.PARAMETER, How.BUFFER):
        return _of_state(found, environments, before)
    if found.how is How.GRADIENT:
        return Reason(f"the gradient of {found.source} differs, which no recorded call explains")
    if found.how is How.DATA:
        return _of_data(found, environments, elsewhere)
    if found.how is How.UNWRITTEN:
        return Reason(
            f"{found.item} is memory to which nothing was written", "give the memory values: zeros, not empty"
        )
    if found.how is How.ONE_SIDE:
        return Reason(
            "one run alone makes the call: a branch or a length of the program differs", _seed_others(environments)
        )
    if found.how is How.OTHER_MAKER:
        makers = f"{found.values[0]} made {found.item}, and {found.values[1]} in the second run"
        return Reason(f"{makers}: a branch or a length of the program differs", _seed_others(environments))
    if found.source:
        return Reason(f"something that is not recorded changed {found.item} after {found.source} returned it")
    others = _unseeded(environments)
    drawn = f", such as a number of the generators of {others}, which begin in another state" if others else ""
    return Reason(
        f"no recorded call made {found.item}: it is memory to which nothing was written (torch.empty), or what is not "
        f"recorded made it{drawn}",
        "look at the line: which tensor goes in there, and who wrote to it",
    )


def _of_result(found: OtherBits, environments: Environments) -> Reason:
    if found.communicates:
        return Reason(
            "the ranks' values are added in another order, or another rank gave other bits",
            "NCCL_ALGO=Ring and NCCL_PROTO=Simple fix the order for one number of ranks"
            if environments.has_device
            else "",
        )
    called = function(found.function if not found.is_module else found.function.lower())
    trait = Trait.UNORDERED if found.is_forward else Trait.UNORDERED_GRADIENT
    what = f"{called.name}{'' if found.is_forward else ' (its backward)'}"
    if environments.has_device and not environments.is_on("deterministic_algorithms"):
        if "conv" in called.name and environments.is_on("cudnn_benchmark"):
            return Reason(
                f"choice of algorithm: cudnn.benchmark times the algorithms of {what} and takes the fastest",
                "torch.backends.cudnn.benchmark = False, torch.backends.cudnn.deterministic = True",
            )
        if "conv" in called.name:
            return Reason(
                f"choice of algorithm: cuDNN has algorithms of {what} that add in any order",
                "torch.backends.cudnn.deterministic = True",
            )
        if called.name == "scaled_dot_product_attention" and called.has(trait):
            return Reason(
                "choice of algorithm: the backward of flash and memory-efficient attention adds in any order",
                "torch.use_deterministic_algorithms(True), or the math backend",
            )
        if called.has(trait):
            return Reason(
                f"atomics: on this device {what} adds or writes in the order in which its threads come",
                "torch.use_deterministic_algorithms(True); it refuses what has no other algorithm",
            )
        if (
            DOT_PRODUCT in (called.rounding, called.gradient)
            and environments.variable("CUBLAS_WORKSPACE_CONFIG") is None
        ):
            return Reason(
                f"choice of algorithm: products such as {what} may take another one if streams share a workspace",
                "CUBLAS_WORKSPACE_CONFIG=:4096:8 and torch.use_deterministic_algorithms(True)",
            )
    has_threads = not environments.has_device and environments.threads > 1
    if has_threads and called.has(trait) and called.has(Trait.UNORDERED_ON_CPU):
        return Reason(
            f"atomics: {environments.threads} threads of the CPU add or write in {what} in any order",
            "torch.use_deterministic_algorithms(True), or torch.set_num_threads(1)",
        )
    inside = "random numbers, the time, memory to which nothing was written, or threads without an order"
    if found.is_module:
        return Reason(
            f"something inside of the module that is not recorded: {inside}",
            "run it with --level mix, which records the calls inside",
        )
    return Reason(
        f"its kernel, or code inside of the call: {inside}", "msprobe replay with --task tensor runs it alone"
    )


def _of_draws(environments: Environments) -> Reason:
    seeds = environments.seeds()
    if seeds == (NOT_SET, NOT_SET):
        return Reason(
            "unseeded random numbers: the program sets no seed of the framework",
            "call seed_all, torch.manual_seed or mindspore.set_seed at the beginning",
        )
    if seeds[0] != seeds[1]:
        return Reason(f"unseeded random numbers: the seed is {seeds[0]}, and {seeds[1]} in the second run")
    same, other = environments.states()
    of_framework = [name for name in same if name not in ("numpy", "python")]
    if seeds[0] is not None and of_framework:
        return Reason(
            "random numbers: the generators begin in the same state, and then one run draws more values than the "
            "other, or seeds them again; a generator of its own may have no seed",
        )
    if seeds[0] is not None and other:
        return Reason("random numbers: with the same seed, another number of values was drawn before the first step")
    return Reason("random numbers: the dumps do not tell why the generators differ", "seed all generators")


def _of_state(found: OtherBits, environments: Environments, before: StepBefore) -> Reason:
    what = f"{found.how.value} {found.source or found.item}"
    if before is StepBefore.NOT_RECORDED:
        return Reason(
            f"{what} differs already at the beginning of the first recorded step",
            "record the first step of the program, too: --step 0",
        )
    if before is StepBefore.NONE:
        seeds = environments.seeds()
        if seeds == (NOT_SET, NOT_SET):
            return Reason(
                f"unseeded random numbers: {what} begins with other values, and the program sets no seed",
                "call seed_all, torch.manual_seed or mindspore.set_seed before the model is made",
            )
        if seeds[0] != seeds[1]:
            return Reason(f"{what} begins with other values; the seed is {seeds[0]}, and {seeds[1]} in the second run")
        return Reason(
            f"{what} begins with other values, from the same seed: another state of the generators, memory to which "
            "nothing was written, or a file that changed",
        )
    return Reason(
        f"{what} was updated otherwise after the step before, in which everything recorded agrees: the optimizer's "
        "step, the reduction of gradients between ranks, or what the program does between steps",
    )


def _of_data(found: OtherBits, environments: Environments, elsewhere: Sequence[str]) -> Reason:
    if elsewhere:
        text = f"order of the data: the second run has this tensor in {', '.join(elsewhere[:3])}"
    elif found.same_statistics:
        text = "order of the data: the same elements, as far as statistics tell, in another order"
    else:
        text = "the data differ: another order, other random numbers, or another source"
    hints = []
    if environments.seeds()[0] == NOT_SET:
        hints.append("the program sets no seed of the framework, which a shuffling loader draws from")
    unseeded = _unseeded(environments)
    if unseeded:
        hints.append(f"the generators of {unseeded} begin in another state")
    if environments.variable(_HASHES) in (None, "random"):
        hints.append(f"{_HASHES} is not set, so that sets of texts have another order in each process")
    return Reason(f"{text}{''.join(f'; {hint}' for hint in hints)}", "seed all generators, sort what is listed")


def _seed_others(environments: Environments) -> str:
    unseeded = _unseeded(environments)
    return f"seed all generators: those of {unseeded} begin in another state" if unseeded else ""


def _unseeded(environments: Environments) -> str:
    """The generators of every process that begin in another state, in words; empty if there are none."""
    return " and ".join(name for name in environments.states()[1] if name in ("numpy", "python"))
