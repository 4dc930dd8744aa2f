"""Builds Ray Train's trainers from a plan. Each function imports only its own framework."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InvalidResourcesError

from ..process.process_setup import limit_options
from .build_trainer import build_trainer, plan_for_run, with_worker_env_vars

if TYPE_CHECKING:
    from ray.train.lightgbm import LightGBMTrainer
    from ray.train.tensorflow import TensorflowTrainer
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.jax import JaxConfig, JaxTrainer
    from ray.train.xgboost import XGBoostTrainer


def build_torch_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    torch_config: "TorchConfig | None" = None,
    isolation: Literal["mps"] | None = None,
    on_unenforced_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> "TorchTrainer":
    """Return Ray's own ``TorchTrainer`` with the scaling config of ``plan``. Each worker enforces the plan's limits.

    Workers that share a GPU communicate through gloo, because NCCL does not support several processes on one device.

    Args:
        train_loop: The function that each worker runs. It takes the config as its argument, or no arguments.
        plan: A plan with Train workers, or a policy. In a trial, the plan of the trial's slot is used instead of a
            policy. Elsewhere, the policy creates a plan for the cluster that the program is connected to.
        train_loop_config: The config for ``train_loop``. If the plan has different resources for each config, the
            resources for this config are used.
        torch_config: The settings of the process group. The backend is optional.
        isolation: Pass ``"mps"`` to also limit the workers with NVIDIA's MPS daemon, if the daemon is running.
        on_unenforced_limit: Whether to raise an error or add a warning to the worker's report if a memory limit cannot
            be enforced. For example, a setting may disable the limit, or PyTorch may detect no GPU. With ``"warn"``, or
            if the plan states that the GPUs are simulated, a worker without a real GPU trains on the CPU, and all
            workers communicate through gloo unless ``torch_config`` sets a backend.
        **trainer_kwargs: Other arguments of ``TorchTrainer``.

    Raises:
        InvalidResourcesError: The plan has no Train workers, ``trainer_kwargs`` conflict with the plan, workers that
            share a GPU would use NCCL, or Ray Train is not version 2.
        InfeasibleRequestError: The config needs more GPU memory than any device has.
        MemoryLimitError: In a worker, the GPU memory cannot be limited.
    """
    from ray.train.torch import TorchConfig, TorchTrainer

    plan = plan_for_run(plan, train_loop_config)
    torch_config = torch_config or TorchConfig()
    if torch_config.backend is None:
        slot = plan.common_slot
        # NCCL requires a GPU for each worker.
        if slot.has_gpu_fraction or slot.has_simulated_gpus or on_unenforced_limit == "warn":
            torch_config = replace(torch_config, backend="gloo")
    # A backend may be a list for each device type, such as ``cpu:gloo,cuda:nccl``.
    elif plan.common_slot.has_gpu_fraction and "nccl" in torch_config.backend.lower():  # PyTorch ignores case
        raise InvalidResourcesError(
            f"torch_config requests the backend {torch_config.backend!r}, but workers with {plan.worker.gpus:g} GPU "
            "share a device, and NCCL does not support several processes on one device. Omit the backend, or plan "
            "whole GPUs"
        )
    trainer_kwargs = {**trainer_kwargs, "torch_config": torch_config}
    limits = limit_options(isolation, on_unenforced_limit)
    return build_trainer(TorchTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)


def build_tensorflow_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    keras_version: Literal[2, 3] | None = None,
    isolation: Literal["mps"] | None = None,
    on_unenforced_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> "TensorflowTrainer":
    """Return Ray's ``TensorflowTrainer`` with the scaling config of ``plan``. Each worker enforces the plan's limits.

    ``model.fit`` of Keras 3 fails under ``MultiWorkerMirroredStrategy`` with several workers. Therefore, with several
    workers, ``tf.keras`` is Keras 2 from the package ``tf_keras``. TensorFlow's collectives use NCCL only if the
    strategy in ``train_loop`` requests it (``CommunicationImplementation.NCCL``). Do not request NCCL for workers that
    share a GPU.

    ``keras_version`` is the version of ``tf.keras`` in the workers. The default is 2 for several workers, and
    TensorFlow's own version for one worker. Pass 3 if several workers run a loop that does not call ``model.fit``. If
    ``tf_keras`` is installed only on the workers, pass 2 to skip the check for it in this process. The other arguments
    and the errors are the same as for ``build_torch_trainer``.
    ``**trainer_kwargs``: Other arguments of ``TensorflowTrainer``.
    """
    from ray.train.tensorflow import TensorflowTrainer

    plan = plan_for_run(plan, train_loop_config)
    if keras_version not in (None, 2, 3):
        raise InvalidResourcesError(f"keras_version must be 2, 3 or None, got {keras_version!r}")
    # An elastic run may grow, so its maximum number of workers decides.
    if keras_version is None and plan.most_workers > 1:
        if find_spec("tf_keras") is None:
            raise InvalidResourcesError(
                f"model.fit with {plan.most_workers} workers requires Keras 2, because it fails with Keras 3. Install "
                "the tf_keras version that matches TensorFlow. If your loop does not call model.fit, pass "
                "keras_version=3. If tf_keras is installed only on the workers, pass keras_version=2"
            )
        keras_version = 2
    if keras_version is not None:
        legacy = "1" if keras_version == 2 else "0"
        trainer_kwargs = with_worker_env_vars(trainer_kwargs, {"TF_USE_LEGACY_KERAS": legacy})
    limits = limit_options(isolation, on_unenforced_limit)
    return build_trainer(TensorflowTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)


def build_jax_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    jax_config: "JaxConfig | None" = None,
    isolation: Literal["mps"] | None = None,
    on_unenforced_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> "JaxTrainer":
    """Return Ray's own ``JaxTrainer`` with the scaling config of ``plan``. Each worker enforces the plan's limits.

    Several workers are connected to one distributed JAX system, even on CPUs, where Ray itself does not connect them.
    On GPUs, each worker uses only its own devices. Import JAX in ``train_loop``, not earlier.

    ``jax_config`` defines how the workers are connected. By default, workers on CPUs and GPUs are connected as
    described above, and workers on TPUs are connected by Ray's own config. JAX workers cannot share a GPU. The other
    arguments and the errors are the same as for ``build_torch_trainer``.
    ``**trainer_kwargs``: Other arguments of ``JaxTrainer``.
    """
    from ray.train.v2.jax import JaxTrainer

    from .jax_workers import ConnectedJaxConfig

    plan = plan_for_run(plan, train_loop_config)
    if jax_config is None and not plan.worker.custom.get("TPU", 0) > 0:
        if plan.common_slot.has_gpu_fraction and plan.most_workers > 1:
            raise InvalidResourcesError(
                f"{plan.most_workers} JAX workers with {plan.worker.gpus:g} GPU each share a device, but JAX connects "
                "them with NCCL, which does not support several processes on one device. Plan num_workers=1, or whole "
                "GPUs"
            )
        jax_config = ConnectedJaxConfig()
        # Without this variable, JAX may choose another back end that is installed on the node.
        platform = "cuda" if plan.use_gpu else "cpu"
        trainer_kwargs = with_worker_env_vars(trainer_kwargs, {"JAX_PLATFORMS": platform})
    trainer_kwargs = {**trainer_kwargs, "jax_config": jax_config}
    limits = limit_options(isolation, on_unenforced_limit)
    return build_trainer(JaxTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)


def build_xgboost_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    isolation: Literal["mps"] | None = None,
    on_unenforced_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> "XGBoostTrainer":
    """Return Ray's own ``XGBoostTrainer`` with the scaling config of ``plan``. Each worker uses the plan's resources.

    XGBoost uses one thread for each CPU of a worker, unless you set its parameter ``nthread``. The GPU memory of
    XGBoost cannot be limited, so workers that share a GPU list XGBoost under ``not_enforceable`` in their reports.

    The arguments and errors are the same as for ``build_torch_trainer``.
    ``**trainer_kwargs``: Other arguments of ``XGBoostTrainer``.
    """
    from ray.train.xgboost import XGBoostTrainer

    plan, limits = plan_for_run(plan, train_loop_config), limit_options(isolation, on_unenforced_limit)
    return build_trainer(XGBoostTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)


def build_lightgbm_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    isolation: Literal["mps"] | None = None,
    on_unenforced_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> "LightGBMTrainer":
    """Return Ray's own ``LightGBMTrainer`` with the scaling config of ``plan``. Each worker uses the plan's resources.

    LightGBM uses one thread for each CPU of a worker, unless you set its parameter ``num_threads``. The GPU memory of
    LightGBM cannot be limited, so workers that share a GPU list LightGBM under ``not_enforceable`` in their reports.

    The arguments and errors are the same as for ``build_torch_trainer``.
    ``**trainer_kwargs``: Other arguments of ``LightGBMTrainer``.
    """
    from ray.train.lightgbm import LightGBMTrainer

    plan, limits = plan_for_run(plan, train_loop_config), limit_options(isolation, on_unenforced_limit)
    return build_trainer(LightGBMTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
