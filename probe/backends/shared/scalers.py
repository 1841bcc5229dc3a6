"""Gradient scalers with torch's interface, whose `step` lets an optimizer make its step or passes it over."""

from __future__ import annotations

from typing import Any, Callable

from probe.backends.protocol import ScaledUpdate
from probe.backends.shared.patching import argument
from probe.common import log

Note = Callable[[ScaledUpdate], None]


def tell_of(note: Note, of_call: Callable[[], ScaledUpdate | None]) -> None:
    """Tell `note` what `of_call` finds out of a scaler, if that can be found out."""
    try:
        update = of_call()
        if update is not None:
            note(update)
    except Exception as error:
        # A scaler of another kind: what it skips is reported like any other overflow.
        log.warning(
            f"the steps of a gradient scaler cannot be observed ({error}); a step that it skips is reported like any "
            "other overflow.",
            once="scaler",
        )


def of_step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScaledUpdate | None:
    """The update that a scaler's `step` made when called with these arguments; ``None`` if it scales nothing."""
    scaler, optimizer = argument(0, "self", args, kwargs), argument(1, "optimizer", args, kwargs)
    if not scaler.is_enabled():
        return None
    # Its own numbers, one for each device: `update` makes room for new ones and leaves these as they are.
    found = list(scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device", {}).values())
    return ScaledUpdate(lambda: any(float(each) for each in found), lambda: float(scaler.get_scale()))
