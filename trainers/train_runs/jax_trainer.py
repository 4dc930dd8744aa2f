"""Ray's ``JaxTrainer`` under a plan."""

from collections.abc import Callable
from typing import Any, Literal

from ray.train.v2.jax import JaxConfig, JaxTrainer

from tune_policies.errors import InvalidResourcesError
from tune_policies.plan import TrialPlan

from ..process import limit_options
from .jax_workers import ConnectedJaxConfig
from .train_loop import build_trainer, plan_of_run, with_worker_variables


def build_jax_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan,
    train_loop_config: dict[str, Any] | None = None,
    jax_config: JaxConfig | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> JaxTrainer:
    """Return Ray's own ``JaxTrainer`` with the scaling config of ``plan``, its limits applied in each worker.

    Several workers are one JAX, on CPUs too, where Ray leaves them apart; on GPUs each sees those that Ray gave it.
    Import JAX in ``train_loop``, not before.

    Args:
        train_loop: What each worker runs; takes the config, or nothing.
        plan: The plan of a policy with ``num_workers`` of 1 or more.
        train_loop_config: Passed to ``train_loop``; a plan that goes by configs goes by it.
        jax_config: How the workers are connected; ``None``: over the devices of the plan, on TPUs as Ray does.
        isolation: ``"mps"``: let NVIDIA's MPS daemon hold the workers too, where one answers.
        on_void_limit: What to do about a setting that turns the memory limit into none: an error, or a warning in what
            the worker reports.
        **trainer_kwargs: Anything else that ``JaxTrainer`` takes.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` name what the plan sets, several
            workers of a trial share GPUs, or Ray Train is not its version 2.
        InfeasibleRequestError: The config is known to need more GPU memory than any device has.
        MemoryLimitError: In a worker: its GPU memory cannot be limited.
    """
    limits = limit_options(isolation, on_void_limit)
    plan = plan_of_run(plan, train_loop_config)
    if jax_config is None and not plan.use_tpu:
        _check_devices(plan)
        jax_config = ConnectedJaxConfig()
        platform = "cuda" if plan.use_gpu else "cpu"
        trainer_kwargs = with_worker_variables(trainer_kwargs, {"JAX_PLATFORMS": platform})
    trainer_kwargs = {**trainer_kwargs, "jax_config": jax_config}
    return build_trainer(JaxTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)


def _check_devices(plan: TrialPlan) -> None:
    if plan.shares_gpu and plan.most_workers > 1:
        raise InvalidResourcesError(
            f"{plan.most_workers} JAX workers with {plan.per_worker.gpus:g} GPU each share a device, but JAX connects "
            "them by NCCL, which refuses two processes on one: plan num_workers=1, or whole GPUs"
        )
