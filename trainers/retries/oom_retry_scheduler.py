"""A Tune scheduler that retries a trial with more memory, from its last checkpoint, after an out-of-memory error.

``oom_failure`` classifies the error, and ``oom_retry`` decides how much memory a retry gets. The scheduler records each
retry, and raises the memory of other trials with similar configs to the same amount. ``ray_compat`` contains the code
that depends on Tune's private APIs.
"""

import logging
from collections.abc import Sequence
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.cluster.capacity import NodeCapacity
from tune_policies.ray_compat.gcs import read_cluster_state
from tune_policies.ray_compat.tune_controller import (
    actor_of,
    drop_change,
    install_hook,
    pending_change,
    requeued_by,
    save_experiment,
)
from tune_policies.ray_compat.tune_queue import request_instead
from tune_policies.ray_compat.tune_request import bundles_of, planned_of, reservation_of, with_bundles
from tune_policies.values.errors import InvalidResourcesError, ProbeError
from tune_policies.values.resources import check_gpus
from tune_policies.values.units import is_number
from tune_policies.values.value import check_names

from ..scheduling.wrapping_scheduler import WrappingScheduler, nested_schedulers
from .memory_floor import floor_of, limit_floor
from .oom_failure import classify_failure, remember_failure
from .oom_history import OomRecord, TrialOomHistory, floor_for, memory_settings, unknown_keys
from .oom_retry import RetryDecision, decide_retry, history_after

_logger = logging.getLogger(__name__)


def load_history(trial: Trial) -> TrialOomHistory:
    """Return the history of ``trial``, including the retries before Tune restored it."""
    text = getattr(trial, "oom_history", None)
    try:
        return TrialOomHistory() if text is None else TrialOomHistory.from_json(text)
    except InvalidResourcesError as error:  # another version of this package saved it
        _logger.warning("the out-of-memory history of %s cannot be read and is ignored: %s", trial, error)
        return TrialOomHistory()


def save_history(trial: Trial, history: TrialOomHistory) -> None:
    """Save ``history`` with ``trial``, so that a restored trial keeps it."""
    # When Tune saves the experiment, it saves all attributes of each trial as JSON.
    trial.oom_history = history.to_json()
    trial.invalidate_json_state()


_READ_TIMEOUT_S: Final = 10.0


class OomRetryScheduler(WrappingScheduler):
    """Wraps a Tune scheduler and retries trials with more memory after out-of-memory errors.

    The trial resumes from its latest checkpoint with a larger GPU fraction, or more host memory. For
    ``max_failures`` and ``fail_fast``, the error does not count as a failure. The failure is reported to the inner
    scheduler only if that scheduler is HyperBand, or if memory ran out while the trial saved a checkpoint.

    Later trials with a similar config start with the memory of the retry. A config is similar if none of its whole
    numbers is smaller than in the retried config, and all other entries, except fractional numbers, are equal. If
    Tune restores the experiment, the trials keep this memory.

    If a trial was within its GPU fraction but other trials filled the GPU, it is first retried up to two times with the
    same fraction. If Ray's memory monitor kills a trial that was within its reserved host memory, the trial is retried
    up to two times with the same memory, and then the error counts as a failure.

    Args:
        inner: The scheduler that makes all other decisions. The default is Tune's ``FIFOScheduler``.
        growth: The factor by which a trial's memory grows. A GPU fraction is rounded up to the next fraction 1/k.
        max_gpus: The maximum number of GPUs of a trial. A trial that runs out of memory with this many GPUs fails with
            an error that explains the limit.
        memory_keys: A list of the config keys that affect the memory of a trial, such as ``["model/width"]`` for a
            nested key. The values may be fractional numbers. By default, all keys whose values are not fractional
            numbers are used. The scheduler logs a warning for each key that no config of the first trials contains.

    Raises:
        InvalidResourcesError: ``growth`` is not above 1, ``max_gpus`` is not a valid number of GPUs, or
            ``memory_keys`` is not a list of strings.
    """

    def __init__(
        self,
        inner: TrialScheduler | None = None,
        *,
        growth: float = 2.0,
        max_gpus: float = 1.0,
        memory_keys: Sequence[str] | None = None,
    ) -> None:
        super().__init__(inner)
        self._growth = check_growth(growth)
        self._max_gpus = check_max_gpus(max_gpus)
        self._memory_keys = None if memory_keys is None else check_names(memory_keys, name="memory_keys")
        self._unchecked_keys = self._memory_keys or ()
        self._records: list[OomRecord] = []
        self._planned: dict[Trial, PlacementGroupFactory] = {}
        self._has_new_records = False
        self._nodes: Sequence[NodeCapacity] | None = None
        self._warned: set[Trial] = set()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial. A new or restored trial gets the memory that the records require for its config."""
        if trial in self._planned:  # the trial was requeued
            save_experiment(tune_controller)
            super().on_trial_add(tune_controller, trial)
            return
        resources = trial.placement_group_factory
        # Ray's ResourceChangingScheduler requires equal requests for all trials, so it gets the planned request.
        trial.update_resources(planned_of(resources))
        super().on_trial_add(tune_controller, trial)
        self._planned[trial] = planned_of(trial.placement_group_factory)  # an inner PolicyScheduler may have changed it
        install_hook(trial, self, tune_controller)
        records = load_history(trial).records
        if resources != planned_of(resources):  # the trial was restored, and had more memory than planned
            settings = memory_settings(trial.config, self._memory_keys)
            records = (*records, OomRecord(settings=settings, floor=floor_of(bundles_of(resources))))
        if records and self._nodes is None:
            self._read_nodes()
        self._add_records(records)
        trial.update_resources(self._planned[trial])

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Raise the memory of a trial that this scheduler requeued, and report the failure as the base class does."""
        if requeued_by(trial) is self:
            self._add_records(load_history(trial).records)
            trial.update_resources(self._planned[trial])
        super().on_trial_error(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let the inner scheduler decide, but do not pause a trial for a resource change that has no effect.

        A change has no effect if the trial already has the new resources because its memory was raised.
        """
        decision = super().on_trial_result(tune_controller, trial, result)
        for scheduler in nested_schedulers(self):
            if isinstance(scheduler, ResourceChangingScheduler):
                wanted = pending_change(scheduler, trial)
                if wanted is not None and self._with_needed_memory(trial, wanted) == trial.placement_group_factory:
                    drop_change(scheduler, trial)
                    return str(TrialScheduler.CONTINUE)
        return decision

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Raise the memory of waiting trials according to the newest records, then let the inner scheduler choose."""
        if self._unchecked_keys and self._planned:
            for key, suggestion in unknown_keys(
                self._unchecked_keys, [trial.config for trial in self._planned]
            ).items():
                _logger.warning("no config of the first trials contains the key %r of memory_keys%s", key, suggestion)
            self._unchecked_keys = ()
        if self._records:
            for trial in list(tune_controller.get_live_trials()):
                # While a trial is paused, a scheduler such as PBT may replace its config.
                if trial.status == Trial.PAUSED or (self._has_new_records and trial.status == Trial.PENDING):
                    planned = self._planned[trial]
                    if self._with_needed_memory(trial, planned) == trial.placement_group_factory:
                        continue
                    if trial.status == Trial.PENDING:
                        request_instead(tune_controller, trial, planned)
                    else:
                        trial.update_resources(planned)
        self._has_new_records = False
        return super().choose_trial_to_run(tune_controller)

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Store ``planned`` as the planned request, and return it with the memory that earlier errors require."""
        self._planned[trial] = planned
        return self._with_needed_memory(trial, planned)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether to retry a trial that ran out of memory, and save the memory of the retry with the trial.

        Raises:
            InfeasibleRequestError: The trial ran out of memory and cannot get more memory.
        """
        return self._decide(trial, error).kind != "leave_to_tune"

    def _decide(self, trial: Trial, error: object) -> RetryDecision:
        """Return the decision about a failed trial. If the trial is retried, save the retry with the trial.

        Tune requeues the trial at once, so ``pause_s`` of the decision has no effect yet.

        Raises:
            InfeasibleRequestError: The trial ran out of memory and cannot get more memory.
        """
        out_of_memory = classify_failure(error, actor_of(trial))
        remember_failure(trial, out_of_memory)
        is_oom = out_of_memory.kind != "none"
        nodes = self._read_nodes() if is_oom else None
        history = load_history(trial)
        decision = decide_retry(
            reservation_of(trial.placement_group_factory),
            out_of_memory,
            history,
            growth=self._growth,
            max_gpus=self._max_gpus,
            nodes=nodes,
        )
        if decision.kind != "leave_to_tune":
            _logger.warning("%s %s", trial, decision.reason)
            settings = memory_settings(trial.config, self._memory_keys)
            save_history(trial, history_after(history, decision, out_of_memory, settings))
        elif is_oom:
            _logger.warning("%s ran out of memory, and the error counts as a failure: %s", trial, decision.reason)
        return decision

    def _read_nodes(self) -> Sequence[NodeCapacity] | None:
        """Return the nodes of the cluster, or ``None`` if they cannot be read. Reading may take 10 s."""
        try:
            self._nodes = read_cluster_state(_READ_TIMEOUT_S).nodes
        except ProbeError as error:
            _logger.warning("a trial needs more memory, but the nodes could not be read: %s", error)
            return None
        return self._nodes

    def _add_records(self, records: Sequence[OomRecord]) -> None:
        new = [record for record in records if record not in self._records]
        self._records += new
        self._has_new_records |= bool(new)

    def _with_needed_memory(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        if not self._records:
            return planned
        bundles = bundles_of(planned)
        try:
            needed = floor_for(memory_settings(trial.config, self._memory_keys), self._records)
            floor = limit_floor(needed, reservation_of(planned), max_gpus=self._max_gpus, nodes=self._nodes)
            raised = floor.apply_to(bundles)
        except Exception:  # an error in an object of the config must not stop the other trials
            if trial not in self._warned:
                _logger.exception(
                    "%s gets the planned memory, because comparing its config with earlier configs failed", trial
                )
            self._warned.add(trial)
            return planned
        if floor != needed and trial not in self._warned:
            _logger.warning(
                "%s needs %s according to earlier out-of-memory errors, but gets %s, because max_gpus or the nodes do "
                "not allow more",
                trial,
                needed,
                floor_of(raised),
            )
            self._warned.add(trial)
        return planned if raised == bundles else with_bundles(planned, raised)


def check_growth(growth: float) -> float:
    """Return ``growth`` if it is a number above 1, else raise ``InvalidResourcesError``."""
    if not is_number(growth) or not 1 < growth < float("inf"):
        raise InvalidResourcesError(f"growth must be a number above 1, got {growth!r}")
    return float(growth)


def check_max_gpus(max_gpus: float) -> float:
    """Return ``max_gpus`` if it is a valid number of GPUs above 0, else raise ``InvalidResourcesError``."""
    checked = check_gpus(max_gpus, name="max_gpus")
    if checked == 0:
        raise InvalidResourcesError("max_gpus must be above 0, got 0")
    return checked
