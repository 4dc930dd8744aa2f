"""Tests of the placement engine and the scheduler with random sequences of events from Hypothesis."""

import logging
import random
from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler

from tests.clusters import gpu_node
from tests.evidence.faults.churn import FAULTS, simulated_run
from tests.evidence.faults.simulated_ray import Clock, SimulatedCluster
from tests.unit.strategies import sized_by_the_user, with_kinds
from tune_policies import InfeasibleRequestError
from tune_policies.placement.bundles import RemainingNode
from tune_policies.placement.layout import place_slots
from tune_policies.values.resources import TICKS

worker_amounts = st.fixed_dictionaries(
    {},
    optional={
        "CPU": st.sampled_from([1_000, 5_000, 10_000, 20_000]),
        "GPU": st.sampled_from([384, 2_500, 3_333, 4_000, 6_000, 10_000, 20_000]),
        "memory": st.integers(1, 9),
    },
).filter(bool)
shapes = st.builds(
    gpu_node,
    st.just("-"),
    gpus=st.integers(0, 4),
    cpus=st.sampled_from([1, 2, 7, 16]),
    memory_gib=st.none() | st.sampled_from([8, 64]),
    labels=st.sampled_from([{}, {"zone": "eu"}]),
)


class OneNode(RuleBasedStateMachine):
    """The remaining resources of a node while requests are allocated, reserved on unknown devices, and released."""

    @initialize(cpus=st.integers(0, 80_000), gpus=st.integers(0, 5), memory=st.none() | st.integers(0, 30))
    def begin(self, cpus, gpus, memory):
        self.has = {"CPU": cpus, "GPU": gpus * TICKS} | ({} if memory is None else {"memory": memory})
        self.node = RemainingNode(self.has)
        self.allocated, self.held = [], []

    # While requests are reserved on unknown devices, the remaining amount of each device is unknown.
    @precondition(lambda self: not self.held)
    @rule(amounts=worker_amounts)
    def allocate(self, amounts):
        fits = self.node.slots(amounts, 1)
        if self.node.allocate(amounts):
            assert fits, "a request that does not fit was allocated"
            self.allocated.append(amounts)

    @rule(amounts=worker_amounts)
    def hold(self, amounts):
        if self.node.slots(amounts, 1):
            self.node.hold(amounts)
            self.held.append(amounts)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        self.node.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def taken_and_remaining_amounts_add_up_to_the_capacity(self):
        for name, ticks in getattr(self, "has", {}).items():
            taken = sum(each.get(name, 0) for each in (*self.allocated, *self.held))
            assert taken <= ticks
            assert self.node.amount(name) == ticks - taken
            assert self.node.is_idle == (not self.held)


class Slots(RuleBasedStateMachine):
    """Trials start and end in the slots of a plan while nodes are added and lost. A trial always fits a free slot.

    Ray may allocate a fraction of a GPU on any device with room.
    """

    @initialize(seed=st.integers(0, 99), shape=shapes, policy=with_kinds | sized_by_the_user(st.just(0)))
    def begin(self, seed, shape, policy):
        self.rng = random.Random(seed)
        self.cluster = SimulatedCluster(self.rng, Clock())
        self.policy, self.running = policy, []
        self.node_is_added(shape)

    @rule(shape=shapes)
    def node_is_added(self, shape):
        self.cluster.add(shape)
        self._replan()

    @precondition(lambda self: len(self.cluster.nodes) > 1)
    @rule(data=st.data())
    def node_is_lost(self, data):
        self.cluster.remove(data.draw(st.sampled_from(sorted(self.cluster.nodes))))
        self._replan()

    def _replan(self):
        """End all trials, because they may use resources that the new plan assigns to other trials. Then plan."""
        for place in [place for place, _ in self.running]:
            self._end(next(i for i, each in enumerate(self.running) if each[0] is place))
        try:
            plan = self.policy.plan(self.cluster.capacity)
        except InfeasibleRequestError:
            self.places = []
            return
        self.plan = plan
        layout = place_slots(plan.slots, self.cluster.capacity)
        assert [layout.count(i) for i in range(len(plan.slots))] == [each.max_concurrent_trials for each in plan.slots]
        self.places = [place for place in layout.places for _ in range(place.count)]
        self.rng.shuffle(self.places)

    @precondition(lambda self: self.places)
    @rule(number=st.integers(1, 9))
    def start(self, number):
        for place in self.places[:number]:
            slot = self.plan.slots[place.slot_type]
            wanted = [(place.node_id, slot.trial_amounts, 1)]
            wanted += [(node_id, slot.resources_per_worker, count) for node_id, count in place.worker_nodes]
            wanted = [(node_id, amounts) for node_id, amounts, count in wanted for _ in range(count)]
            held = [self._take(node_id, amounts) for node_id, amounts in wanted]
            assert all(held), f"a free slot has no room: {place}"
            self.running.append((place, held))
        del self.places[:number]

    def _take(self, node_id, amounts):
        names = {"cpu": "CPU", "gpu": "GPU"}
        bundle = {names.get(name, name): amount for name, amount in amounts.items() if amount}
        return self.cluster.allocate(bundle, {} if node_id is None else {"ray.io/node-id": node_id})

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data):
        self._end(data.draw(st.integers(0, len(self.running) - 1)))

    def _end(self, index):
        place, held = self.running.pop(index)
        for each in held:
            self.cluster.release(each)
        self.places.append(place)

    @invariant()
    def nodes_are_idle_when_no_trial_runs(self):
        nodes = self.cluster.nodes.values() if hasattr(self, "cluster") else ()
        assert self.running if any(not node.is_idle for node in nodes) else True


class Scheduler(RuleBasedStateMachine):
    """A run under ``PolicyScheduler``: at each step, every trial runs, waits for a valid reason, or has ended.

    The run checks each trial in each step. At the end, all trials have finished and all resources are released.
    """

    @initialize(seed=st.integers(0, 99), is_asha=st.booleans(), reuse=st.booleans(), is_outside=st.booleans())
    def begin(self, seed, is_asha, reuse, is_outside):
        self.stack = ExitStack()
        inner = AsyncHyperBandScheduler(metric="loss", mode="min", grace_period=3) if is_asha else FIFOScheduler()
        options = {"inner": inner, "reuse": reuse, "is_outside": is_outside, "num_trials": 20, "most_steps": 6}
        self.run = self.stack.enter_context(simulated_run(seed, **options))
        self.is_asha = is_asha

    @rule(number=st.integers(1, 40))
    def time_passes(self, number):
        for _ in range(number):
            if not self.run.controller.is_finished():
                self.run.step()

    @rule(kind=st.sampled_from(FAULTS))
    def something_fails(self, kind):
        self.run.fault(kind)

    @rule()
    def node_is_added(self):
        if len(self.run.cluster.nodes) < 4:
            self.run.add_node()

    def teardown(self):
        if hasattr(self, "run"):
            with self.stack:
                for _ in range(20_000):
                    if self.run.controller.is_finished():
                        break
                    self.run.step()
                self.run.check_finished(may_stop=self.is_asha)


TestOneNode = OneNode.TestCase
TestSlots = Slots.TestCase
TestScheduler = pytest.mark.rest(Scheduler.TestCase)
TestScheduler.settings = settings(settings.default, max_examples=5, stateful_step_count=20)


@pytest.fixture(autouse=True)
def quiet():
    """Disable logging, because Tune logs each failure."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.rest) for seed in (0, 2))])
def test_if_trials_fail_and_nodes_are_lost_no_trial_is_lost_or_waits_indefinitely(seed):
    """``python -m tests.evidence churn`` simulates a day with 10,000 faults.

    With these seeds, some waiting trials can run only on CPUs or only on GPUs. The scheduler must assign slots
    to these trials even if it leaves the same slots idle for all other trials.
    """
    with simulated_run(seed, most_steps=12) as churn:
        churn.pass_hours(0.1, num_faults=12)

    assert churn.faults.total() >= 12


def test_a_trial_is_retried_if_its_reused_process_dies_during_reset():
    """Tune receives two errors. Without a policy, Tune ends the trial regardless of ``max_failures``."""
    num_killed = 0
    with simulated_run(0, num_trials=60, most_steps=4) as churn:
        while not churn.controller.is_finished():
            churn.step()
            for actor in churn.actors.live:
                if num_killed < 3 and not actor.is_dead and any(task == "reset" for task, *_ in actor.tasks.values()):
                    churn.actors.kill(actor)
                    num_killed += 1
        churn.check_finished()

    assert num_killed
