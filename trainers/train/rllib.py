"""Sizes an RLlib algorithm with a policy: the number of env runners and learners, and the GPUs of the learners.

RLlib computes the bundles of a trial from these settings, and a run under a policy keeps the bundles.
"""

from typing import TYPE_CHECKING, Any, TypeVar

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.probe.probe_cluster import plan_on_cluster
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.wording import shorten

if TYPE_CHECKING:
    from ray.rllib.algorithms import AlgorithmConfig

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


def size_algorithm(config: ConfigT, policy: ResourcePolicy | TrialPlan) -> ConfigT:
    """Return a copy of an RLlib config whose trials have the resources of a policy.

    Example: ``run("PPO", policy, param_space=size_algorithm(PPOConfig().environment("CartPole-v1"), policy))``. The
    policy's ``num_workers`` is the number of learners. With ``num_workers=0``, the main process is the learner. The
    main process and each learner get one CPU. The trial has one env runner for each remaining CPU. The learners get the
    GPUs.

    Args:
        config: The config of an algorithm with RLlib's new API stack, which is the default.
        policy: A plan, or a policy that creates a plan for the program's cluster.

    Returns:
        The copy, with ``num_env_runners``, ``num_learners``, ``num_cpus_per_learner`` and ``num_gpus_per_learner``.

    Raises:
        InvalidResourcesError: ``config`` is not an ``AlgorithmConfig`` or uses the old API stack, a trial has too few
            CPUs, or a process has several GPUs, or devices that RLlib does not support.
        InfeasibleRequestError: Not even one trial fits.
        ProbeError: The cluster cannot be read.
    """
    if not callable(getattr(config, "env_runners", None)) or not callable(getattr(config, "copy", None)):
        raise InvalidResourcesError(
            f"config must be RLlib's AlgorithmConfig, such as PPOConfig(), got {shorten(config)}"
        )
    if not config.enable_rl_module_and_learner:
        raise InvalidResourcesError(
            "the config uses RLlib's old API stack, which has no learners. Remove api_stack(…) from the config, or "
            "set num_env_runners and num_gpus yourself"
        )
    plan = plan_on_cluster(policy) if isinstance(policy, ResourcePolicy) else policy
    slot = plan.common_slot
    num_learners = slot.num_workers
    if slot.worker.custom:
        raise InvalidResourcesError(
            f"the policy gives a trial {slot.worker}, but RLlib supports no devices except GPUs. Use a policy with "
            "only CPUs and GPUs"
        )
    if slot.worker.gpus > 1:
        raise InvalidResourcesError(
            f"the policy gives a process {slot.worker.gpus:g} GPUs, but an RLlib learner uses at most one. Use gpus=1 "
            f"and num_workers={slot.worker.gpus:g}"
        )
    num_cpus = int(slot.worker.cpus * max(1, num_learners))
    num_env_runners = num_cpus - num_learners - 1  # one CPU is for the main process
    if num_env_runners < 0:
        raise InvalidResourcesError(
            f"the policy gives a trial {num_cpus} whole CPUs, but an RLlib trial with num_workers={num_learners} needs "
            f"{num_learners + 1} (one for the main process, and one for each learner). Increase cpus in the policy"
        )
    # An algorithm freezes its config, but the copy must be changed.
    sized: Any = config.copy(copy_frozen=False)
    sized.env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=1)
    sized.learners(num_learners=num_learners, num_cpus_per_learner=1, num_gpus_per_learner=slot.worker.gpus)
    return sized  # type: ignore[no-any-return]
