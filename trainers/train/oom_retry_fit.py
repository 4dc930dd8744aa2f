"""Runs a Train run again with more memory for each worker when its workers run out."""

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from ray.train import Result

from tune_policies.oom import classify_oom
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.probe.probe_cluster import plan_on_cluster
from tune_policies.ray_compat.gcs import read_cluster_state
from tune_policies.tune.oom_retry import larger_plan
from tune_policies.tune.oom_retry_scheduler import check_growth, check_max_gpus
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError

from .train_loop import check_train_v2

_logger = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 10.0


class _Trainer(Protocol):
    def fit(self) -> Any:
        """Train, and return the result."""


def fit_with_oom_retry(
    build_trainer: Callable[[TrialPlan], _Trainer],
    plan: TrialPlan | ResourcePolicy,
    *,
    growth: float = 2.0,
    max_gpus: float = 1.0,
) -> Result:
    """Run a trainer; when its workers run out of memory, run it again with more for each.

    Ray Train resumes from the latest checkpoint of a run with the same name and storage, so give both:
    ``RunConfig(name=…, storage_path=…)``. Without a name, each run starts anew.

    Leave the run's ``max_failures`` at 0: Ray Train would retry with the share that was too small. To retry other
    failures, call this function again with the same name and storage.

    Args:
        build_trainer: Returns the trainer for a plan, such as ``lambda plan: build_torch_trainer(loop, plan=plan)``.
        plan: The plan to begin with; it has Train workers. Or a policy, which then plans on the program's cluster.
        growth: The factor by which a worker's memory grows. A share is rounded up to the next equal part of a GPU.
        max_gpus: The most GPUs of a worker.

    Returns:
        What the last ``fit()`` returned.

    Raises:
        InfeasibleRequestError: The workers ran out of memory, and there is no more for them. Its cause is the error of
            the run.
        InvalidResourcesError: The plan has no Train workers, or goes by configs; ``growth`` is not above 1, or
            ``max_gpus`` not above 0; the trainer has a ``max_failures``, or is of Ray Train's version 1.
        ProbeError: The workers ran out of memory, and the nodes cannot be read.
        Exception: Any other failure of the run, as Ray raised it.
    """
    if isinstance(plan, ResourcePolicy):
        plan = plan_on_cluster(plan)
    if plan.num_workers == 0:
        raise InvalidResourcesError("the plan has num_workers=0: give the policy num_workers=1 or more")
    if plan.by_config is not None:
        raise InvalidResourcesError(
            "the plan gives each run what its config needs, so which share grows is not known: pass "
            "plan.for_config(config), with the config of the training loop"
        )
    growth, max_gpus = check_growth(growth), check_max_gpus(max_gpus)
    while True:
        trainer = build_trainer(plan)
        _check_trainer(trainer)
        try:
            return trainer.fit()
        except Exception as error:
            found = classify_oom(error)
            if found.kind == "none":
                raise
            nodes = read_cluster_state(_READ_TIMEOUT_S).nodes
            try:
                larger = larger_plan(plan, found, growth=growth, max_gpus=max_gpus, nodes=nodes)
            except InfeasibleRequestError as infeasible:
                raise infeasible from error
            _logger.warning("the workers ran out of memory: from %s to %s each", plan.per_worker, larger.per_worker)
            plan = larger


def _check_trainer(trainer: object) -> None:
    of_ray = next((cls for cls in type(trainer).__mro__ if cls.__module__.startswith("ray.train.")), None)
    if of_ray is not None:
        check_train_v2(of_ray)
    failure_config = getattr(getattr(trainer, "run_config", None), "failure_config", None)
    max_failures = getattr(failure_config, "max_failures", 0)
    if max_failures != 0:
        raise InvalidResourcesError(
            f"the trainer has FailureConfig(max_failures={max_failures}), so Ray Train retries workers that ran out of "
            "memory with the share that was too small: leave it at 0; to retry other failures, call "
            "fit_with_oom_retry again with the same name and storage"
        )
