"""The core of a run: it keeps one record per trial, and turns each event into one decision.

Tune calls its scheduler for each event, and ``TuneRun`` passes on the failures of processes. ``choose_slots`` decides
which trial starts where, ``run_failures`` what happens with a failed trial, and ``trial_growth`` which trial restarts
with more or less. The core applies these decisions. Each decision is logged once, at debug level, with its trial and
its reason.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Final

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from tune_policies.cluster.node import NodeCapacity
from tune_policies.ray_compat.last_result import complete_last_result, records_in_last_result
from tune_policies.ray_compat.run_control import TuneRun
from tune_policies.ray_compat.tune_request import bundles_of, group_of
from tune_policies.ray_compat.tune_schedulers import actor_of
from tune_policies.values.errors import ResourcePolicyError

from ..gpu_memory.fraction_limits import LimitOptions
from ..process.process_setup import TrialSetup
from ..process.trial_process import SETUP_ARGUMENT, SLOT_KEY, process_class
from ..retries.memory_floor import limit_to_nodes
from ..watches.run_watch import ClusterReading, RunWatch
from .choose_slots import RunSlots, Start, Withdraw
from .inner_scheduler import Choice, InnerScheduler
from .requests_without_plan import RequestsWithoutPlan
from .run_failures import (
    Enforcement,
    FailureDecision,
    MemoryRetries,
    add_note,
    add_to_error_file,
    decide_failure,
    look_up_cause,
)
from .run_learning import RunLearning
from .slot_board import SlotAssignment
from .trial_growth import TrialGrowth
from .trial_record import TrialRecord, record_of, request_of
from .trial_requests import TrialRequests

_logger = logging.getLogger(__name__)

_MIN_WAITING: Final = 200
"""The number of trials that a searcher that ignores results creates ahead of time, as in Tune."""

# Not ``[{}]``, because ``ResourceRequest`` refuses an empty head bundle without other bundles.
_NEVER_REQUESTED: Final = PlacementGroupFactory([{"memory": 1}])
"""The request of a trial that fails instead of being started."""

_MANY: Final = 10**9
"""The number of future trials if the searcher does not report it."""


class RunCore:
    """The state and the decisions of one run.

    Args:
        tune_controller: Tune's controller, as Tune passes it to a scheduler.
        scheduler: The outermost scheduler of this package in the run.

    Attributes:
        scheduler: The outermost scheduler of this package in the run, which controls the run.
        records: What the run knows about each trial.
        slots: The slots of the run's plan, or ``None`` in a run without a policy.
        limits: The options of GPU memory limits, or ``None`` in a run without a policy.
        retries: The scheduler that retries trials with more memory, or ``None``.
        learning: The observations for the run's ``LearningPolicy``, or ``None``.
        growth: The growth of the last trials under the run's ``GrowingPolicy``, or ``None``.
        watch: The reader of the cluster.
        enforcement: Whether the trials can enforce their memory limits.
        inner: What the inner scheduler sees and chooses.
        requests: The requests of the trials.
    """

    def __init__(self, tune_controller: Any, scheduler: TrialScheduler) -> None:
        self.scheduler = scheduler
        self.records: dict[Trial, TrialRecord] = {}
        self.slots: RunSlots | None = None
        self.limits: LimitOptions | None = None
        self.retries: MemoryRetries | None = None
        self.learning: RunLearning | None = None
        self.growth: TrialGrowth | None = None
        self.watch = RunWatch()
        self.enforcement = Enforcement()
        self._trial_of: dict[str, Trial] = {}
        self._without_plan = RequestsWithoutPlan()
        self._start_errors: dict[str, Exception] = {}
        self._starts_more = False
        self._kept_in_state = False, 0
        self._logged_wait = ""
        self._keeps_bundles = False
        self._has_begun = False
        self.process_class = cache(process_class)
        self.tune = TuneRun(tune_controller, self)
        self.inner = InnerScheduler(scheduler, self.tune)
        self.requests = TrialRequests(self.tune, self.records)

    # What TuneRun asks.

    @property
    def starts_more(self) -> bool:
        """Whether another trial can start at once, so that Tune must not wait for events."""
        return self._starts_more

    def arguments_of(self, trial_id: str) -> dict[str, Any]:
        """Return the set-up of a trial's process."""
        record = self.records[self._trial_of[trial_id]]
        setup = None
        if self.limits is not None and record.slot_to_start is not None:
            setup = TrialSetup.of(record.slot_to_start, bundles_of(request_of(record)), self.limits).to_text()
        return {SETUP_ARGUMENT: setup}

    def start_error(self, trial_id: str) -> Exception | None:
        """Return the error of a trial that can never run."""
        return self._start_errors.pop(trial_id, None)

    def is_running(self, trial_id: str) -> bool:
        """Return whether Tune considers the trial to be running."""
        return bool(self._trial_of[trial_id].status == Trial.RUNNING)

    @property
    def waiting(self) -> dict[Trial, None]:
        """The trials that wait to start, in order."""
        if self.slots is None:
            return self._without_plan.waiting
        return self.slots.waiting

    @property
    def has_waiting_trials(self) -> bool:
        """Whether trials wait or may pause and resume, so that idle processes can be reused."""
        if any(trial.status == Trial.PAUSED for trial in self.waiting):  # Tune may have stopped all of them
            return True
        if self.inner.is_pausing:
            return True
        return self.inner.has_paused and any(not trial.is_finished() for trial in self.records)

    def num_suggestions(self, *, is_adaptive: bool) -> int:
        """Return the number of further trials that the searcher should suggest now."""
        # Such a searcher loses nothing by suggesting early. Plain Tune also creates at least 200 trials ahead
        # (``TUNE_MAX_PENDING_TRIALS_PG``).
        if not is_adaptive:
            return _MIN_WAITING - len(self.waiting)
        if self.slots is None:
            num_free = self._without_plan.num_free
        else:
            num_free = self.slots.num_startable(may_keep_bundles=self._keeps_bundles)
            # Plain Tune has the same limit of requests that wait for Ray, so that suggestions are not made too early.
            is_limited = self.slots.num_requested >= self.tune.max_requested
            if self.holds_trials or is_limited:
                # No further trial may start, so an adaptive searcher should wait for results.
                num_free = min(num_free, 0)
        if num_free > 0 or self._has_active_trials:
            return num_free
        is_idle = all(trial.is_finished() for trial in self.records)
        return int(is_idle)  # Tune blocks if the searcher has no trial and none is running

    @property
    def _has_active_trials(self) -> bool:
        """Whether a trial waits, has a slot, or has requested resources."""
        active = self._without_plan.requested if self.slots is None else self.slots.assignments
        return bool(self.waiting or active)

    # Events of trials.

    def knows(self, trial: Trial) -> bool:
        """Return whether Tune has added ``trial`` before."""
        return trial in self.records

    def add(self, trial: Trial) -> None:
        """Plan the request of a new or restored trial."""
        self.tune.register(trial)
        record = record_of(trial)
        self._trial_of[trial.trial_id] = trial
        self.records[trial] = record
        if self.learning is not None:
            self.learning.add(record)
        # A restored run also adds the trials that have ended. They only teach the policy.
        if trial.is_finished():
            return
        if self.slots is None:
            trial.placement_group_factory = record.planned  # the policy of an earlier run may have replaced it
        else:
            # A later error would also end the trials that are running.
            may_refuse = not any(other.has_run for other in self.records.values())
            self.slots.own_requests.replace_or_keep(record, may_refuse=may_refuse)
        # After ``replace_or_keep``, which also decides whether a trial keeps its own request.
        self._keeps_bundles |= record.keeps_own_bundles
        if self.retries is not None:
            self.retries.remember(record)
        record.save()

    def wait(self, trial: Trial, *, is_new: bool) -> None:
        """Let a pending trial wait for a slot."""
        if trial.status != Trial.PENDING:
            return  # Tune also adds the ended trials of a restored run
        # Tune starts pending trials by itself, so a waiting trial is paused for Tune. In a resumed run, ``tune.run``
        # gives new ``resources_per_trial`` to the pending trials before the first step.
        if self.slots is not None or self._has_begun:
            self.tune.park(trial, is_new=is_new)
        self.waiting[trial] = None

    def _begin(self) -> None:
        """Park the trials that were added before the first step, with the resources that Tune has given them since."""
        self._has_begun = True
        for trial in [trial for trial in self.waiting if trial.status == Trial.PENDING]:
            given, known = trial.placement_group_factory, self.records[trial].planned
            trial.placement_group_factory = known  # Tune lists pending trials by the request with which they were added
            self.tune.park(trial, is_new=False)
            if given is not known:
                trial.placement_group_factory = given
                self.records[trial] = record_of(trial)

    def note_usage(self, trial: Trial) -> None:
        """Remember the slot and the usage in the previous result of a trial, because the next may not contain them."""
        record, latest = self.records[trial], records_in_last_result(trial)
        if latest.keys() <= {SLOT_KEY}:  # most results contain only the slot
            latest = {**record.usage, **latest}
        record.usage = latest

    def note_result(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """Record a result, and let the policy learn from it."""
        self.note_usage(trial)
        self.enforcement.note_result(self.records[trial])
        if self.learning is not None:
            self.learning.note_result(self.records[trial], result)
            if self.slots is not None:
                num_running = len(self.slots.assignments)
                self.learning.note_progress(
                    self.records[trial],
                    result,
                    num_running=num_running,
                    num_left=num_running + len(self.waiting),
                    now_s=time.monotonic(),
                )
        if self.growth is not None:
            self.growth.note_result(trial, result, time.monotonic())

    def restarts(self, trial: Trial) -> bool:
        """Return whether a trial that the inner scheduler continues should pause, to restart with more or less."""
        if self.growth is None:
            return False
        record = self.records[trial]
        if self.growth.begin(record):
            return True
        # A trial releases resources only for trials that wait. A scheduler such as PBT may prefer the paused trial.
        if self.learning is None or not self.waiting or self.holds_trials or not self.inner.runs_first:
            return False
        return self.growth.shrink(trial, self.learning.released_part(record))

    def complete_result(self, trial: Trial) -> None:
        """Let the metrics of a trial that ended or failed contain its slot and its latest usage."""
        self.note_usage(trial)
        complete_last_result(trial, self.records[trial].usage)

    def finish(self, trial: Trial) -> None:
        """Record the end of a trial that completed."""
        self.complete_result(trial)
        if self.learning is not None:
            self.learning.note_end(self.records[trial])
        if self.growth is not None:
            self.growth.note_end(trial)
        # The duration is recorded before the release, which stops the trial's clock.
        if self.slots is not None:
            self.slots.finish(trial, time.monotonic())
        self.release(trial)

    def release(self, trial: Trial) -> None:
        """Free the slot of a trial that ended, failed or paused."""
        self._without_plan.release(trial)
        if self.learning is not None:
            self.learning.note_stop(trial)
        if self.slots is not None:
            self.slots.release(trial, time.monotonic())

    # Failures.

    def note_death(self, trial_id: str) -> None:
        """Record the actor of a trial whose process has died, before Tune forgets it."""
        trial = self._trial_of[trial_id]
        self.records[trial].actor_id = actor_of(trial)

    def look_up(self, trial_id: str, error: Exception) -> Callable[[], object] | None:
        """Return a function that looks up why a process died, or ``None`` if ``error`` is not about a dead process."""
        return look_up_cause(error, self.records[self._trial_of[trial_id]].actor_id)

    def report_failure(self, trial_id: str, error: Exception, cause: object, report: Callable[[], None]) -> None:
        """Decide about the failure of a trial, and let Tune handle it accordingly."""
        trial = self._trial_of[trial_id]
        if trial.is_finished():
            return  # the trial was stopped while the cause was looked up
        record = self.records[trial]
        decision = decide_failure(
            record,
            error,
            cause,
            slots=self.slots,
            enforcement=self.enforcement,
            retries=self.retries,
            learning=self.learning,
            nodes=self._nodes,
        )
        _logger.debug("%s failed: %s", trial, decision)
        if decision.action == "requeue":
            self._requeue(record, decision)
            self.tune.report_uncounted(trial, report)
        elif decision.action == "fail":
            _logger.error("%s is not retried and fails: %s", trial, decision.reason)
            # Before the report, in which ``Trial.handle_error`` pickles the error.
            add_note(error, decision.reason)
            self.tune.report_permanent(trial, report)
            # After the report, in which ``Trial.handle_error`` writes the file.
            add_to_error_file(trial, decision.reason)
        else:
            report()

    def _requeue(self, record: TrialRecord, decision: FailureDecision) -> None:
        trial = record.trial
        _logger.warning("%s %s. This does not count as a failure", trial, decision.reason)
        record.not_before_s = time.monotonic() + decision.pause_s
        # HyperBand's brackets cannot contain a trial that is pending again after it reached its milestone, so it
        # removes the trial and adds it again, as it does for every trial that Tune retries.
        # A trial that fails while it is saved may be pausing (``_schedule_trial_pause`` saves first). The inner
        # scheduler has paused it already, so it must see that the trial is pending again.
        record.is_hidden = not (trial.is_saving or self.inner.has_hyperband)
        record.save()

    # Steps.

    def step(self, choose: Callable[[Any], Trial | None], tune_controller: Any) -> Trial | None:
        """Return the trial that Tune starts now, or ``None``.

        Args:
            choose: The choice of the inner scheduler among the trials that a controller lists.
            tune_controller: Tune's controller.

        Raises:
            InfeasibleRequestError: No plan has been feasible for ``wait_for_nodes_s``, or no trial can proceed.
            UnenforcedLimitError: No trial could enforce its memory limit.
        """
        if not self._has_begun:
            self._begin()
        now_s = time.monotonic()
        self._starts_more = False
        reading = self.watch.read(self.requests.groups)
        # First, the plan. The policy learns before the nodes are compared, so that the slots below are those of its new
        # plan.
        self._learn()
        if self.slots is not None:
            for withdrawal in self.slots.follow_nodes(self.records, self._nodes):
                self._withdraw(withdrawal)
            self._end_with(self.slots.run_plan.timeout_error)
        # Second, what Ray and Tune have done since the last step. A reading of the cluster ends every two seconds.
        if reading is not None:
            self._release_stopped()
            self._follow(reading)
        self._update(now_s)
        # After the update, which releases the slots of trials that have ended.
        self._end_with(self.enforcement.error(self.slots))
        for withdrawal in self.requests.with_too_little(self.retries, self._nodes):
            self._withdraw(withdrawal)
        # Last, the decisions, for which all slots and requests are up to date.
        self._undo_growth(now_s)
        self._grow(now_s)
        choice = Choice(choose, tune_controller)
        chosen = self._choose(choice, now_s)
        if chosen is None and self.inner.has_hyperband and not self._has_active_trials:
            self._stop_forgotten(choice)
        self._keep_processes()
        return chosen

    def _stop_forgotten(self, choice: Choice) -> None:
        """Stop paused trials that ``HyperBandScheduler`` never resumes or stops, so that the run ends."""
        # The scheduler may resume a trial that cannot start now, for example because all nodes are lost.
        if self.inner.preferred(choice, [], self.waiting) is not None:
            return
        for trial in self.inner.forgotten(self.records):
            _logger.warning("%s is stopped, because HyperBandScheduler has paused it and no other trial runs", trial)
            self.tune.stop(trial)

    def _end_with(self, error: ResourcePolicyError | None) -> None:
        """Save the experiment, so that the run can be resumed, and end the run with ``error`` if there is one."""
        if error is not None:
            # ``tune.run`` does not save the experiment when a step raises an error.
            self.tune.save_experiment(wait=True)
            raise error

    def end(self) -> None:
        """Print what the policy has learned when the run ends, also after Ctrl-C."""
        if self.learning is None:
            return
        learned = self.learning.end()
        if learned:
            print(learned)

    def _learn(self) -> None:
        if self.learning is None:
            return
        why = self.learning.learn()
        if why:
            print(why)

    def _grow(self, now_s: float) -> None:
        """Let running trials grow if no other trial needs the free resources."""
        if self.growth is None or self.growth.policy is None:
            return
        if self.slots is None or self.watch.latest is None:
            return
        # Trials that wait, or that are still to come, get the free resources first.
        if self.waiting or self.tune.num_future_trials != 0 or self._num_paused > 0:
            return
        self.growth.grow(self.slots, self.records, self.watch.latest.node_of_actor, now_s)

    def _undo_growth(self, now_s: float) -> None:
        """Let trials start with their planned resources if Ray does not grant what they have grown to."""
        if self.growth is None or self.slots is None:
            return
        for trial in self.growth.not_granted(self.slots.assignments, now_s):
            if self.requests.is_granted(trial) or self.requests.has_process(trial):
                continue
            self.growth.undo(self.records[trial])
            self._withdraw(Withdraw(trial, "Ray has not granted what it has grown to"))

    @property
    def _nodes(self) -> Sequence[NodeCapacity] | None:
        if self.watch.latest is None:
            return None
        return self.watch.latest.nodes

    def _follow(self, reading: ClusterReading) -> None:
        """Request lost placement groups again, and end a run in which no trial can proceed.

        Raises:
            InfeasibleRequestError: No trial can proceed.
        """
        self._end_with(reading.never)
        if reading.busy:
            self.watch.warn_once(reading.busy)
        if reading.lost_groups:
            for withdrawal in self.requests.replace_lost(reading.lost_groups):
                self._let_wait_again(withdrawal)
        if self.slots is None:
            return
        # The reading knows actors, so the trials are found by the actors of their processes.
        nodes, stuck = {}, {}
        for trial in self.records:
            actor_id = actor_of(trial) if trial.status == Trial.RUNNING else None
            if actor_id is None:
                continue
            if actor_id in reading.node_of_actor:
                nodes[trial] = reading.node_of_actor[actor_id]
            if actor_id in reading.stuck:
                stuck[trial] = reading.stuck[actor_id]
        self.slots.find_nodes(nodes)
        for trial, error in stuck.items():
            self.watch.warn_once(f"{trial} waits for workers that cannot start", str(error))
        if len(stuck) == len(self.slots.assignments):  # otherwise, another trial may end and release its resources
            self._end_with(next(iter(stuck.values()), None))

    def _withdraw(self, withdrawal: Withdraw) -> None:
        """Withdraw the request of a trial, unless its process has started in the meantime."""
        if not self.requests.has_process(withdrawal.trial):
            self._let_wait_again(withdrawal)

    def _let_wait_again(self, withdrawal: Withdraw) -> None:
        trial = withdrawal.trial
        _logger.debug("the request of %s is withdrawn: %s", trial, withdrawal.reason)
        # Tune pauses the trial first, and then it can wait again. It joins the end of the waiting trials.
        self.tune.withdraw(trial)
        self.release(trial)
        self.waiting[trial] = None

    def _update(self, now_s: float) -> None:
        """Follow the status that Tune gave the trials since the last step."""
        self.inner.update()
        if self.slots is None:
            self._without_plan.update(self.requests)
            return
        # A copy, because a trial that has ended loses its slot in the loop.
        for trial, assignment in list(self.slots.assignments.items()):
            if trial.status == Trial.RUNNING:
                record = self.records[trial]
                # Once per start: later steps find the same slot, and the request is granted.
                if record.slot is not assignment.slot or not assignment.is_granted:
                    self.slots.start(record, now_s)
                    record.save()
            # A pending trial with a slot waits for Ray. Every other status means that the trial no longer uses the
            # slot.
            elif trial.status != Trial.PENDING:
                self._release_ended(trial)
            # The process is starting, which may take half a minute, so the request no longer waits for Ray.
            elif not assignment.is_granted and self.requests.has_process(trial):
                self.slots.grant(trial)

    def _release_ended(self, trial: Trial) -> None:
        """Free the slot of a trial that Tune has paused or ended."""
        self.release(trial)
        if trial.status != Trial.PAUSED:
            return
        self.inner.has_paused = True
        # A trial that restarts with another amount waits for a slot, because the inner scheduler has not paused it.
        if self.growth is not None and self.growth.has_paused(trial):
            later = dict(self.waiting)
            self.waiting.clear()
            self.waiting.update({trial: None, **later})  # it resumes before new trials start

    def _release_stopped(self) -> None:
        """Release the waiting trials that another scheduler stopped or started itself, without a call of Tune.

        A run may have many waiting trials, and such schedulers are rare, so that this is not done in each step.
        """
        for trial in [trial for trial in self.waiting if trial.status != Trial.PAUSED]:
            self.release(trial)

    def _choose(self, choice: Choice, now_s: float) -> Trial | None:
        if self.slots is None:
            return self._choose_without_plan(choice, now_s)
        if self.holds_trials:
            return None
        withdrawal = self.slots.withdrawal(self.records, now_s)
        # Ray may have granted the request since the last step. Then the trial keeps its slot.
        if withdrawal is not None and not self.requests.is_granted(withdrawal.trial):
            self._withdraw(withdrawal)
        candidates = self._candidates(self.slots, choice, now_s)
        num_future = self.tune.num_future_trials
        if num_future is None:
            # Without a number, no slot stays idle, because enough trials may follow to use it.
            num_future = _MANY
        decision = self.slots.choose(
            self.records,
            candidates,
            num_paused=self._num_paused,
            num_future=num_future,
            now_s=now_s,
        )
        if decision is None:
            self._log_waiting()
            return None
        # Tune starts one trial per step and then waits up to 0.1 s for an event, unless another trial can start at once
        # (``TrialActors.next``).
        self._starts_more = next(candidates, None) is not None
        if isinstance(decision, Start):
            return self._start(decision, self.slots.assignments[decision.trial])
        return self._start_to_fail(*decision)

    def _candidates(self, slots: RunSlots, choice: Choice, now_s: float) -> Iterator[Trial]:
        """Yield the trials that may start, in the order of preference, with requests that are up to date."""
        # A copy, because a trial that starts leaves the waiting trials while this generator is still in use.
        waiting = (trial for trial in list(self.waiting) if trial.status == Trial.PAUSED)
        startable = slots.startable(self.records, waiting, now_s)
        for trial in self.inner.in_preferred_order(choice, startable, self.waiting, slots.assignments):
            self.requests.update(self.records[trial], self.retries, self._nodes)
            yield trial

    @property
    def holds_trials(self) -> bool:
        """Whether no further trial may start, because of the progress, or because the first trials fail."""
        if self.enforcement.holds_trials:
            return True
        if self.learning is None or self.slots is None:
            return False
        most = self.learning.most_at_once
        return most is not None and len(self.slots.assignments) >= most

    def _start_to_fail(self, trial: Trial, error: Exception) -> Trial:
        """Let Tune start a trial that can never run. ``TrialActors`` reports its error and starts no process."""
        _logger.debug("%s fails: %s", trial, error)
        # Tune requests a process for the trial in the same step, and ``start_error`` then returns the error.
        self._start_errors[trial.trial_id] = error
        self.waiting.pop(trial, None)
        self.requests.set(trial, _NEVER_REQUESTED)  # no kept process has this request
        return trial

    def _start(self, start: Start, assignment: SlotAssignment) -> Trial:
        trial = start.trial
        self.requests.set(trial, start.request)
        if self.retries is not None:
            self.retries.warn_if_limited(self.records[trial])
        slot = assignment.slot
        if assignment.worker_nodes:
            # The nodes of the workers belong to the placement, and not to the slot type.
            slot = slot.model_copy(update={"worker_nodes": assignment.worker_nodes})
        self.records[trial].slot_to_start = slot
        if self.learning is not None:
            self.learning.note_start(self.records[trial])
        if self.growth is not None:
            self.growth.note_start(trial, start.request, time.monotonic())
        where = "" if assignment.node_id is None else f" on node {assignment.node_id[:8]}"
        _logger.debug("%s starts in a slot of %s%s", trial, slot, where)
        return trial

    def _choose_without_plan(self, choice: Choice, now_s: float) -> Trial | None:
        if self._without_plan.is_full:
            return None
        waiting = [trial for trial in self.waiting if trial.status == Trial.PAUSED]
        startable = [trial for trial in waiting if self.records[trial].not_before_s <= now_s]
        trial = self.inner.preferred(choice, startable, self.waiting)
        # The scheduler may choose a trial again whose request is pending (``choose_trial_to_run`` must be idempotent).
        if trial is None or trial.status != Trial.PAUSED:
            return trial
        record = self.records[trial]
        self.requests.update(record, self.retries, self._nodes)
        record.floor = limit_to_nodes(record.needed, group_of(record.planned), self._nodes)
        if self.retries is not None:
            self.retries.warn_if_limited(record)
        request = request_of(record)
        self.requests.set(trial, request)
        self._without_plan.request(trial)
        self._starts_more = len(startable) > 1
        _logger.debug("%s starts with %s", trial, request.required_resources)
        return trial

    def as_in_tune(self, tune_controller: Any) -> AbstractContextManager[Any]:
        """Return a context in which an inner scheduler sees the run as in plain Tune."""
        return self.inner.as_in_tune(tune_controller, self.waiting)

    @property
    def _num_paused(self) -> int:
        return self.inner.num_paused(self.records, self.waiting)

    def _log_waiting(self) -> None:
        """Log why the first waiting trial does not start, unless this has been logged."""
        if not self.waiting or self.slots is None or not _logger.isEnabledFor(logging.DEBUG):
            return
        why = f"{next(iter(self.waiting))} waits: {self.slots.why_waiting()}"
        if why != self._logged_wait:
            self._logged_wait = why
            _logger.debug("%s", why)

    def _keep_processes(self) -> None:
        if self.slots is None or not self.records:
            return
        has_more = self.has_waiting_trials or self.tune.num_future_trials != 0
        state = has_more, self.slots.board.num_changes
        if state == self._kept_in_state:
            return  # counting the processes takes time
        self._kept_in_state = state
        kept: Counter[PlacementGroupFactory] = Counter()
        if has_more:
            kept = self.slots.kept_processes(self.records)
        self.tune.keep_processes(kept)
