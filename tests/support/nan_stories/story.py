"""A story: a training that goes wrong from its second step on, the record that is at fault, and the right reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Tensor, bool], Tensor]
"""Of a model, a batch, and whether the fault is in this step."""
FINITE = "finite"
"""The reason of a story without a fault."""
REASONS = {
    "range": r"beyond the (range|largest number) of \S*{type}.*|{type}.*beyond",
    "0 * inf": r"\b0 (times|\*|x|·) [+-]?inf|[+-]inf (times|\*|x|·) 0|0 times (minus )?infinity",
    "sum of both signs": r"inf - inf is NaN in the sum of products \((?!.*times)",
    "edges of one": r"not defined for numbers below -1 or above 1",
    "below one": r"not defined for numbers below 1\b",
    "below minus one": r"not defined for numbers below -1\b(?! or)",
    "fraction": r"\(-[\d.]+\) \*\* \S+ is NaN, not defined for a negative number with an exponent that is not whole",
    "no divisor": r"% -?0 is NaN, not defined for a divisor of 0",
    "infinite gradient": r"slope[^:]* in the forward\), and the gradient there is not 0",
    "masked pole": r"in the forward gave -?inf, which a later call left out[^:]*: a gradient of 0 times inf is NaN",
    "weight of 0": r"where a weight is 0, 0 times inf is NaN \(input[.]2 has inf\)",
    "no NaN of another": r"^(?!.*makes a NaN).* is -inf",
    "brackets": r"\(-[\d.]+\) \*\* 2 is",
    "zero alone": r"^(?!.*inf - inf).*\binf times 0 is NaN|^(?!.*inf - inf).*\b0 times -?inf is NaN",
    "inf - inf": r"inf(inity)? (-|minus) [+-]?inf|inf \+ -inf|-inf \+ inf|\+inf and -inf|two infinities",
    "0 / 0": r"0 / 0",
    "division by 0": r"(divi\w+|1 / )[^.]*\b0\b|\b0\b[^.]*divi",
    "domain": r"(not defined|no real|NaN (below|beyond|outside|for|of))[^.]*|negative number[^.]*NaN",
    "pole": r"infinit\w* at|is (minus infinity|-inf|inf|infinity)\b|(-inf|infinity) at",
    "slope": r"(slope|derivative)[^.]*(infinit|inf\b)|infinite (slope|derivative)",
    "hidden domain": r"NaN.*forward.*backward|forward.*NaN.*backward",
    "masked row": r"(row|all|every|everything)[^.]*mask|all[^.]*minus infinity",
    "norm of 0": r"norm[^.]*\b0\b|\b0\b[^.]*norm",
    "mean of nothing": r"mean of (no|nothing)|empty|no element|all targets are ignored",
    "no spread": r"(variance|deviation|std)[^.]*\b0\b|variance of one",
    "data": r"\bdata\b",
    "parameter": r"parameter \S+ is not finite.*optimizer",
    "unwritten": r"never written",
    "equal values": r"equal (eigen|singular)?\s*values|(eigen|singular) ?values[^.]*equal",
}
"""The texts by which a sentence is taken for a reason: loose, since earlier versions are judged by them as well."""


@dataclass(frozen=True)
class Story:
    """One training."""

    loss: Loss
    record: str
    """The pattern of the record at fault, without prefix and number: ``log.forward``."""
    reason: str
    """A key of `REASONS`, several with ``|`` between them, or `FINITE`."""
    type: str = ""
    """The dtype whose range is exceeded."""
    optimizer: Callable[[Any], Any] = lambda parameters: torch.optim.SGD(parameters, lr=0.05)
    scale: float = 0.0
    """The first scale of a gradient scaler; 0 without one."""
    half: bool = False
    """True if the model runs in float16."""
    step: int = 1
    """The step in which it is seen."""

    def is_reason(self, sentence: str) -> bool:
        """True if a sentence tells the right reason; one that calls an input finite which is not never does."""
        patterns = (REASONS[key].replace("{type}", self.type) for key in self.reason.split("|"))
        return any(re.search(pattern, sentence) for pattern in patterns)

    def is_record(self, name: str) -> bool:
        """True if a record is the one at fault."""
        return re.fullmatch(rf"\w+\.(?:{self.record.replace('.', '[.][0-9]+[.]')})", name) is not None


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def batch(step: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def told(stories: dict[str, Story]) -> Callable[..., None]:
    """Adds stories whose loss is the sum of what a call makes of the outputs of the model."""

    def tell(name: str, record: str, reason: str, call: Callable[[Tensor], Tensor], **more: Any) -> None:
        def loss(model: nn.Module, x: Tensor, bad: bool) -> Tensor:
            h = model(x)
            return (call(h) if bad else h).float().sum()

        stories[name] = Story(loss, record, reason, **more)

    return tell


def data(x: Tensor, value: float) -> Tensor:
    """A batch that holds `value`, made by no call that could be recorded."""
    array = x.detach().numpy().copy()
    array.reshape(-1)[3] = value
    return torch.from_numpy(array)
