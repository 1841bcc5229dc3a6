"""Keys of verl whose values decide whether a run can be compared, with the values that make it repeatable.

``None`` stands for a key that is shown and has no recommended value. Which keys these are is a judgement.
"""

from __future__ import annotations

from typing import Any

RECOMMENDED: dict[str, Any] = {
    "data/seed": None,
    "data/shuffle": False,
    "data/train_batch_size": None,
    "data/max_prompt_length": None,
    "data/max_response_length": None,
    "actor_rollout_ref/actor/use_dynamic_bsz": False,
    "actor_rollout_ref/actor/shuffle": False,
    "actor_rollout_ref/actor/ppo_mini_batch_size": None,
    "actor_rollout_ref/actor/ppo_micro_batch_size_per_gpu": None,
    "actor_rollout_ref/actor/optim/lr": None,
    "actor_rollout_ref/actor/clip_ratio": None,
    "actor_rollout_ref/actor/entropy_coeff": None,
    "actor_rollout_ref/actor/use_kl_loss": None,
    "actor_rollout_ref/model/use_remove_padding": None,
    "actor_rollout_ref/rollout/temperature": None,
    "actor_rollout_ref/rollout/top_p": None,
    "actor_rollout_ref/rollout/top_k": None,
    "actor_rollout_ref/rollout/n": None,
    "actor_rollout_ref/rollout/seed": None,
    "actor_rollout_ref/rollout/enforce_eager": True,
    "algorithm/adv_estimator": None,
}
