"""Hypothesis drives the placement engine and the scheduler through anything that may happen to them, in any order."""

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
from tune_policies.placement.layout import place_slots
from tune_policies.placement.packing import RemainingNode
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
    """What is left of a node, while its parts are allocated, held and released."""

    @initialize(cpus=st.integers(0, 80_000), gpus=st.integers(0, 5), memory=st.none() | st.integers(0, 30))
    def begin(self, cpus, gpus, memory):
        self.has = {"CPU": cpus, "GPU": gpus * TICKS} | ({} if memory is None else {"memory": memory})
        self.node = RemainingNode(self.has)
        self.allocated, self.held = [], []

    # Beside shares on devices that nobody knows, no device could be said to have room.
    @precondition(lambda self: not self.held)
    @rule(amounts=worker_amounts)
    def allocate(self, amounts):
        said = self.node.slots(amounts, 1)
        if self.node.allocate(amounts):
            assert said, "what does not fit by its number is never placed"
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
    def what_is_taken_and_what_is_left_is_what_there_is(self):
        for name, ticks in getattr(self, "has", {}).items():
            taken = sum(each.get(name, 0) for each in (*self.allocated, *self.held))
            assert taken <= ticks
            assert self.node.amount(name) == ticks - taken
            assert self.node.is_idle == (not self.held)


class Slots(RuleBasedStateMachine):
    """Trials come and go in the slots of a plan, whose nodes come and go; a slot that is free always has room.

    Ray may put a fraction of a GPU on any device with room.
    """

    @initialize(seed=st.integers(0, 99), shape=shapes, policy=with_kinds | sized_by_the_user(st.just(0)))
    def begin(self, seed, shape, policy):
        self.rng = random.Random(seed)
        self.cluster = SimulatedCluster(self.rng, Clock())
        self.policy, self.running = policy, []
        self.node_comes(shape)

    @rule(shape=shapes)
    def node_comes(self, shape):
        self.cluster.add(shape)
        self._plan_anew()

    @precondition(lambda self: len(self.cluster.nodes) > 1)
    @rule(data=st.data())
    def node_goes(self, data):
        self.cluster.remove(data.draw(st.sampled_from(sorted(self.cluster.nodes))))
        self._plan_anew()

    def _plan_anew(self):
        """The trials that run end first: those of another plan may hold what the new one counts on."""
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
            assert all(held), f"a slot is free and has no room: {place}"
            self.running.append((place, held))
        del self.places[:number]

    def _take(self, node_id, amounts):
        names = {"cpu": "CPU", "gpu": "GPU"}
        bundle = {names.get(name, name): amount for name, amount in amounts.items() if amount}
        return self.cluster.take(bundle, {} if node_id is None else {"ray.io/node-id": node_id})

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data):
        self._end(data.draw(st.integers(0, len(self.running) - 1)))

    def _end(self, index):
        place, held = self.running.pop(index)
        for each in held:
            self.cluster.give_back(each)
        self.places.append(place)

    @invariant()
    def what_is_given_back_is_there_again(self):
        nodes = self.cluster.nodes.values() if hasattr(self, "cluster") else ()
        assert self.running if any(not node.is_idle for node in nodes) else True


class Scheduler(RuleBasedStateMachine):
    """A run under ``PolicyScheduler``: at each step every trial runs, waits for a reason, or has ended.

    The run itself looks at each trial in each step; at the end all trials have ended, and all is given back.
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
    def node_comes(self):
        if len(self.run.cluster.nodes) < 4:
            self.run.add_node()

    def teardown(self):
        if hasattr(self, "run"):
            with self.stack:
                for _ in range(20_000):
                    if self.run.controller.is_finished():
                        break
                    self.run.step()
                self.run.check_is_over(may_stop=self.is_asha)


TestOneNode = OneNode.TestCase
TestSlots = Slots.TestCase
TestScheduler = pytest.mark.rest(Scheduler.TestCase)
TestScheduler.settings = settings(settings.default, max_examples=5, stateful_step_count=20)


@pytest.fixture(autouse=True)
def quiet():
    """Tune tells of each failure."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.rest) for seed in (0, 2))])
def test_of_trials_that_fail_on_nodes_that_go_none_is_lost_and_none_waits_without_a_reason(seed):
    """A day and 10,000 faults are tried by ``python -m tests.evidence churn``.

    With these seeds trials waited that may run on CPUs only, or on GPUs only: for others the slots were better left
    idle.
    """
    with simulated_run(seed, most_steps=12) as churn:
        churn.pass_hours(0.1, num_faults=12)

    assert churn.faults.total() >= 12


def test_a_trial_whose_process_dies_while_it_takes_over_the_trial_is_retried():
    """Tune hears of such a death twice, and by itself ends the trial for good, whatever ``max_failures``."""
    num_killed = 0
    with simulated_run(0, num_trials=60, most_steps=4) as churn:
        while not churn.controller.is_finished():
            churn.step()
            for actor in churn.actors.live:
                if num_killed < 3 and not actor.is_dead and any(task == "reset" for task, *_ in actor.tasks.values()):
                    churn.actors.kill(actor)
                    num_killed += 1
        churn.check_is_over()

    assert num_killed
