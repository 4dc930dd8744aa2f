"""Ray's ``JaxTrainer`` under a plan.

Ray's own back end does not connect workers on CPUs. On GPUs it lets every worker see the first devices of its node,
so two workers of a node would compute on the same one.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.train.backend import Backend
from ray.train.v2.jax import JaxConfig, JaxTrainer

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError

from .process import limit_options
from .train_loop import build_trainer, plan_for_run, with_worker_env_vars


@dataclass
class ConnectedJaxConfig(JaxConfig):  # type: ignore[misc]  # Ray's classes are untyped
    """Connects several workers before their loops run, and leaves a single worker alone."""

    @property
    def backend_cls(self) -> type[Backend]:
        """The backend that Ray calls when the workers have started."""
        return _ConnectingBackend


class _ConnectingBackend(Backend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: ConnectedJaxConfig) -> None:
        num_workers = len(worker_group)
        if num_workers == 1:
            return
        address = worker_group.execute_single(0, _free_address)
        ray.get(  # needs no timeout of its own: JAX waits for the others for a limited time
            [
                worker_group.execute_single_async(rank, _connect, address, num_workers, rank)
                for rank in range(num_workers)
            ]
        )


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("", 0))
        return f"{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"


def _connect(address: str, num_workers: int, rank: int) -> None:
    import jax

    jax.distributed.initialize(address, num_workers, rank)


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

    Several workers form one JAX system, on CPUs too, where Ray does not connect them. On GPUs, each worker sees those
    that Ray gave it. Import JAX in ``train_loop``, not before.

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
    plan = plan_for_run(plan, train_loop_config)
    if jax_config is None and not plan.use_tpu:
        _check_no_shared_gpus(plan)
        jax_config = ConnectedJaxConfig()
        platform = "cuda" if plan.use_gpu else "cpu"
        trainer_kwargs = with_worker_env_vars(trainer_kwargs, {"JAX_PLATFORMS": platform})
    trainer_kwargs = {**trainer_kwargs, "jax_config": jax_config}
    return build_trainer(JaxTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)


def _check_no_shared_gpus(plan: TrialPlan) -> None:
    if plan.shares_gpu and plan.most_workers > 1:
        raise InvalidResourcesError(
            f"{plan.most_workers} JAX workers with {plan.per_worker.gpus:g} GPU each share a device, but JAX connects "
            "them by NCCL, which refuses two processes on one: plan num_workers=1, or whole GPUs"
        )
