"""A step with calls of several kinds in three dtypes, collected at level L1."""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F

from msprobe.pytorch import PrecisionDebugger, seed_all


def calls(dtype: torch.dtype) -> torch.Tensor:
    """Elementwise functions, products, norms, a loss, in-place writes, several outputs."""
    x = torch.randn(8, 24).to(dtype).requires_grad_()
    y = (torch.randn(8, 24) + 3).to(dtype).requires_grad_()
    weight, bias = torch.randn(16, 24).to(dtype).requires_grad_(), torch.randn(16).to(dtype).requires_grad_()
    gain = torch.rand(24).to(dtype).requires_grad_()
    targets = torch.randint(0, 16, (8,))
    hidden = F.linear(x, weight, bias)
    written = x.clone()
    written.mul_(0.5)
    written[:, 1:3] = 1.0
    ordered = torch.sort(y, -1)
    spread, centre = torch.var_mean(y, -1)
    outputs = [
        F.silu(x), F.layer_norm(x, (24,), gain), torch.matmul(x, weight.t()), x.mul(y), F.softmax(hidden, -1), written,
        ordered[0], spread, centre, torch.where(x > 0, x, y), F.gelu(hidden), F.embedding(targets, weight),
        torch.cumsum(x, -1), F.cross_entropy(hidden.float(), targets), torch.cat([x, y]).mean(0), F.dropout(x, 0.3),
    ]  # fmt: skip
    return sum((output.float().sin().sum() for output in outputs), torch.zeros(()))


def main(folder: str, task: str) -> None:
    seed_all(7)
    debugger = PrecisionDebugger(dump_path=folder, task=task, level="L1")
    debugger.start()
    loss = sum((calls(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)), torch.zeros(()))
    loss.backward()
    debugger.stop()
    debugger.step()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
