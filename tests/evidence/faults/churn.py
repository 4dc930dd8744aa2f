"""Simulates a run under ``PolicyScheduler`` in which nodes are added, nodes are lost, and trials fail.

Tune's controller, ``PolicyScheduler``, ``OomRetryScheduler``, policies and placement are real, and ``simulated_ray``
replaces Ray. At each step, every trial must run, wait for a valid reason or have ended.
"""

import itertools
import logging
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from ray import tune
from ray.train._internal import storage
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Experiment, Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import BasicVariantGenerator

from tests.evidence.faults.simulated_ray import Clock, SimulatedActor, SimulatedActors, SimulatedCluster, Simulation
from tune_policies import (
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    MixedPolicy,
    NodeCapacity,
    OomRetryScheduler,
    PolicyScheduler,
    ResourcePolicy,
    Resources,
    TrialPlan,
)
from tune_policies.benchmarks.record.machine import describe_machine, own_command
from tune_policies.files.terminal import TextConsole, empty_table
from tune_policies.placement.fill_nodes import Placement
from tune_policies.ray_compat import run_control, trial_actors
from tune_policies.ray_compat.trial_actors import TrialActors
from tune_policies.trainers.retries import oom_failure
from tune_policies.trainers.scheduling import run_events, run_failures, run_plan, trial_growth
from tune_policies.trainers.scheduling.choose_slots import RunSlots
from tune_policies.trainers.scheduling.run_events import RunCore
from tune_policies.trainers.scheduling.trial_record import slots_taken
from tune_policies.trainers.watches.run_watch import ClusterReading
from tune_policies.values.units import GIB

SHAPES: Final = (
    NodeCapacity(node_id="-", resources=Resources(cpus=8, gpus=1, memory_bytes=64 * GIB)),
    NodeCapacity(node_id="-", resources=Resources(cpus=16, gpus=2, memory_bytes=64 * GIB)),
    NodeCapacity(node_id="-", resources=Resources(cpus=4, memory_bytes=32 * GIB)),
)
"""The shapes of nodes. A run starts with one node of the first shape."""

POLICY: Final = MixedPolicy(GpuPolicy(gpus=0.25, cpus=1), CpuPolicy(cpus=2))

FAULTS: Final = ("a worker is killed", "a trial raises", "a node is lost")

_NODES_ARE_READ_AFTER_S: Final = (2.0, 20.0)
_LONGEST_STEP_S: Final = 90.0
_HELD: Final = "its slot is still occupied"
_KEPT_S: Final = 10.0
"""The longest time that an unused process may occupy a slot, in seconds. Tune stops such a process within two steps."""


class SimulatedTrainable(tune.Trainable):  # type: ignore[misc]  # Ray has no types
    """The trainable of the trials. It is never called."""


class Watch:
    """Reports changes of nodes to the plan with a delay of some seconds, as a probe does."""

    def __init__(self, cluster: SimulatedCluster, clock: Clock, rng: random.Random) -> None:
        self._cluster, self._clock, self._rng = cluster, clock, rng
        self._known_s = cluster.changed_at_s
        self._delay_s = 0.0

    def changed(self, nodes: Sequence[NodeCapacity] | None) -> ClusterCapacity | None:
        changed_at_s = self._cluster.changed_at_s
        if changed_at_s == self._known_s or self._clock.now_s < changed_at_s + self._delay_s:
            return None
        self._delay_s = self._rng.uniform(*_NODES_ARE_READ_AFTER_S)
        self._known_s = changed_at_s
        return self._cluster.capacity


class SimulatedRunWatch:
    """Reads the simulated nodes and actors in each step."""

    def __init__(self, cluster: SimulatedCluster, actors: Callable[[], SimulatedActors]) -> None:
        self._cluster, self._actors = cluster, actors
        self.latest: ClusterReading | None = None

    def watch_tasks(self) -> None:
        """Simulated runs have no tasks."""

    def read(self, groups: object) -> ClusterReading:
        nodes = self._cluster.capacity.nodes
        self.latest = ClusterReading(nodes, (), self._actors().node_of, (), {}, None, "")
        return self.latest


class AtOnce:
    """Replaces ``BackgroundTask``. The work ends before ``start`` returns, so a run is the same each time."""

    def __init__(self) -> None:
        self._answer: object = None

    def start(self, work: Callable[[], object]) -> bool:
        self._answer = work()
        return True

    def wait(self, timeout_s: float) -> bool:
        return True

    def take(self) -> object:
        return self._answer


class Churn:
    """A run of Tune on simulated nodes that advances one step at a time.

    Args:
        folder: The folder of the run.
        seed: The random seed.
        inner: The scheduler that this project's schedulers wrap.
        num_trials: The number of trials.
        most_steps: The maximum number of steps of a trial.
        reuse: Whether Tune reuses the processes of trials.
        is_outside: Whether ``PolicyScheduler`` wraps ``OomRetryScheduler`` instead of the reverse.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        inner: TrialScheduler | None = None,
        num_trials: int = 1_000_000,
        most_steps: int = 20,
        reuse: bool = True,
        is_outside: bool = True,
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock()
        self.cluster = SimulatedCluster(self.rng, self.clock)
        self.faults: Counter[str] = Counter()
        self.num_steps = 0
        self._raises: set[SimulatedActor] = set()
        self._blocks_since_s: dict[tuple[Trial, SimulatedActor], float] = {}
        self.simulation = Simulation(self.cluster, self.clock, self._step, self._check, folder)
        self.cluster.add(SHAPES[0])
        if is_outside:
            self.oom_retry = OomRetryScheduler(inner, memory_keys=["width"])
            self.scheduler = PolicyScheduler(POLICY, self.oom_retry)
        else:
            self.scheduler = PolicyScheduler(POLICY, inner)
            self.oom_retry = OomRetryScheduler(self.scheduler, memory_keys=["width"])
        search = BasicVariantGenerator(random_state=seed)
        experiment = Experiment(
            "churn",
            SimulatedTrainable,
            config={"width": tune.randint(1, 5), "steps": tune.randint(1, most_steps + 1)},
            num_samples=num_trials,
            storage_path=str(folder),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
            max_failures=-1,
        )
        search.add_configurations([experiment])
        outermost = self.scheduler if is_outside else self.oom_retry
        # ``TUNE_MAX_PENDING_TRIALS_PG`` prevents Tune from reading the number of CPUs from Ray.
        with patch.dict(os.environ, {"TUNE_MAX_PENDING_TRIALS_PG": "20", "TUNE_PRINT_ALL_TRIAL_ERRORS": "0"}):
            self.controller = TuneController(
                search_alg=search,
                scheduler=outermost,
                storage=experiment.storage,
                reuse_actors=reuse,
                checkpoint_period=3600,
            )

    @property
    def actors(self) -> SimulatedActors:
        """The processes of the run, which exist after the first step."""
        actors = self.controller._actor_manager
        assert isinstance(actors, SimulatedActors)
        return actors

    @property
    def core(self) -> RunCore:
        """The core of the run, which exists after the first step."""
        core = self.scheduler._core
        assert core is not None
        return core

    @property
    def slots(self) -> RunSlots:
        """The slots of the run, which exist after the first step."""
        slots = self.core.slots
        assert slots is not None
        return slots

    @property
    def trials(self) -> list[Trial]:
        """All trials of the run."""
        return self.controller.get_trials()  # type: ignore[no-any-return]

    def _step(self, actor: SimulatedActor) -> tuple[float, dict[str, Any] | Exception]:
        """Simulate one step of a trial. Return its duration in seconds, and its result or error."""
        takes_s = self.rng.uniform(1.0, _LONGEST_STEP_S)
        bundle, width = actor.request.bundles[0], actor.config["width"]
        if 0 < bundle.get("GPU", 0) < 0.25 * width:
            self.faults["out of GPU memory"] += 1
            return takes_s, RuntimeError("CUDA error: out of memory")
        if not bundle.get("GPU") and bundle.get("memory", 2 * GIB) < 2 * GIB * width:
            self.faults["out of host memory"] += 1
            return takes_s, MemoryError()
        if actor in self._raises:
            self._raises.discard(actor)
            return takes_s, ValueError("a trial that raises")
        done = actor.done + 1
        result = {"training_iteration": done, "loss": self.rng.random(), "done": done >= actor.config["steps"]}
        return takes_s, result

    def step(self) -> None:
        """Run one step of Tune's controller."""
        self.controller.step()
        self.num_steps += 1

    def fault(self, kind: str) -> bool:
        """Inject one of ``FAULTS``. Return ``False`` if no trial runs, or if the only node would be lost."""
        running = [actor for actor in self.actors.live if actor.has_started and not actor.is_dead and actor.tasks]
        nodes = list(self.cluster.nodes)
        if kind == "a node is lost":
            if len(nodes) < 2:
                return False
            self.actors.kill_node(self.rng.choice(nodes))
        elif not running:
            return False
        elif kind == "a worker is killed":
            self.actors.kill(self.rng.choice(running))
        else:
            self._raises.add(self.rng.choice(running))
        self.faults[kind] += 1
        return True

    def add_node(self) -> None:
        """Add a random node."""
        self.cluster.add(self.rng.choice(SHAPES))

    def why(self, trial: Trial) -> str:
        """Return the reason for the state of a trial.

        Raises:
            AssertionError: The trial waits without a valid reason.
        """
        if trial.status in (Trial.TERMINATED, Trial.ERROR):
            return "the trial ended"
        if trial.status == Trial.RUNNING:
            assert trial in self.controller._trial_to_actor, f"{trial} runs without a process"
            return "the trial runs"
        slots, record = self.slots, self.core.records[trial]
        if trial in slots.assignments:
            tracked = self.controller._trial_to_actor.get(trial)
            assert tracked is not None, f"{trial} has a slot, but has not requested its resources"
            actor = self.actors._actors[tracked]
            return _HELD if actor.held is None else "the trial starts"
        if trial not in slots.waiting:
            assert trial.status == Trial.PAUSED, f"{trial} is {trial.status}, but neither waits nor has a slot"
            return "the scheduler paused the trial"
        if record.not_before_s > self.clock.now_s:
            return "the trial failed, and starts again later"
        if not slots.board.placements:
            return "no node has enough free resources"
        free = slots.free_for(record)
        if not free:
            return "no slot with enough memory is free"
        free = [(placement, number) for placement, number in free if number >= self._slots_needed(trial, placement)]
        if not free:
            return "the trial needs several slots, because it ran out of memory"
        if self.core.starts_more:
            return "Tune starts one trial in each step"
        is_bound = len(slots.usable(record)) < len(slots.board.placements)
        left_idle = {} if is_bound else self.scheduler.slots_left_idle()
        open_types = {placement.slot_type for placement, _ in free}
        assert open_types <= left_idle.keys(), f"{trial} waits, although slots of the types {open_types} are free"
        return "the trial would finish later in the free slot than in another slot"

    def _slots_needed(self, trial: Trial, placement: Placement) -> int:
        """Return the number of slots that a trial needs. It is more than one if the trial needs more memory."""
        plan, record = self.slots.run_plan, self.core.records[trial]
        planned = plan.factories[placement]
        floor = plan.fitting_memory(record.needed, planned, placement.node_id)
        return min(placement.count, slots_taken(record, planned, floor))

    def _check(self) -> None:
        """Raise an ``AssertionError`` if a trial waits without a valid reason, or if a node exceeds its capacity."""
        for node in self.cluster.nodes.values():
            left = [*node.free.values(), *itertools.chain(*node.devices.values())]
            assert min(left, default=0) >= 0, f"{node.capacity.node_id} has allocated more than its capacity"
        blocking: dict[tuple[Trial, SimulatedActor], float] = {}
        for trial in self.controller.get_live_trials():
            if self.why(trial) == _HELD:
                blocking |= {(trial, actor): self.clock.now_s for actor in self._unused_processes_in_slot_of(trial)}
        self._blocks_since_s = {pair: self._blocks_since_s.get(pair, now_s) for pair, now_s in blocking.items()}
        for (trial, actor), since_s in self._blocks_since_s.items():
            waits_s = self.clock.now_s - since_s
            assert waits_s <= _KEPT_S, f"{trial} waits {waits_s:g} s, because the unused {actor} occupies its slot"

    def _unused_processes_in_slot_of(self, trial: Trial) -> list[SimulatedActor]:
        planned = self.core.records[trial].planned
        in_use = self.controller._actor_to_trial.keys()
        unused = [actor for actor in self.actors.live if actor.tracked not in in_use and not actor.is_stopping]
        return [actor for actor in unused if actor.request == planned]

    def pass_hours(self, hours: float, num_faults: int) -> None:
        """Inject at least ``num_faults`` faults in at least ``hours`` of simulated time, and then finish the run.

        Raises:
            AssertionError: A trial was lost or waited without a valid reason, or a resource was not released.
        """

        def next_fault() -> None:
            if self.clock.now_s >= hours * 3600 and self.faults.total() >= num_faults:
                self.controller.search_alg.set_finished()
                return
            kind = self.rng.choices(FAULTS, weights=(45, 45, 10))[0]
            if self.fault(kind) and kind == "a node is lost":
                self.clock.call_in(self.rng.uniform(10, 600), self.add_node)
            if len(self.cluster.nodes) < 4 and self.rng.random() < 0.1:
                self.add_node()
            self.clock.call_in(self.rng.expovariate(num_faults / (hours * 3600)), next_fault)

        self.clock.call_in(0, next_fault)
        while not self.controller.is_finished():
            self.step()
        self.check_finished()

    def check_finished(self, *, may_stop: bool = False) -> None:
        """Check the end of a run. ``may_stop`` allows the inner scheduler to stop trials before their last step.

        Raises:
            AssertionError: A trial has not finished all of its steps, or a resource was not released.
        """
        lost = []
        for trial in self.trials:
            is_complete = trial.last_result.get("training_iteration") == trial.config["steps"]
            if trial.status != Trial.TERMINATED or not (is_complete or may_stop):
                lost.append(trial)
        assert not lost, f"{len(lost)} trials are lost. The first is {lost[0]}: {lost[0].status}"
        self.controller._cleanup_cached_actors(force_all=True)
        while self.actors.num_total_actors:
            self.actors.next()
        assert all(node.is_idle for node in self.cluster.nodes.values()), "a resource was not released"
        self.core._update(self.clock.now_s)
        controller, slots = self.controller, self.slots
        left = [slots.assignments, slots.waiting, controller._staged_trials, controller._trial_to_actor]
        assert not any(left), f"the run ended, but trials still have slots, requests or processes: {left}"


@contextmanager
def simulated_run(seed: int, **options: Any) -> Iterator[Churn]:
    """Yield a run whose scheduler uses the simulated clock and nodes."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, ExitStack() as stack:
        churn = Churn(Path(folder), seed, **options)

        def node_lost_with(error: object) -> str | None:
            node_id = churn.actors.node_of.get(str(getattr(error, "actor_id", None)))
            return None if node_id in churn.cluster.nodes else node_id

        def actor_of(trial: Trial) -> str | None:
            tracked = churn.controller._trial_to_actor.get(trial)
            return None if tracked is None else str(tracked.actor_id)

        def with_capacity(policy: ResourcePolicy) -> tuple[TrialPlan, ClusterCapacity]:
            return policy.plan(churn.cluster.capacity), churn.cluster.capacity

        class TrialActorsOfRun(TrialActors, SimulatedActors):
            simulation = churn.simulation

        changes: tuple[tuple[object, str, object], ...] = (
            (run_control, "TrialActors", TrialActorsOfRun),
            (trial_actors, "BackgroundTask", AtOnce),
            (run_events, "time", churn.clock),
            (run_events, "_MIN_WAITING", 20),  # more waiting trials would only make each step slower
            (run_events, "RunWatch", lambda: SimulatedRunWatch(churn.cluster, lambda: churn.actors)),
            (run_failures, "lost_node", node_lost_with),
            (run_events, "actor_of", actor_of),
            (trial_growth, "actor_of", actor_of),
            (run_plan, "time", churn.clock),
            (run_plan, "plan_with_capacity", with_capacity),
            (run_plan, "NodeWatch", lambda *_, **__: Watch(churn.cluster, churn.clock, churn.rng)),
            (oom_failure, "was_killed_by_kernel", lambda _: False),
            (storage, "_get_ray_train_session_dir", lambda: f"{folder}/session"),
        )
        for owner, name, instead in changes:
            stack.enter_context(patch.object(owner, name, instead))
        churn.step()
        yield churn


def measure_churn(num_faults: int, hours: float, seed: int) -> bool:
    """Simulate a run and print the number of events of each kind. Return whether the run passed all checks."""
    logging.disable(logging.ERROR)  # suppress Tune's message about each failure
    start, failure = time.monotonic(), ""
    with simulated_run(seed) as churn:
        try:
            churn.pass_hours(hours, num_faults)
        except AssertionError as error:
            failure = str(error)
    took_s = time.monotonic() - start
    table = empty_table(f"{churn.clock.now_s / 3600:.1f} simulated hours, seed {seed}", "Event", "Number")
    for what, number in (*sorted(churn.faults.items()), ("faults", churn.faults.total())):
        table.add_row(what, f"{number:,}")
    for what, number in (("trials", len(churn.trials)), ("plans", len(churn.scheduler.changes) + 1)):
        table.add_row(what, f"{number:,}")
    table.add_row("steps of Tune", f"{churn.num_steps:,}")
    TextConsole(width=120).print(table)
    print(f"failure: {failure or 'none'}\ntook {took_s:.0f} s\n{describe_machine()}\ncommand: {own_command()}")
    return not failure
