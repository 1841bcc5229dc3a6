"""An engine that samples at temperature 0.6 and returns log-probabilities of the logits before the temperature.

Reported as https://github.com/huggingface/trl/issues/4159. The trainer divides the logits by the temperature.

python sampling.py
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

TEMPERATURE, SEQUENCES, LENGTH, VOCABULARY = 0.6, 16, 32, 100

torch.manual_seed(0)
policy = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Tanh(), nn.Linear(32, VOCABULARY))
nn.init.normal_(policy[2].weight, std=0.5)
ids = torch.randint(VOCABULARY, (SEQUENCES, 1))
of_engine = []
with torch.no_grad():
    for _ in range(LENGTH):
        logits = policy(ids[:, -1])
        token = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1)
        of_engine.append(logits.log_softmax(-1).gather(-1, token))
        ids = torch.cat((ids, token), 1)
    of_trainer = (policy(ids[:, :-1]) / TEMPERATURE).log_softmax(-1).gather(-1, ids[:, 1:, None])
np.savez(
    "rollout.npz", engine=torch.cat(of_engine, 1).numpy(), trainer=of_trainer[..., 0].numpy(), ids=ids[:, 1:].numpy()
)
