"""Runs without Ray and without processes, for tests of the decisions about each trial.

``RunPlan``, ``RunSlots``, ``RunCore``, ``TuneRun`` and the schedulers are real. ``SmallCluster`` replaces what a run
reads (the nodes and the clock), and ``Controller`` replaces Tune's controller.
"""

from types import SimpleNamespace

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from tests.evidence.faults.churn import AtOnce
from tests.evidence.faults.simulated_ray import Clock
from tune_policies import ClusterCapacity, OomRetryScheduler, PolicyScheduler
from tune_policies.ray_compat.run_control import handler_of
from tune_policies.trainers.gpu_memory.fraction_limits import LimitOptions
from tune_policies.trainers.retries import oom_retry_scheduler
from tune_policies.trainers.scheduling import policy_scheduler, run_events, run_plan
from tune_policies.trainers.scheduling.choose_slots import RunSlots
from tune_policies.trainers.scheduling.run_plan import RunPlan
from tune_policies.trainers.scheduling.trial_record import record_of
from tune_policies.trainers.watches import node_watch
from tune_policies.trainers.watches.run_watch import ClusterReading
from tune_policies.values.errors import ProbeError

ONE_CPU = {"CPU": 1.0}
"""Tune's default request."""

UNUSABLE = RuntimeError("No CUDA GPUs are available")
"""The error of a trial that cannot use its device."""


class LastFirst(FIFOScheduler):
    """Chooses the last trial that waits."""

    def choose_trial_to_run(self, tune_controller):
        self.seen = [(trial, trial.status) for trial in tune_controller.get_trials()]
        pending = [trial for trial in tune_controller.get_trials() if trial.status == Trial.PENDING]
        return pending[-1] if pending else None


class QuietTrial(Trial):
    """A trial that writes no files."""

    local_path = ""

    def init_local_path(self):
        pass


def new_trial(number, config=None, bundles=(ONE_CPU,), **options):
    request = PlacementGroupFactory([dict(bundle) for bundle in bundles])
    trial = QuietTrial("train", config=config or {}, trial_id=f"{number:08x}", stub=True, **options)
    trial.placement_group_factory = request
    return trial


def until_none(function):
    """Return the results of a function until it returns ``None``."""
    results = []
    while (result := function()) is not None:
        results.append(result)
        assert len(results) < 500, "trials start without end"
    return results


class SmallCluster:
    """The nodes and the clock that a run reads.

    Attributes:
        nodes: The nodes. If they are ``None``, the cluster cannot be read.
        clock: The clock of the run.
        num_probes: The number of times that the nodes were probed after the start of the run.
    """

    def __init__(self, monkeypatch, *nodes):
        self.nodes = nodes
        self.clock = Clock()
        self.num_probes = 0
        replaced = [
            (run_plan, "plan_with_capacity", lambda policy: (policy.plan(self.capacity()), self.capacity())),
            (run_plan, "time", self.clock),
            (node_watch, "read_cluster_state", lambda _: self.capacity()),
            (node_watch, "probe_cluster", self._probe),
            (node_watch, "BackgroundTask", AtOnceWithErrors),
            (node_watch, "time", self.clock),
        ]
        for module, name, instead in replaced:
            monkeypatch.setattr(module, name, instead)

    def capacity(self):
        if self.nodes is None:
            raise ProbeError("Ray does not respond")
        return ClusterCapacity.of(*self.nodes)

    def _probe(self):
        self.num_probes += 1
        return self.capacity()


class AtOnceWithErrors(AtOnce):
    """Replaces ``BackgroundTask``: the work ends at once, and ``take`` returns each result once."""

    def start(self, work):
        try:
            return super().start(work)
        except ProbeError as error:
            self._answer = error
            return True

    def take(self):
        answer, self._answer = self._answer, None
        return answer


class SmallSlots:
    """The slots of a run with its trials and their records. Time is passed to each call.

    Attributes:
        cluster: The cluster.
        slots: The slots of the run.
        records: The records of all trials.
    """

    def __init__(self, monkeypatch, policy, *nodes, may_move=False, falls_back=False):
        self.cluster = SmallCluster(monkeypatch, *nodes)
        self.plan = RunPlan(policy, interval_s=5.0, wait_for_nodes_s=60.0)
        self.slots = RunSlots(self.plan, may_move=may_move, falls_back=falls_back)
        self.records = {}
        self.follow()

    def follow(self, *nodes):
        """Follow the current nodes, or ``nodes``. Return the withdrawn requests."""
        if nodes:
            self.cluster.nodes = nodes
        # A policy starts a probe, and uses its result in the next step.
        return [w for _ in range(2) for w in self.slots.follow_nodes(self.records, self.cluster.nodes)]

    def add(self, number=1, *, config=None, bundles=(ONE_CPU,), may_refuse=True):
        """Add trials that wait. Return them."""
        trials = [new_trial(len(self.records) + i, config, bundles) for i in range(number)]
        for trial in trials:
            self.records[trial] = record_of(trial)
            self.slots.own_requests.replace_or_keep(self.records[trial], may_refuse=may_refuse)
            self.slots.wait(trial)
        return trials

    def startable(self, now_s=0.0):
        return list(self.slots.startable(self.records, self.slots.waiting, now_s))

    def choose(self, candidates=None, *, num_paused=0, num_future=0, now_s=0.0):
        candidates = self.startable(now_s) if candidates is None else candidates
        return self.slots.choose(self.records, candidates, num_paused=num_paused, num_future=num_future, now_s=now_s)

    def request_all(self, now_s=0.0, **options):
        """Request a slot for each trial that may start. Return the trials."""
        starts = until_none(lambda: self.choose(now_s=now_s, **options))
        return [start.trial for start in starts]

    def run(self, *trials, now_s=0.0):
        for trial in trials:
            self.slots.start(self.records[trial], now_s)

    def fall_back(self, trial):
        """Let a trial fall back that cannot use the device of its slot."""
        record = self.records[trial]
        record.slot = self.plan.plan.slots[0]
        assert self.slots.own_requests.fall_back(record, UNUSABLE)
        record.has_fallen_back = True

    def run_all(self, now_s=0.0, **options):
        """Start each trial that may start. Return the trials."""
        trials = self.request_all(now_s, **options)
        self.run(*trials, now_s=now_s)
        return trials

    def places(self):
        """The type and the node of each trial's slot."""
        return [(assignment.slot_type, assignment.node_id) for assignment in self.slots.assignments.values()]


class Search:
    """Tune's searcher, which has ``total_samples`` trials."""

    def __init__(self):
        self.total_samples = 0
        self.has_ended = True

    def is_finished(self):
        return self.has_ended


class KeptProcesses:
    """Tune's cache of idle processes: the maximum number by resource request."""

    def __init__(self):
        self.most = {}

    def increase_max(self, request, by):
        self.most[request] = self.most.get(request, 0) + by

    def decrease_max(self, request, by):
        self.most[request] -= by


class Controller:
    """Replaces Tune's controller. It records what the run makes Tune do.

    Attributes:
        saves: Whether Tune waited for each save of the experiment.
        withdrawn: The trials whose requests were withdrawn, in order.
    """

    _actor_manager = None
    _class_cache = None
    _has_errored = False
    _max_pending_trials = 1  # as for an adaptive searcher

    def __init__(self):
        self._trials = []
        self._search_alg = Search()
        self._actor_cache = KeptProcesses()
        self.saves = []
        self.withdrawn = []

    @property
    def search_alg(self):
        return self._search_alg

    def get_trials(self):
        return self._trials

    def update_max_pending_trials(self, max_pending_trials):
        self._max_pending_trials = max_pending_trials

    def checkpoint(self, *, force, wait):
        assert force
        self.saves.append(wait)

    def pause_trial(self, trial, should_checkpoint=True):
        assert not should_checkpoint
        trial.set_status(Trial.PAUSED)
        self.withdrawn.append(trial)

    def stop_trial(self, trial):
        assert trial.status == Trial.PAUSED, "Tune's functions must see the real status"
        self.scheduler.on_trial_remove(self, trial)
        trial.set_status(Trial.TERMINATED)

    def _set_trial_status(self, trial, status):
        trial.set_status(status)

    def _unstage_trial_with_resources(self, trial):
        assert trial.status == Trial.PENDING


class Processes:
    """The processes of a run.

    Attributes:
        started: The IDs of trials whose requests Ray has granted.
        groups: The ID of the placement group of each trial's process.
        is_handling_event: Whether Tune is handling an event of a process.
    """

    def __init__(self):
        self.handler = None
        self.started = set()
        self.groups = {}
        self.is_handling_event = False

    def has_process(self, trial_id):
        return trial_id in self.started

    def group_of(self, trial_id):
        return self.groups.get(trial_id)


class Watch:
    """Replaces ``RunWatch``: returns the readings that a test sets."""

    def __init__(self):
        self.latest = None
        self.next_reading = None
        self.warnings = []
        self.asked_groups = None

    def watch_tasks(self):
        pass

    def warn_once(self, what, why=""):
        self.warnings.append(f"{what}: {why}" if why else what)

    def read(self, groups):
        self.asked_groups = groups()
        reading, self.next_reading = self.next_reading, None
        self.latest = reading or self.latest
        return reading


class SmallRun:
    """A run of Tune under a policy, or only with memory retries if ``policy`` is ``None``.

    Attributes:
        controller: Tune's controller.
        scheduler: The outermost scheduler.
        cluster: The cluster.
        processes: The processes of the trials.
        watch: The reader of the cluster.
        granted: The requests that Ray has granted, but for which Tune has not started a process.
    """

    def __init__(self, monkeypatch, policy, *nodes, inner=None, retries=None, **options):
        self.cluster = SmallCluster(monkeypatch, *nodes)
        monkeypatch.setattr(run_events, "time", self.cluster.clock)
        monkeypatch.setattr(run_events, "RunWatch", Watch)
        monkeypatch.setattr(oom_retry_scheduler, "read_cluster_state", lambda _: self.cluster.capacity())
        monkeypatch.setattr(
            policy_scheduler,
            "limit_options",
            lambda isolation, on_unenforced_limit: LimitOptions(
                isolation=isolation, on_unenforced_limit=on_unenforced_limit
            ),
        )
        self.controller = Controller()
        self.processes = Processes()
        self.scheduler = inner
        if retries is not None:
            self.scheduler = OomRetryScheduler(self.scheduler, **retries)
        if policy is not None:
            self.scheduler = PolicyScheduler(policy, self.scheduler, **options)
        self.controller.scheduler = self.scheduler
        self.granted = []
        self._joined = False

    @property
    def core(self):
        """The core of the run, which exists after the first trial was added."""
        core = handler_of(self.controller)
        if not self._joined:
            self._joined = True
            self.processes.handler = core
            core.tune.actors = self.processes
            core.tune.groups = SimpleNamespace(
                ids_without_process=frozenset(),
                own_ids=frozenset(),
                replace_lost=lambda _: [],
                has_resources_ready=self.granted.__contains__,
            )
        return core

    @property
    def slots(self):
        return self.core.slots

    @property
    def watch(self):
        return self.core.watch

    @property
    def trials(self):
        return self.controller.get_trials()

    def add(self, number=1, *, config=None, bundles=(ONE_CPU,), **options):
        """Add trials as Tune does. Return them."""
        trials = [new_trial(len(self.trials) + i, config, bundles, **options) for i in range(number)]
        for trial in trials:
            self.add_trial(trial)
        return trials

    def add_trial(self, trial):
        self.controller.get_trials().append(trial)
        self.scheduler.on_trial_add(self.controller, trial)
        assert self.core

    def step(self):
        """Let the run choose a trial. As in Tune, the chosen trial is pending afterwards. Return it, or ``None``."""
        trial = self.scheduler.choose_trial_to_run(self.controller)
        if trial is not None:
            trial.set_status(Trial.PENDING)
        return trial

    def request_all(self):
        """Let the run choose trials until none can start. Return them."""
        return until_none(self.step)

    def begin(self, *trials):
        """Let the processes of chosen trials start."""
        for trial in trials:
            self.processes.started.add(trial.trial_id)
            trial.set_status(Trial.RUNNING)

    def run_all(self):
        """Start all trials that can start. Return them."""
        trials = self.request_all()
        self.begin(*trials)
        self.step()
        return trials

    def complete(self, trial):
        """Let a running trial end."""
        self.scheduler.on_trial_complete(self.controller, trial, {})
        trial.set_status(Trial.TERMINATED)
        self.processes.started.discard(trial.trial_id)

    def pause(self, trial):
        """Pause a running trial as Tune does when the inner scheduler decides so."""
        trial.set_status(Trial.PAUSED)
        self.processes.started.discard(trial.trial_id)

    def fail(self, trial, error, cause=None):
        """Report a failure of a trial's process. Return what Tune then did: ``"requeued"`` or ``"failed"``."""
        ends = []

        def report():
            """Handle a failure as ``TuneController._process_trial_failure`` does."""
            self.controller._has_errored = True
            trial.handle_error(error)
            self.processes.started.discard(trial.trial_id)
            may_retry = trial.should_recover()
            trial.set_status(Trial.ERROR)
            self.scheduler.on_trial_error(self.controller, trial)
            if may_retry:
                trial.set_status(Trial.PENDING)
                self.trials.remove(trial)
                self.trials.append(trial)
                self.scheduler.on_trial_add(self.controller, trial)
            ends.append("requeued" if may_retry else "failed")

        self.core.report_failure(trial.trial_id, error, cause, report)
        return ends[0] if ends else None


def reading(nodes=(), **fields):
    """Return a reading of the cluster without problems, except those in ``fields``."""
    values = {
        "nodes": tuple(nodes),
        "draining": (),
        "node_of_actor": {},
        "lost_groups": (),
        "stuck": {},
        "never": None,
        "busy": "",
    }
    return ClusterReading(**values | fields)


class PlannedRun:
    """A run's plan on a small cluster."""

    def __init__(self, monkeypatch, policy, *nodes):
        self.cluster = SmallCluster(monkeypatch, *nodes)
        self.plan = RunPlan(policy, interval_s=5.0, wait_for_nodes_s=60.0)
        self.plan.follow_nodes(nodes)

    def follow(self, *nodes):
        """Follow changed nodes, as in steps of the run at the same time. Return whether the placements changed."""
        self.cluster.nodes = nodes
        changes = [self.plan.follow_nodes(nodes) for _ in range(2)]  # a probe is used in the next step
        return any(changes)

    @property
    def num_trials(self):
        return self.plan.plan.max_concurrent_trials

    def places(self):
        return [(place.slot_type, place.node_id, place.count) for place in self.plan.placements]

    def pass_time(self, seconds):
        self.cluster.clock.now_s += seconds
