"""Ray's ``TensorflowTrainer`` under a plan."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

from ray.train.tensorflow import TensorflowTrainer

from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.errors import InvalidResourcesError

from .process_setup import limit_options
from .train_loop import build_trainer, plan_for_run, with_worker_env_vars


def build_tensorflow_trainer(
    train_loop: Callable[..., Any],
    *,
    plan: TrialPlan | ResourcePolicy,
    train_loop_config: dict[str, Any] | None = None,
    keras_version: Literal[2, 3] | None = None,
    isolation: Literal["mps"] | None = None,
    on_void_limit: Literal["raise", "warn"] = "raise",
    **trainer_kwargs: Any,
) -> TensorflowTrainer:
    """Return Ray's own ``TensorflowTrainer`` with the scaling config of ``plan``, its limits applied in each worker.

    ``model.fit`` of Keras 3 fails under ``MultiWorkerMirroredStrategy`` with several workers. So there, ``tf.keras`` is
    Keras 2 in the workers, from the package ``tf_keras``.

    TensorFlow's collectives use NCCL only where the strategy in ``train_loop`` asks for it by name
    (``CommunicationImplementation.NCCL``); workers that share a GPU must not.

    Arguments and errors are as for ``build_torch_trainer``, but for ``keras_version``: what ``tf.keras`` is in the
    workers. 3 is right for several workers whose loop does not call ``model.fit``; 2 needs ``tf_keras`` where the
    workers run, which is then not checked. ``None``: 2 for several workers, and for one what it is without Ray.
    ``**trainer_kwargs``: Anything else that ``TensorflowTrainer`` takes.
    """
    limits = limit_options(isolation, on_void_limit)
    plan = plan_for_run(plan, train_loop_config)
    if keras_version not in (None, 2, 3):
        raise InvalidResourcesError(f"keras_version must be 2, 3 or None, got {keras_version!r}")
    if keras_version is None and plan.most_workers > 1:
        if find_spec("tf_keras") is None:
            raise InvalidResourcesError(
                f"model.fit with {plan.most_workers} workers needs Keras 2, as it fails in Keras 3: pip install "
                "tf_keras, in TensorFlow's version. If your loop does not call model.fit, pass keras_version=3. If "
                "only the workers have tf_keras, pass keras_version=2"
            )
        keras_version = 2
    if keras_version is not None:
        legacy = "1" if keras_version == 2 else "0"
        trainer_kwargs = with_worker_env_vars(trainer_kwargs, {"TF_USE_LEGACY_KERAS": legacy})
    return build_trainer(TensorflowTrainer, train_loop, plan, train_loop_config, limits, trainer_kwargs)
