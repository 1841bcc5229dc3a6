"""The group `Settings` of PyTorch: versions, switches, seeds and hyper-parameters of a running program."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from probe.backends.protocol import AfterUpdate, AroundScaled, BeforeUpdate, DescribedModule
from probe.backends.shared.patching import Handles
from probe.backends.shared.randomness import existing_calls
from probe.backends.shared.settings import (
    SettingsForm,
    after_step,
    around_scaled,
    before_step,
    described_modules,
    dtype_counts,
    module_options,
    plain,
    torch_groups,
)
from probe.backends.shared.training import OutermostCalls
from probe.backends.torch import devices, internals
from probe.backends.torch.guards import compiling, passed_over, unobserved
from probe.backends.torch.hooks.compilers import readable_swap
from probe.backends.torch.hooks.module_hooks import SHAPE
from probe.backends.torch.hooks.training_hooks import scaler_step
from probe.backends.torch.originals import own
from probe.common.dump.frameworks import FRAMEWORKS
from probe.common.environment.gathered import FrameworkFacts
from probe.common.interfaces import Handle, RandomCall

__all__ = [
    "attach_inputs",
    "attach_updates",
    "facts",
    "model_settings",
    "modules",
    "optimizer_groups",
    "seeding_calls",
    "weights",
]

_SWITCHES: dict[str, Callable[[], Any]] = {
    "deterministic_algorithms": lambda: torch.are_deterministic_algorithms_enabled(),
    "deterministic_warn_only": lambda: torch.is_deterministic_algorithms_warn_only_enabled(),
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn_tf32": lambda: torch.backends.cudnn.allow_tf32,
    "matmul_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "float32_matmul_precision": lambda: torch.get_float32_matmul_precision(),
    "float16_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "bfloat16_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "flash_attention": lambda: torch.backends.cuda.flash_sdp_enabled(),  # type: ignore[no-untyped-call]
    "memory_efficient_attention": lambda: torch.backends.cuda.mem_efficient_sdp_enabled(),  # type: ignore[no-untyped-call]
    "math_attention": lambda: torch.backends.cuda.math_sdp_enabled(),  # type: ignore[no-untyped-call]
    "mkldnn": lambda: torch.backends.mkldnn.enabled,
    "default_dtype": lambda: str(torch.get_default_dtype()),
    "threads": lambda: torch.get_num_threads(),
}


def facts() -> FrameworkFacts:
    """The versions, switches and random states of this process."""
    recorded = FRAMEWORKS["torch"].recorded
    return FrameworkFacts(recorded, _versions(), _devices(), _switches(), _layout(), _seeds(), _random_states())


def _versions() -> dict[str, str]:
    """The versions of what torch was built with."""
    found = {name: getattr(torch.version, name, None) for name in ("cuda", "hip", "cann", "xpu")}
    return {name: version for name, version in found.items() if isinstance(version, str)}


def _devices() -> list[str]:
    """The accelerators in use, without starting one."""
    found: list[str] = []
    for _, module in devices.in_use():
        found += [module.get_device_name(index) for index in range(module.device_count())]
    return found


def _switches() -> dict[str, Any]:
    """The switches that can be read; one that raises, since newer settings were mixed with it, is left out."""
    found: dict[str, Any] = {}
    with warnings.catch_warnings():
        # Reading the older names of TF32's switch is warned of.
        warnings.simplefilter("ignore")
        for name, read in _SWITCHES.items():
            try:
                found[name] = plain(read())
            except (AttributeError, RuntimeError):
                continue
    return found


def _layout() -> dict[str, Any]:
    """The default process group."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    return {"world_size": dist.get_world_size(), "backend": str(dist.get_backend())}


def _seeds() -> dict[str, int]:
    """The seed of the generator of the CPU; the accelerators' would start them."""
    return {"torch": torch.default_generator.initial_seed()}


def _random_states() -> dict[str, bytes]:
    """The state of the generator of the CPU; nothing inside of `torch.func`, which wraps new tensors."""
    try:
        return {"torch": unobserved(lambda: own.numpy(torch.default_generator.get_state()).tobytes())}
    except RuntimeError:
        return {}


def attach_updates(
    before: BeforeUpdate, after: AfterUpdate | None = None, scaled: AroundScaled | None = None
) -> Handle:
    """Report the steps of all optimizers; one that is compiled reports none."""

    def attached() -> Iterator[Handle]:
        yield register_optimizer_step_pre_hook(_unless_compiling(before_step(_gradient, before)))
        if after is not None:
            yield register_optimizer_step_post_hook(_unless_compiling(after_step(_gradient, after)))
        if scaled is not None and (step := scaler_step()) is not None:
            yield OutermostCalls(step, readable_swap, passed_over(around_scaled(scaled)))

    return Handles(attached())


_gradient = own.grad.__get__


def _unless_compiling(hook: Callable[..., None]) -> Callable[..., None]:
    @passed_over
    def around_update(*args: Any) -> None:
        if not compiling():
            hook(*args)

    return around_update


def optimizer_groups(optimizer: Any) -> list[dict[str, Any]]:
    """The hyper-parameters of each group; a learning rate that is on an accelerator is not fetched."""
    return torch_groups(optimizer, _number)


def _number(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        is_here = value.device.type == "cpu" and value.numel() == 1 and not internals.is_compiling()
        return unobserved(own.item, value) if is_here else None
    return plain(value)


def model_settings(model: Any) -> Mapping[str, Any]:
    """Options of the modules, and the dtypes of the parameters."""
    dtypes = (str(parameter.dtype).removeprefix("torch.") for _, parameter in weights(model))
    return {**module_options(model.named_modules(), model), **dtype_counts(dtypes)}


def _buffers(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], frozenset[str]]:
    """The buffers that have data of their own, and the names of those that are saved."""
    found = {name: each for name, each in module._buffers.items() if type(each) is torch.Tensor and _has_data(each)}
    return found, frozenset(found) - module._non_persistent_buffers_set


def _has_data(tensor: torch.Tensor) -> bool:
    # FSDP frees the memory of tensors that stay there.
    is_plain = tensor.layout is torch.strided and tensor.device.type != "meta"
    return is_plain and (tensor.numel() == 0 or tensor.untyped_storage().nbytes() > 0)


_FORM = SettingsForm(shape=SHAPE, base=torch.nn.Module, buffers=_buffers)


def modules(models: Any) -> list[DescribedModule]:
    """The settings of every module, with its buffers."""
    described: list[DescribedModule] = unobserved(described_modules, _FORM, models)
    return described


def weights(model: Any) -> Sequence[tuple[str, Any]]:
    """The parameters with their names."""
    return list(model.named_parameters())


def attach_inputs(model: Any, note: Callable[[Sequence[Any], Mapping[str, Any]], None]) -> Handle:
    """Tell `note` of the arguments of each call of `model`."""

    @passed_over
    def before(module: Any, args: Any, kwargs: Any) -> None:
        if not compiling():
            unobserved(note, args, kwargs)

    handle: Handle = model.register_forward_pre_hook(before, with_kwargs=True)
    return handle


def seeding_calls() -> list[RandomCall]:
    """``torch.manual_seed``, which seeds the accelerators as well."""
    return existing_calls("torch", torch, ("manual_seed",), compiling)
