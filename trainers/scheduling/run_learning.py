"""Tells the ``LearningPolicy`` of a run what its trials have used, and plans again when the policy has learned.

The policy contains all statistics. A trial is observed at its second result, when its peaks grow, when it ends, and
when it runs out of memory. The finished trials of a restored run are observed again, so a restored run needs no other
state.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ray.tune.experiment import Trial

from tune_policies.files.writing import put_text
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.policies.learning import LearningPolicy
from tune_policies.ray_compat.background import BackgroundTask
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.values.errors import InvalidResourcesError

from ..usage.advice import need_of
from ..usage.gpu_memory_usage import GPU_MEMORY_KEY, GpuMemoryUsage
from ..usage.process_usage import USAGE_KEY, ProcessUsage
from .run_admission import RunAdmission
from .run_plan import RunPlan
from .trial_record import TrialRecord, request_of

_logger = logging.getLogger(__name__)

_WORTHWHILE: Final = 0.5
"""The smallest part of its resources for which a trial moves to a smaller slot."""


LEARNED_FILE: Final = "learned_policy.json"
"""The file in the folder of an experiment with the policy that the run has learned."""


@dataclass
class _Seen:
    """What the run has noted about a trial beside its usage."""

    num_results: int = 0
    too_little: TrialNeed = field(default_factory=TrialNeed)
    lost_s: float = 0.0


class RunLearning:
    """The observations of one run.

    Args:
        run_plan: The plan of the run, whose policy is or contains a ``LearningPolicy``.
    """

    def __init__(self, run_plan: RunPlan) -> None:
        self._run_plan = run_plan
        self._seen: dict[str, _Seen] = {}
        self._last: dict[str, TrialObservation] = {}
        self._new: dict[str, TrialObservation] = {}
        self._writing: BackgroundTask[None] = BackgroundTask()
        self._storage: Any = None
        self._unsaved: LearningPolicy | None = None
        self._told = ""
        self._keeps_bundles = False
        self._why_no_more = ""
        self._admission = RunAdmission(run_plan.capacity)

    @property
    def most_at_once(self) -> int | None:
        """The number of trials that may run at once according to their progress, or ``None``."""
        return self._admission.limit(self._run_plan.capacity)

    def note_start(self, record: TrialRecord) -> None:
        """Record that a process of a trial starts."""
        self._admission.note_start(record.trial.trial_id)

    def note_stop(self, trial: Trial) -> None:
        """Record that a process of a trial has ended or paused."""
        self._admission.note_end(trial.trial_id)

    def note_progress(self, record: TrialRecord, num_running: int, now_s: float) -> None:
        """Record the progress of a trial that reports."""
        why = self._admission.note_result(record.trial.trial_id, num_running, now_s)
        self._why_no_more = why or self._why_no_more

    def add(self, record: TrialRecord) -> None:
        """Observe a trial of a restored run that has ended, and warn about trials from which nothing is learned."""
        if record.keeps_own_bundles and not self._keeps_bundles:
            self._keeps_bundles = True
            _logger.warning(
                "%s keeps its request of several bundles, because the use of its other processes is not measured, so "
                "the policy does not learn from such trials",
                record.trial,
            )
        self._storage = record.trial.storage
        if record.trial.is_finished() and record.trial.status == Trial.TERMINATED:
            self._observe(record, record.trial.run_metadata.last_result or {}, ended=True)

    def note_result(self, record: TrialRecord, result: Mapping[str, Any]) -> None:
        """Observe a trial that reports its second result, or that has used more than before."""
        seen = self._seen.setdefault(record.trial.trial_id, _Seen())
        seen.num_results += 1
        if seen.num_results == 2 or USAGE_KEY in result or GPU_MEMORY_KEY in result:
            self._observe(record, result)

    def note_end(self, record: TrialRecord) -> None:
        """Observe a trial that has completed."""
        self._observe(record, record.trial.run_metadata.last_result or {}, ended=True)

    def note_too_little(self, record: TrialRecord) -> None:
        """Observe a trial that ran out of memory, and is retried with more."""
        if record.failure is None or record.slot is None:
            return
        seen = self._seen.setdefault(record.trial.trial_id, _Seen())
        seen.too_little |= too_little_for(record)
        result = record.trial.run_metadata.last_result or {}
        since_start_s = float(result.get("time_since_restore", 0))
        if record.trial.has_checkpoint():  # the trial repeats about one step
            since_start_s /= max(1, int(result.get("iterations_since_restore", 1)))
        seen.lost_s += since_start_s
        self._observe(record, result)

    def released_part(self, record: TrialRecord) -> float:
        """Return the part of its resources that a running trial would release in its planned slot, or 0.

        It is 0 if it is less than half, or if the trial has used more than the planned slot has.
        """
        policy, slot = self._run_plan.learning, record.slot
        if policy is None or policy.needs is None or slot is None or record.keeps_own_bundles or slot.num_workers:
            return 0.0
        seen = self._last.get(record.trial.trial_id)
        planned = self._run_plan.plan.slot_for(record.trial.config)
        if seen is None or seen.ran_out or not seen.counts:
            return 0.0
        used = TrialNeed(host_memory_bytes=seen.used.host_memory_bytes, gpu_memory_bytes=seen.used.gpu_memory_bytes)
        if not _reserved(planned).covers(used):
            return 0.0
        has, gets = slot.trial.gpus or slot.trial.cpus, planned.trial.gpus or planned.trial.cpus
        if not has:
            return 0.0
        released = 1 - gets / has
        if released >= _WORTHWHILE:
            return released
        return 0.0

    def retry_growth(self, record: TrialRecord) -> float | None:
        """Return the factor by which the memory of a failed trial grows, or ``None`` if too little is known."""
        policy = self._run_plan.learning
        had = too_little_for(record)
        if policy is None or policy.needs is None or had == TrialNeed():
            return None
        need = policy.needs.need_after(record.trial.config, had)
        growth: float = max(getattr(need, name) / amount for name, amount in had if amount)
        if growth > 1:
            return growth
        return None

    def _observe(self, record: TrialRecord, result: Mapping[str, Any], *, ended: bool = False) -> None:
        if record.slot is None or record.keeps_own_bundles or record.slot.num_workers:
            return  # the processes in other bundles are not measured
        trial = record.trial
        seen = self._seen.setdefault(trial.trial_id, _Seen())
        try:
            observation = TrialObservation(
                trial_id=trial.trial_id,
                config=dict(trial.config),
                reserved=_reserved(record.slot),
                used=used_by({**record.usage, **result}, record.slot),
                too_little=seen.too_little,
                is_saved=bool(trial.has_checkpoint()),
                num_steps=max(seen.num_results, int(result.get("training_iteration", 0))),
                elapsed_s=max(0.0, float(result.get("time_total_s", 0))),
                lost_s=seen.lost_s,
                ended=ended,
            )
        except (InvalidResourcesError, TypeError, ValueError) as error:  # a user may report other data under these keys
            _logger.debug("the use of %s cannot be read: %s", trial, error)
            return
        if observation != self._last.get(trial.trial_id):
            self._last[trial.trial_id] = self._new[trial.trial_id] = observation

    def learn(self) -> str:
        """Let the policy learn from the new observations. Return what a user should know as a sentence, or ``""``."""
        self._save()
        if self._why_no_more:
            why, self._why_no_more = self._why_no_more, ""
            return why
        if not self._new:
            return ""
        observations, self._new = list(self._new.values()), {}
        why = self._run_plan.learn(observations)
        policy = self._run_plan.learning
        if not why or policy is None:
            return ""
        self._admission.begin(policy)
        self._unsaved = policy
        self._save()
        what = why.partition(": ")[2]  # without the number of trials
        is_known, self._told = what == self._told, what
        if is_known:
            return ""
        return why

    def _save(self) -> None:
        """Write the latest policy in the background, unless an earlier one is still being written."""
        if self._storage is None or self._unsaved is None:
            return
        file = f"{self._storage.experiment_fs_path}/{LEARNED_FILE}"
        text = self._unsaved.to_json()
        if not self._writing.start(partial(put_text, self._storage.storage_filesystem, file, text)):
            return
        self._unsaved = None
        failure = self._writing.take()
        if isinstance(failure, Exception):
            _logger.warning("%s could not be written: %s", LEARNED_FILE, failure)


def too_little_for(record: TrialRecord) -> TrialNeed:
    """Return the memory with which a trial ran out of memory."""
    failure, slot = record.failure, record.slot
    if failure is None or slot is None:
        return TrialNeed()
    head = bundles_of(request_of(record))[0]
    if failure.kind == "host":
        used = (failure.used_bytes or 0) + (failure.requested_bytes or 0)
        return TrialNeed(host_memory_bytes=max(int(head.get("memory", 0)), used) or None)
    planned = slot.trial.gpus
    if slot.gpu_memory_bytes is None or not planned:
        return TrialNeed()
    raised = max(1.0, head.get("GPU", 0) / planned)  # an earlier retry may have raised the fraction
    return TrialNeed(gpu_memory_bytes=int(slot.gpu_memory_bytes * raised))


def _reserved(slot: TrialSlot) -> TrialNeed:
    return TrialNeed(
        cpus=slot.trial.cpus, host_memory_bytes=slot.trial.memory_bytes, gpu_memory_bytes=slot.gpu_memory_bytes
    )


def used_by(result: Mapping[str, Any], slot: TrialSlot) -> TrialNeed:
    """Return what the process of a trial has used, according to its result.

    Raises:
        InvalidResourcesError: The result contains other data under the keys of the usage.
    """
    usage = gpu_memory = None
    if USAGE_KEY in result:
        usage = ProcessUsage.from_dict(result[USAGE_KEY])
    if GPU_MEMORY_KEY in result:
        gpu_memory = GpuMemoryUsage.from_dict(result[GPU_MEMORY_KEY])
    return need_of(usage, gpu_memory, slot.trial.gpus)
