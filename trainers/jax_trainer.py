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
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InvalidResourcesError

from .process_setup import limit_options
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
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    jax_config: JaxConfig | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> JaxTrainer:
    """Return Ray's own ``JaxTrainer`` with the scaling config of ``plan``, its limits applied in each worker.

    Several workers form one JAX system, on CPUs too, where Ray does not connect them. On GPUs, each worker sees those
    that Ray gave it. Import JAX in ``train_loop``, not before.

    Arguments and errors are as for ``build_torch_trainer``, but for ``jax_config``: how the workers are connected;
    ``None``: over the devices of the plan, on TPUs as Ray does. Workers that share a GPU are refused.
    ``**trainer_kwargs``: Anything else that ``JaxTrainer`` takes.
    """
    limits = limit_options(isolation, on_void_limit)
    plan = plan_for_run(plan, train_loop_config)
    if jax_config is None and not plan.use_tpu:
        if plan.shares_gpu and plan.most_workers > 1:
            raise InvalidResourcesError(
                f"{plan.most_workers} JAX workers with {plan.per_worker.gpus:g} GPU each share a device, but JAX "
                "connects them by NCCL, which refuses two processes on one: plan num_workers=1, or whole GPUs"
            )
        jax_config = ConnectedJaxConfig()
        platform = "cuda" if plan.use_gpu else "cpu"
        trainer_kwargs = with_worker_env_vars(trainer_kwargs, {"JAX_PLATFORMS": platform})
    trainer_kwargs = {**trainer_kwargs, "jax_config": jax_config}
    return build_trainer(JaxTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
