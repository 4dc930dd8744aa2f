"""Ray's ``TorchTrainer`` under a plan."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from ray.train.torch import TorchConfig, TorchTrainer

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InvalidResourcesError

from .process_setup import limit_options
from .train_loop import build_trainer, plan_for_run


def build_torch_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    torch_config: TorchConfig | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> TorchTrainer:
    """Return Ray's own ``TorchTrainer`` with the scaling config of ``plan``, its limits applied in each worker.

    Workers that share a GPU talk through gloo: NCCL refuses two processes on one device.

    Args:
        train_loop: What each worker runs; takes the config, or nothing.
        plan: The plan of a policy with ``num_workers`` of 1 or more; or that policy: in a trial it gives the trial's
            slot, and elsewhere it plans on the program's cluster.
        train_loop_config: Passed to ``train_loop``; a plan that goes by configs goes by it.
        torch_config: The process group's settings; its backend may be left open.
        isolation: ``"mps"``: let NVIDIA's MPS daemon hold the workers too, where one answers.
        on_void_limit: What to do where the limit of a share cannot hold, by a setting or as PyTorch sees no GPU: an
            error, or a warning in what the worker reports. ``"warn"`` is also for rehearsals on GPUs that only Ray
            counts: a worker whose PyTorch sees no GPU then trains on the CPU. With ``"warn"`` all workers talk through
            gloo, also on real GPUs, unless ``torch_config`` names a backend.
        **trainer_kwargs: Anything else that ``TorchTrainer`` takes.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` name what the plan sets, workers that
            share a GPU are to use NCCL, or Ray Train is not its version 2.
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
        MemoryLimitError: In a worker: its GPU memory cannot be limited.
    """
    limits = limit_options(isolation, on_void_limit)
    plan = plan_for_run(plan, train_loop_config)
    torch_config = torch_config or TorchConfig()
    if torch_config.backend is None:
        if plan.shares_gpu or on_void_limit == "warn":  # there may be no GPU, which NCCL needs
            torch_config = replace(torch_config, backend="gloo")
    elif plan.shares_gpu and "nccl" in torch_config.backend.lower():  # torch takes it in any case
        raise InvalidResourcesError(
            f"torch_config asks for backend {torch_config.backend!r}, but workers with {plan.per_worker.gpus:g} GPU "
            "share a device, which NCCL refuses: leave the backend out, or plan whole GPUs"
        )
    trainer_kwargs = {**trainer_kwargs, "torch_config": torch_config}
    return build_trainer(TorchTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
