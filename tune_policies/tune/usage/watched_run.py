"""Follows one run of Tune: reads its trials, counts, and puts the record together.

Tune's trials are read here, and nothing of Tune or Ray is imported. The clock is given with each call.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.labels import NODE_ID
from tune_policies.oom import OutOfMemory
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import to_ticks

from .idle_reasons import COUNTED, Holding, Queue, offer_of
from .resource_meter import Account, NumByStatus, Tally
from .resource_usage import PlanInUse, ResourceUsage

_PENDING: Final = "PENDING"
_PAUSED: Final = "PAUSED"
_RUNNING: Final = "RUNNING"
_TERMINATED: Final = "TERMINATED"
_ERROR: Final = "ERROR"


class Change(Protocol):
    """A change of the plan."""

    @property
    def plan(self) -> TrialPlan:
        """The plan from then on."""

    @property
    def why(self) -> str:
        """Why it changed."""


class Planner(Protocol):
    """A scheduler with a plan that may change, such as ``PolicyScheduler``."""

    @property
    def plan(self) -> TrialPlan:
        """The plan that holds."""

    @property
    def changes(self) -> Sequence[Change]:
        """All changes so far."""

    def slot_of(self, trial: Any) -> TrialSlot | None:
        """Return the slot that a trial has; ``None``: it has none."""

    def slots_left_idle(self) -> dict[int, int]:
        """Return how many slots of each kind are left idle on purpose."""


class WatchedRun:
    """A run that is followed from its start, or from where it was restored.

    Args:
        plan: The plan at its start.
        planner: The scheduler that may change it; ``None``: it stays.
        num_trials: How many trials there will be; ``None``: not known.
        before: What was counted before the run was restored; ``None``: it is new.
    """

    def __init__(
        self, plan: TrialPlan, planner: Planner | None, num_trials: int | None, before: ResourceUsage | None
    ) -> None:
        self.plan = plan
        self._planner = planner
        self._num_trials = num_trials
        self._cluster: ClusterCapacity | None = None
        self._account, self._tally = Account(before), Tally(before)
        self._plans = list(before.plans) if before else []
        self._warnings = list(before.warnings) if before else []
        self._num_changes = len(planner.changes) if planner else 0
        self._queue = Queue()
        self._known: set[str] = set()
        self._waiting: dict[str, Any] = {}
        self._running: dict[str, Any] = {}
        self._trials: Sequence[Any] = ()
        self._follow(plan, "" if before is None else "the run was restored")

    def _follow(self, plan: TrialPlan, why: str) -> None:
        self.plan = plan
        text = plan.explain()
        if not self._plans or self._plans[-1].text != text:  # a run may be restored under the plan that it had
            self._plans.append(PlanInUse(at_s=self._account.elapsed_s, why=why, text=text))
        self._account.offer(offer_of(plan, self._cluster))
        if any(slot.is_elastic for slot in plan.slots):  # how many there are, Train alone knows
            self.warn("of trials whose Train workers may become more, only the fewest are counted")

    def read_cluster(self, cluster: ClusterCapacity, now_s: float) -> None:
        """Take what the cluster has now."""
        if self._cluster is None or cluster.nodes != self._cluster.nodes:
            self._account.count_until(now_s)
            self._cluster = cluster
            self._account.offer(offer_of(self.plan, cluster))

    def warn(self, text: str) -> None:
        """Have the record say what could not be counted."""
        if text not in self._warnings:
            self._warnings.append(text)

    def step(self, trials: Sequence[Any], now_s: float) -> Sequence[PlanInUse]:
        """Look at the trials after a step of Tune; return the changes of the plan since the last."""
        self._find_new(trials)
        ended = [trial for trial in self._running.values() if trial.status != _RUNNING]
        num_plans = len(self._plans)
        if self._planner and len(self._planner.changes) > self._num_changes:
            self._account.count_until(now_s)
            for change in self._planner.changes[self._num_changes :]:
                self._follow(change.plan, change.why)
            self._num_changes = len(self._planner.changes)
        if ended:
            self._account.count_until(now_s)
        for trial in ended:
            self._leave(trial)
        queue = self._look_at_queue(trials)
        if queue != self._queue:
            self._account.count_until(now_s)
            self._account.queue(queue)
            self._queue = queue
        return self._plans[num_plans:]

    def _find_new(self, trials: Sequence[Any]) -> None:
        self._trials = trials
        num_new = len(trials) - len(self._known)
        for trial in reversed(trials):  # one that is retried goes to the end of Tune's list, too
            if num_new <= 0:
                return
            if trial.trial_id not in self._known:
                self._known.add(trial.trial_id)
                num_new -= 1
                if trial.status in (_PENDING, _PAUSED):  # of a restored run some have ended
                    self._waiting[trial.trial_id] = trial

    def _leave(self, trial: Any) -> None:
        del self._running[trial.trial_id]
        self._account.end(trial.trial_id)
        if trial.status in (_PENDING, _PAUSED):
            self._waiting[trial.trial_id] = trial
        elif trial.status == _TERMINATED:
            self._tally.ended(trial.trial_id, "cut_off")  # unless Tune has said before how it ended

    def _look_at_queue(self, trials: Sequence[Any]) -> Queue:
        num_waiting = num_paused = 0
        for trial_id, trial in list(self._waiting.items()):
            if trial.status == _PENDING:
                num_waiting += 1
            elif trial.status == _PAUSED:
                num_paused += 1
            elif trial.status != _RUNNING:  # one that starts is told before Tune says so
                del self._waiting[trial_id]
                if trial.status == _TERMINATED:
                    self._tally.ended(trial_id, "cut_off")
        more = self._num_trials is None or self._num_trials > len(trials)
        return Queue(num_waiting, num_paused, more, self._planner.slots_left_idle() if self._planner else {})

    def start(self, trial: Any, now_s: float) -> None:
        """Take note that ``trial`` runs, in a process of its own or in one that is used again."""
        self._account.count_until(now_s)
        self._waiting.pop(trial.trial_id, None)
        self._running[trial.trial_id] = trial
        amounts = dict(trial.placement_group_factory.required_resources)
        self._tally.started(trial.trial_id, amounts)
        self._account.start(trial.trial_id, self._holding(trial, amounts))

    def _holding(self, trial: Any, amounts: Mapping[str, float]) -> Holding:
        ticks = {name: to_ticks(amount) for name, amount in amounts.items() if name in COUNTED and amount > 0}
        text = ", ".join(f"{amount:g} {name}" for name, amount in sorted(amounts.items())) or "nothing"
        slot = self._slot_of(trial, ticks)
        if slot is None:
            return Holding(None, text, None, ticks)
        slot = _anywhere(slot)
        if ticks == _of_trial(slot):  # else a scheduler raised it, or it was given other resources by hand
            text = str(slot)
        for name, each in slot.per_worker.ticks.items():
            if name in COUNTED:
                ticks[name] = ticks.get(name, 0) + slot.num_workers * each
        kinds = [_anywhere(each) for each in self.plan.slots]
        kind = kinds.index(slot) if slot in kinds else None
        return Holding(kind, text, slot.accelerator_type or self._only_type(ticks), ticks)

    def _slot_of(self, trial: Any, ticks: Mapping[str, int]) -> TrialSlot | None:
        if self._planner is not None:
            return self._planner.slot_of(trial)
        if self.plan.by_config is not None:
            try:
                return self.plan.slot_for(trial.config)
            except InfeasibleRequestError:
                return self.plan.by_config.slots[-1]
        if len(self.plan.slots) == 1:
            return self.plan.slots[0]
        return next((slot for slot in self.plan.slots if _of_trial(slot) == ticks), None)

    def _only_type(self, ticks: Mapping[str, int]) -> str | None:
        if self._cluster is None or not ticks.keys() - {"CPU"}:
            return None
        types = {node.accelerator_type for node, _ in self._cluster.groups if node.accelerator_type}
        return types.pop() if len(types) == 1 else None

    def complete(self, trial: Any, *, is_stopped: bool) -> None:
        """Take note that ``trial`` came to its end, or was stopped before."""
        was_paused = trial.trial_id in self._waiting
        self._tally.ended(trial.trial_id, "stopped_early" if is_stopped or was_paused else "finished")

    def fail(self, trial: Any, out_of_memory: OutOfMemory, *, goes_back: bool) -> None:
        """Take note that ``trial`` failed."""
        self._tally.failed(trial.trial_id, out_of_memory, goes_back=goes_back)

    def refuse(self, trial: Any, process: object, num_so_far: int) -> None:
        """Take note of how many allocations were refused to a process of ``trial`` so far."""
        self._tally.refused(trial.trial_id, process, num_so_far)

    def end(self, trials: Sequence[Any], now_s: float) -> None:
        """Count to the end of the run, at which nothing runs any more."""
        self.step(trials, now_s)
        self._account.count_until(now_s)

    def record(self, now_s: float, *, is_final: bool = False) -> ResourceUsage:
        """Return what was counted up to now."""
        self._account.count_until(now_s)
        status = [trial.status for trial in self._trials]
        num_ended = NumByStatus(terminated=status.count(_TERMINATED), error=status.count(_ERROR))
        others = len(status) - num_ended.terminated - num_ended.error
        trials = self._tally.trials(num_ended.model_copy(update={"others": others}))
        counted = self._account.record()
        num_ran = trials.num_finished + trials.num_stopped_early + trials.num_failed + self._tally.num_begun
        planned = None if self._num_trials is None else max(self._num_trials, len(status))
        return counted.model_copy(
            update={
                "is_final": is_final,
                "trials": trials,
                "out_of_memory": self._tally.out_of_memory,
                "num_waves_planned": None if planned is None else self.plan.num_waves(planned),
                "num_waves": -(-num_ran // max(1, counted.max_trials_at_once)),
                "plans": tuple(self._plans),
                "warnings": tuple(self._warnings),
            }
        )


def _of_trial(slot: TrialSlot) -> dict[str, int]:
    """Return what the trial itself holds in the slot, without its workers, in ticks."""
    return {name: ticks for name, ticks in slot.trial.ticks.items() if name in COUNTED}


def _anywhere(slot: TrialSlot) -> TrialSlot:
    """Return the slot on any node, however many there are: a scheduler may have chosen the node for a trial."""
    selector = {name: value for name, value in slot.label_selector.items() if name != NODE_ID}
    return slot.model_copy(update={"label_selector": selector, "max_concurrent_trials": 1})
