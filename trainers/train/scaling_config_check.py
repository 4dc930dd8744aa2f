"""Checks that the workers of a Train run in a trial fit in the slot of the trial, also in a plain driver function.

Ray Train adds the callbacks that an environment variable names to every run. ``trial_process`` sets the variable in the
process of a trial with Train workers, so that the check does not depend on how the trial builds its trainer.
"""

from typing import Any

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.ray_compat.train_run import ControllerCallback, ControllerError, WorkerGroupCallback, worker_amounts
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import format_ticks, to_ticks

from ..process.current_process import CURRENT


def check_workers(scaling_config: Any, slot: TrialSlot) -> None:
    """Check that the workers of a trainer fit in the trial's slot. Otherwise, they would use more than the plan counts.

    Raises:
        InvalidResourcesError: The trainer requests more workers, or more of a resource for each worker, than planned.
    """
    workers = scaling_config.num_workers
    least, most = workers if isinstance(workers, tuple) else (workers, workers)
    # The maximum is checked only if the policy has a fixed number, because the slot of an elastic policy contains only
    # how far the workers can grow on this cluster.
    exceeds_fixed = slot.max_workers is None and most > slot.num_workers
    if least > slot.num_workers or exceeds_fixed:
        planned = (slot.num_workers, slot.max_workers) if slot.is_elastic else slot.num_workers
        raise InvalidResourcesError(
            f"the trainer has num_workers={workers}, but the policy plans num_workers={planned} for each trial. Set "
            f"num_workers={workers} in the policy, or ScalingConfig(num_workers={planned}) in the trainer"
        )
    amounts, planned_ticks = worker_amounts(scaling_config), slot.worker.ticks
    for name in sorted(amounts):
        amount = amounts[name]
        ticks = int(amount) if name == "memory" else to_ticks(amount)
        has = planned_ticks.get(name, 0)
        # A slot states the type of its devices separately, so its amounts do not contain the resource of the type.
        if ticks > has and not name.startswith(ACCELERATOR_TYPE_PREFIX):
            fields = {"num_workers": workers, "use_gpu": slot.worker.gpus > 0}
            fields["resources_per_worker"] = slot.resources_per_worker
            listed = ", ".join(f"{field}={value!r}" for field, value in fields.items())
            raise InvalidResourcesError(
                f"each worker of the trainer requests {format_ticks(name, ticks)}, but the policy plans "
                f"{format_ticks(name, has)} for it. Write ScalingConfig({listed}) in the trainer, or request more in "
                "the policy"
            )


class SlotExceededError(InvalidResourcesError, ControllerError):  # type: ignore[misc]  # Ray's classes are untyped
    """An ``InvalidResourcesError`` that Ray Train does not wrap, because it is also a ``ControllerError``."""

    @property
    def controller_failure(self) -> Exception:
        """The error that Ray Train uses to decide whether to retry the run."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args)


class SlotCheck(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # Ray's classes are untyped
    """A callback in Train's controller that raises an error if the workers of the run exceed the slot of the trial.

    Ray creates it in the process of the trial, when ``fit`` begins.
    """

    def __init__(self) -> None:
        self._slot: TrialSlot | None = None
        if CURRENT.trial.checks_workers:
            self._slot = CURRENT.trial.slot
        self._scaling_config: Any = None

    def after_controller_start(self, train_run_context: Any) -> None:
        """Remember the workers of the run."""
        self._scaling_config = train_run_context.scaling_config

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Raise a ``SlotExceededError`` before Ray requests workers that exceed the slot."""
        if self._slot is None or self._slot.num_workers == 0 or self._scaling_config is None:
            return
        try:
            check_workers(self._scaling_config, self._slot)
        except InvalidResourcesError as error:
            raise SlotExceededError(*error.args) from error
