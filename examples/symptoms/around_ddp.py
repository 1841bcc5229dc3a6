"""Two ranks whose loss comes from the module inside of DistributedDataParallel, so that no gradient is reduced.

Reported as https://github.com/jingyaogong/minimind/issues/853.

torchrun --nproc-per-node 2 around_ddp.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.Generator().manual_seed(dist.get_rank())
for _ in range(2):
    x, labels = torch.randn(8, 16, generator=data), torch.randint(4, (8,), generator=data)
    unwrapped = model.module
    F.cross_entropy(unwrapped(x), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
