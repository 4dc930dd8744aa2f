"""Tells the ``LearningPolicy`` of a run what its trials have used, and plans again when the policy has learned.

The policy contains all statistics. A trial is observed at its second result, when its peaks grow, when it ends, and
when it runs out of memory. The finished trials of a restored run are observed again, so a restored run needs no other
state.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ray.tune.experiment import Trial

from tune_policies.files.writing import put_text
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_observation import TrialNeed, TrialObservation
from tune_policies.policies.learning import LEARNED_FILE, LearningPolicy, use_of_learned
from tune_policies.ray_compat.background import BackgroundTask, answer_within
from tune_policies.ray_compat.tune_request import bundles_of
from tune_policies.values.as_code import as_code
from tune_policies.values.errors import InvalidResourcesError

from ..usage.gpu_memory_records import GPU_MEMORY_KEY, GpuMemoryUsage
from ..usage.process_usage import USAGE_KEY, ProcessUsage
from ..usage.run_facts import need_of
from .limit_by_progress import RunAdmission
from .run_plan import RunPlan
from .trial_record import TrialRecord, request_of

_logger = logging.getLogger(__name__)

_WORTHWHILE: Final = 0.5
"""The smallest part of its resources for which a trial moves to a smaller slot."""

_MUCH: Final = 1.5
"""A user is told another number of trials only if it differs by more than this factor from the last one."""

_SAVE_TIMEOUT_S: Final = 10.0
"""The time in seconds in which the policy must be saved at the end of a run."""


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
        self._told_fitting = 0
        self._told_at_once = 0
        self._keeps_bundles = False
        self._finding = ""
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
        # ``learn`` reports the latest finding in the next step.
        self._finding = self._admission.note_end(trial.trial_id) or self._finding

    def note_progress(
        self, record: TrialRecord, result: Mapping[str, Any], *, num_running: int, num_left: int, now_s: float
    ) -> None:
        """Record the progress of a trial that reports. ``num_left`` trials run or wait."""
        trial_id = record.trial.trial_id
        # Unlike ``time_total_s``, Tune restarts this time in each process.
        trained_s = float(result.get("time_since_restore", 0))
        finding = self._admission.note_result(
            trial_id, num_running=num_running, num_left=num_left, now_s=now_s, trained_s=trained_s
        )
        self._finding = finding or self._finding

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
        # A trial counts for the policy from its second result on (``TrialObservation.counts``). Most later results
        # contain no usage, and then there is nothing new to learn.
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
        # The work since the start of the process is lost, unless the trial resumes from a checkpoint.
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
        # Only memory decides: with too little memory, the trial would fail, and with fewer CPUs it would only be
        # slower.
        used = TrialNeed(host_memory_bytes=seen.used.host_memory_bytes, gpu_memory_bytes=seen.used.gpu_memory_bytes)
        if not _reserved(planned).covers(used):
            return 0.0
        # In a slot with a GPU, the GPU is what other trials wait for.
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
        # The request grows by one factor, so it is the largest factor that any kind of memory needs.
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
                uses_gpu=record.slot is not None and record.slot.trial.gpus > 0,
                used=used_by({**record.usage, **result}, record.slot),
                too_little=seen.too_little,
                is_saved=bool(trial.has_checkpoint()),
                # A restored trial has reported before this run, and a result may not contain its iteration.
                num_steps=max(seen.num_results, int(result.get("training_iteration", 0))),
                elapsed_s=max(0.0, float(result.get("time_total_s", 0))),
                lost_s=seen.lost_s,
                ended=ended,
            )
        except (InvalidResourcesError, TypeError, ValueError) as error:  # a user may report other data under these keys
            _logger.debug("the use of %s cannot be read: %s", trial, error)
            return
        # Each new observation makes the policy learn, so equal observations are left out.
        if observation != self._last.get(trial.trial_id):
            self._last[trial.trial_id] = self._new[trial.trial_id] = observation

    def learn(self) -> str:
        """Let the policy learn from the new observations. Return what a user should know as a sentence, or ``""``."""
        self._save()
        if self._finding:
            finding, self._finding = self._finding, ""
            return self._consequence_of(finding)
        if not self._new:
            return ""
        observations, self._new = list(self._new.values()), {}
        num_allowed = self._run_plan.plan.min_concurrent_trials
        why = self._run_plan.learn(observations)
        policy = self._run_plan.learning
        if not why or policy is None:
            return ""
        self._admission.begin(policy, num_allowed)
        self._unsaved = policy
        self._save()
        num_fitting = self._run_plan.plan.max_concurrent_trials
        # The plan may change with every trial, but a user needs only the larger changes.
        if self._told_fitting / _MUCH <= num_fitting <= self._told_fitting * _MUCH:
            return ""
        self._told_fitting, self._told_at_once = num_fitting, self._num_at_once
        at_once = ""
        if self._num_at_once < num_fitting:
            at_once = f"{num_fitting} would fit, up to {self._num_at_once} run at once"
            if not self._admission.is_effect_known:
                at_once += " until it is known whether more slow down each other"
        return policy.describe(self._run_plan.capacity, self._run_plan.plan, at_once)

    @property
    def _num_at_once(self) -> int:
        """The number of trials that may run at once according to the plan and to their progress."""
        num_fitting = self._run_plan.plan.max_concurrent_trials
        limit = self.most_at_once
        if limit is None:
            return num_fitting
        return min(limit, num_fitting)

    def _consequence_of(self, finding: str) -> str:
        """Return how many trials may run at once because of a finding, unless this is only a few more than before."""
        at_once, before = self._num_at_once, self._told_at_once
        # A higher number is reported only if it is much higher, and a lower number only if it limits the run.
        is_limited = at_once < self._run_plan.plan.max_concurrent_trials
        if at_once <= before * _MUCH and (at_once > before or not is_limited):
            return ""
        self._told_at_once = at_once
        if at_once > before:
            return f"{finding}, so up to {at_once} run at once"
        return f"{finding}, so at most {at_once} run at once"

    def end(self) -> str:
        """Save the policy at the end of the run. Return what was learned and how to use it, as lines, or ``""``."""
        policy = self._run_plan.learning
        if policy is None:
            return ""
        # The plan does not change any more, but the next run can use what the last trials needed.
        policy = policy.learn(self._new.values())
        if policy.needs is None:
            return ""
        if self._storage is None:
            return policy.learned
        self._writing.wait(_SAVE_TIMEOUT_S)  # an earlier policy must not replace this one
        try:
            answer_within(_SAVE_TIMEOUT_S, self._writer(policy))
        except Exception as error:  # noqa: BLE001  # file systems raise various errors
            _logger.warning("%s could not be written: %s", LEARNED_FILE, error)
            return policy.learned
        return f"{policy.learned}\n{self._next_time()}"

    def _next_time(self) -> str:
        """Return how the next run can use the written policy."""
        folder, file_system = self._storage.experiment_fs_path, self._storage.storage_filesystem.type_name
        outer = self._run_plan.policy
        is_wrapped = not isinstance(outer, LearningPolicy)
        file = f"{folder}/{LEARNED_FILE}"
        if file_system != "local":
            # ``load_policy`` reads local files only.
            text = f'next time: load_policy("{LEARNED_FILE}") with the file in {folder} ({file_system})'
        elif is_wrapped:  # the command would apply the policy of the file without the outer one
            text = f"next time: load_policy({as_code(file)})"
        else:
            text = f"next time: {use_of_learned(file)}"
        if is_wrapped:
            text += f", again inside {type(outer).__name__}"
        return text

    def _save(self) -> None:
        """Write the latest policy in the background, unless an earlier one is still being written."""
        if self._storage is None or self._unsaved is None:
            return
        if not self._writing.start(self._writer(self._unsaved)):
            return
        self._unsaved = None
        # The outcome of an earlier write, because the one above has only started.
        failure = self._writing.take()
        if isinstance(failure, Exception):
            _logger.warning("%s could not be written: %s", LEARNED_FILE, failure)

    def _writer(self, policy: LearningPolicy) -> Callable[[], None]:
        """Return a function that writes a policy to the folder of the experiment."""
        file = f"{self._storage.experiment_fs_path}/{LEARNED_FILE}"
        return partial(put_text, self._storage.storage_filesystem, file, policy.to_json())


def too_little_for(record: TrialRecord) -> TrialNeed:
    """Return the memory with which a trial ran out of memory."""
    failure, slot = record.failure, record.slot
    if failure is None or slot is None:
        return TrialNeed()
    head = bundles_of(request_of(record))[0]
    if failure.kind == "host":
        used = (failure.used_bytes or 0) + (failure.requested_bytes or 0)
        # Ray does not enforce the reserved host memory, so the process may have used more.
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
