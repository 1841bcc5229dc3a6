"""The parameters of an optimizer around its step, as far as frameworks have the groups of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from probe.backends.protocol import AfterUpdate, AroundScaled, BeforeUpdate, OptimizedParameter
from probe.backends.shared.patching import Record, argument


def torch_parameters(optimizer: Any, gradient_of: Callable[[Any], Any] | None) -> list[OptimizedParameter]:
    """The parameters of an optimizer with the groups and the state of torch.

    Args:
        optimizer: Whose parameters these are.
        gradient_of: The gradient of a parameter; ``None`` if the gradients are not known yet.
    """
    found: list[OptimizedParameter] = []
    state: Any = getattr(optimizer, "state", None)
    states: Mapping[Any, Any] = state if isinstance(state, Mapping) else {}
    for index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names") or ()
        for at, parameter in enumerate(group["params"]):
            kept = states.get(parameter)
            found.append(
                OptimizedParameter(
                    index,
                    str(names[at]) if at < len(names) else "",
                    parameter,
                    None if gradient_of is None else gradient_of(parameter),
                    kept.get("step") if isinstance(kept, Mapping) else None,
                )
            )
    return found


def before_step(gradient_of: Callable[[Any], Any], before: BeforeUpdate) -> Callable[..., None]:
    """The hook before the steps of optimizers that have the hooks of torch.

    The gradients are read here, unless they are not known before the step: a closure computes them, a hook of the
    optimizer itself may change them, or a fused optimizer divides them by the scale of a gradient scaler.
    """

    def enter(optimizer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        def parameters() -> list[OptimizedParameter]:
            # The optimizer itself is the first of the arguments.
            evaluates = callable(argument(1, "closure", args, kwargs))
            scales = getattr(optimizer, "grad_scale", None) is not None
            is_known = not (evaluates or scales or getattr(optimizer, "_optimizer_step_pre_hooks", None))
            return torch_parameters(optimizer, gradient_of if is_known else None)

        before(optimizer, parameters)

    return enter


def after_step(gradient_of: Callable[[Any], Any], after: AfterUpdate) -> Callable[..., None]:
    """The hook after the steps of optimizers that have the hooks of torch."""

    def leave(optimizer: Any, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        after(optimizer, lambda: torch_parameters(optimizer, gradient_of), found_inf)

    return leave


def around_scaled(scaled: AroundScaled) -> Record:
    """The function that is called in the place of ``GradScaler.step``."""

    def step(body: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        optimizer = argument(1, "optimizer", args, kwargs)
        scaled(optimizer, True)
        result = body(*args, **kwargs)
        scaled(optimizer, False)
        return result

    return step
