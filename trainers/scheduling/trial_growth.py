"""Restarts running trials from their checkpoints with more or fewer resources, if the restart pays.

When no trial waits, a ``GrowingPolicy`` decides which running trials get more. Such a trial is paused after its next
result, and then requests more resources, as if Ray's ``ResourceChangingScheduler`` had changed its request. Under a
``LearningPolicy``, a trial that reserves far more than the policy has learned moves to a smaller slot if trials wait.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.policies.growing import GrowingPolicy, GrowingTrial, Growth
from tune_policies.ray_compat.tune_request import bundles_of, with_bundles
from tune_policies.ray_compat.tune_schedulers import actor_of
from tune_policies.values.resources import Resources, amount_of

from .choose_slots import RunSlots
from .slot_board import SlotAssignment
from .trial_record import TrialRecord, request_of

_logger = logging.getLogger(__name__)

_SHRINKING_PAYS: Final = 2.0
"""A smaller slot must release the resources for at least this multiple of the time that a restart takes."""

_INTERVAL_S: Final = 1.0
"""The minimum time between two decisions, in seconds."""

_GRANT_TIMEOUT_S: Final = 30.0
"""The time in which Ray must grant the request of a trial that has grown, in seconds.

The process that the trial had before needs a part of this time to end. The request is not granted if another program
uses the free resources, or if their node was lost.
"""


@dataclass
class _SlotProgress:
    """The progress of a trial in its current slot.

    Attributes:
        started_s: The time at which the trial got the slot, in seconds.
        amount: The GPUs of the slot, or its CPUs if it has no GPU.
        is_restart: Whether the trial was restarted to grow.
        first_s: The time of the first result in the slot, or ``None``.
        num_steps: The number of results after the first one.
        step_s: The mean time between results in the slot, or ``None`` before the second result.
        iteration: The total number of results of the trial.
        left_iterations: The number of results until the trial ends, or ``None`` if it is not known.
        speeds: The results per second at each amount that the trial has had.
    """

    started_s: float
    amount: float
    is_restart: bool = False
    first_s: float | None = None
    num_steps: int = 0
    step_s: float | None = None
    iteration: int = 0
    left_iterations: float | None = None
    speeds: dict[float, float] = field(default_factory=dict)


class TrialGrowth:
    """The growth of the trials of one run.

    Args:
        policy: The policy that decides, or ``None`` if trials only move to smaller slots.
        longest_trials: The value of each time attribute at which the inner scheduler stops every trial.
    """

    def __init__(self, policy: GrowingPolicy | None, longest_trials: Mapping[str, float]) -> None:
        self.policy = policy
        self._longest_trials = longest_trials
        self._progress: dict[Trial, _SlotProgress] = {}
        self._ended_at: list[int] = []
        self._targets: dict[Trial, Growth] = {}
        self._pausing: set[Trial] = set()
        self._grown: set[Trial] = set()
        self._refused: dict[Trial, float] = {}
        self._restart_s: float | None = None
        self._is_restart_measured = False
        self._next_at_s = 0.0
        self._why_not = ""

    # Events.

    def note_start(self, trial: Trial, request: PlacementGroupFactory, now_s: float) -> None:
        """Record that a trial starts with a request."""
        self._pausing.discard(trial)  # its process may have died before it paused
        before = self._progress.get(trial)
        amount = _amount_of(request)
        # A trial that another scheduler has paused resumes with the same amount.
        progress = _SlotProgress(now_s, amount, is_restart=before is not None and amount != before.amount)
        if before is not None:
            # The speeds at the earlier amounts show how well the trial uses more resources (``GrowingTrial.scaling``).
            progress.speeds, progress.iteration = before.speeds, before.iteration
        self._progress[trial] = progress

    def note_result(self, trial: Trial, result: Mapping[str, Any], now_s: float) -> None:
        """Record a result of a running trial."""
        progress = self._progress.get(trial)
        if progress is None:
            return
        progress.iteration = int(result.get("training_iteration", progress.iteration + 1))
        progress.left_iterations = self._left_iterations(trial, result, progress.iteration)
        if progress.first_s is None:
            # The time before the first result includes the start of the process, so it is not a step.
            progress.first_s = now_s
            return
        progress.num_steps += 1
        progress.step_s = (now_s - progress.first_s) / progress.num_steps
        if progress.step_s > 0:
            progress.speeds[progress.amount] = 1 / progress.step_s
        self._note_restart(progress)

    def _note_restart(self, progress: _SlotProgress) -> None:
        """Measure the time of a restart. Until a trial was restarted, the shortest start of a trial is the estimate.

        The trials of a run start at the same time, which takes longer than the restart of a single trial.
        """
        # Only the second result in a slot gives the time of a step, which must be subtracted. Later results are not
        # part of the start.
        if progress.num_steps != 1 or progress.first_s is None or progress.step_s is None:
            return
        # Until its first result, a trial starts and then makes one step.
        took_s = max(0.0, progress.first_s - progress.started_s - progress.step_s)
        if progress.is_restart:
            self._restart_s = took_s
            self._is_restart_measured = True
        elif self._restart_s is None:
            self._restart_s = took_s
        elif not self._is_restart_measured:
            self._restart_s = min(took_s, self._restart_s)

    def _left_iterations(self, trial: Trial, result: Mapping[str, Any], iteration: int) -> float | None:
        left = []
        for name, end in (*trial.stopping_criterion.items(), *self._longest_trials.items()):
            value = result.get(name)
            if isinstance(value, int | float) and value > 0:
                # Assume that the attribute, such as ``time_total_s``, grows linearly with the iterations.
                left.append(max(0.0, end - value) * iteration / value)
        # The trial ends at the first of its criteria.
        return min(left, default=None)

    def note_end(self, trial: Trial) -> None:
        """Record the end of a trial."""
        progress = self._progress.pop(trial, None)
        self._targets.pop(trial, None)
        # How long ended trials were is the estimate for running trials without a known end (``_left_s``).
        if progress is not None:
            self._ended_at.append(progress.iteration)

    # Decisions.

    def grow(
        self, slots: RunSlots, records: Mapping[Trial, TrialRecord], node_of_actor: Mapping[str, str], now_s: float
    ) -> None:
        """Decide which trials grow, unless a trial with a slot does not run yet. Call it only if no trial waits.

        Args:
            slots: The slots of the run.
            records: The records of all trials.
            node_of_actor: The ID of the node of each actor, by the actor's ID.
            now_s: The current time, in seconds.
        """
        trials = slots.assignments
        # A trial that is starting or pausing would count as idle resources of its node.
        if any(trial.status != Trial.RUNNING for trial in trials):
            return
        node_of = {}
        for trial in trials:
            actor_id = actor_of(trial)
            if actor_id is not None and actor_id in node_of_actor:
                node_of[trial] = node_of_actor[actor_id]
        self.decide({trial: records[trial] for trial in trials}, node_of, slots.run_plan.capacity, now_s)

    def decide(
        self,
        records: Mapping[Trial, TrialRecord],
        node_of: Mapping[Trial, str],
        capacity: ClusterCapacity,
        now_s: float,
    ) -> None:
        """Decide which trials grow. Call it only if no trial waits, and all trials run.

        Args:
            records: The records of the running trials.
            node_of: The ID of the node of each running trial.
            capacity: The nodes, with the resources that other programs use.
            now_s: The current time, in seconds.
        """
        if self.policy is None or now_s < self._next_at_s or self._restart_s is None or not records:
            return
        self._next_at_s = now_s + _INTERVAL_S
        trials = []
        for trial in records:
            progress = self._progress.get(trial)
            if progress is None or trial not in node_of:
                return  # the free amount of a node is known only if the node of each trial is
            trials.append(
                GrowingTrial(
                    trial_id=trial.trial_id,
                    node_id=node_of[trial],
                    amount=progress.amount,
                    speeds=tuple(sorted(progress.speeds.items())),
                    left_s=self._left_s(progress),
                    has_checkpoint=bool(trial.has_checkpoint()),
                )
            )
        is_gpu = any("GPU" in bundles_of(request_of(record))[0] for record in records.values())
        name = "GPU" if is_gpu else "CPU"
        free = _free_amounts(records.values(), node_of, capacity, name=name)
        growths = self.policy.growth(trials, free, restart_s=self._restart_s, is_gpu=is_gpu)
        by_id = {trial.trial_id: trial for trial in records}
        self._targets = {by_id[growth.trial_id]: growth for growth in growths}
        # The reason is printed once, because this decision is made again every second.
        if not growths and not self._why_not:
            self._why_not = self.policy.why_not(trials, free, restart_s=self._restart_s, is_gpu=is_gpu)
            if self._why_not:
                print(self._why_not)
        for trial, growth in list(self._targets.items()):
            if trial in self._refused and growth.amount >= self._refused[trial]:
                del self._targets[trial]

    def _left_s(self, progress: _SlotProgress) -> float | None:
        """Return the expected time until the end of a trial.

        If the end is not known, the trial is expected to reach the mean of the longer trials that have ended. If no
        trial was longer, it is expected to run for as long as it has run so far.
        """
        if progress.step_s is None:
            return None
        left = progress.left_iterations
        if left is None:
            left = progress.iteration
            longer = [iteration for iteration in self._ended_at if iteration > progress.iteration]
            if longer:
                left = fmean(longer) - progress.iteration
        return left * progress.step_s

    def begin(self, record: TrialRecord) -> bool:
        """Return whether a trial that has reported should pause now to grow, and change its request accordingly."""
        # The decision is used once: after the restart, the policy decides again from new speeds.
        growth = self._targets.pop(record.trial, None)
        if growth is None:
            return False
        more = amount_of(growth.amount, _name_of_amount(request_of(record)))
        print(f"{record.trial} grows: it restarts with {more}, which saves about {growth.saved_s:.0f} s")
        record.changed = _with_amount(request_of(record), growth.amount)
        self._pausing.add(record.trial)
        self._grown.add(record.trial)
        return True

    def not_granted(self, assignments: Mapping[Trial, SlotAssignment], now_s: float) -> list[Trial]:
        """Return the trials that have grown, but whose requests Ray has not granted in time."""
        return [
            trial
            for trial in self._grown & assignments.keys()
            if not assignments[trial].is_granted and now_s - assignments[trial].requested_s >= _GRANT_TIMEOUT_S
        ]

    def undo(self, record: TrialRecord) -> None:
        """Give a trial the planned resources again, because Ray has not granted what it has grown to."""
        amount = _amount_of(request_of(record))
        _logger.warning(
            "%s does not grow, because Ray has not granted %s within %.0f s",
            record.trial,
            amount_of(amount, _name_of_amount(request_of(record))),
            _GRANT_TIMEOUT_S,
        )
        self._refused[record.trial] = amount
        self._grown.discard(record.trial)
        record.changed = None

    def shrink(self, trial: Trial, saved: float) -> bool:
        """Return whether a trial that has reported should pause now, because a smaller slot is enough for it.

        The trial waits for the smaller slot, and other trials get the rest.

        Args:
            trial: The trial.
            saved: The part of its resources that the trial would release, or 0.
        """
        # Without a checkpoint, the trial would start from the beginning.
        if not trial.has_checkpoint():
            return False
        progress = self._progress.get(trial)
        if progress is None or self._restart_s is None:
            return False
        left_s = self._left_s(progress)
        # Other trials gain ``saved`` of the trial's resources for the time that it still runs, and the trial itself
        # loses the time of a restart.
        if left_s is None or saved * left_s <= _SHRINKING_PAYS * self._restart_s:
            return False
        _logger.debug("%s restarts in a smaller slot, which releases %.0f%% for %.0f s", trial, 100 * saved, left_s)
        self._pausing.add(trial)
        return True

    def has_paused(self, trial: Trial) -> bool:
        """Return whether a paused trial was paused to grow or to shrink. The answer is given once."""
        is_growing = trial in self._pausing
        self._pausing.discard(trial)
        return is_growing


def _amount_of(request: PlacementGroupFactory) -> float:
    head = bundles_of(request)[0]
    return head.get("GPU", 0) or head.get("CPU", 0)


def _with_amount(request: PlacementGroupFactory, amount: float) -> PlacementGroupFactory:
    # Only the bundle of the trial's own process grows. The other bundles belong to its other processes.
    head, *others = bundles_of(request)
    return with_bundles(request, [{**head, _name_of_amount(request): amount}, *others])


def _name_of_amount(request: PlacementGroupFactory) -> str:
    return "GPU" if bundles_of(request)[0].get("GPU") else "CPU"


def _amount_in(resources: Resources, name: str) -> float:
    if name == "GPU":
        return resources.gpus
    return resources.cpus


def _free_amounts(
    records: Iterable[TrialRecord], node_of: Mapping[Trial, str], capacity: ClusterCapacity, *, name: str
) -> dict[str, float]:
    """Return the amount of a resource on each node that neither the running trials nor other programs use."""
    free = {}
    for node in capacity.nodes:
        # ``in_use`` is the use at the start of the run, so it does not include the run's own trials.
        in_use = node.in_use or Resources()
        free[node.node_id] = max(0.0, _amount_in(node.resources, name) - _amount_in(in_use, name))
    for record in records:
        node_id = node_of[record.trial]
        amount = bundles_of(request_of(record))[0].get(name, 0)
        free[node_id] = max(0.0, free.get(node_id, 0) - amount)
    return free
