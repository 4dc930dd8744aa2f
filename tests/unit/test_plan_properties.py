"""What holds for every cluster and every policy, checked against a placement made node by node, device by device."""

import json
import pickle
import random
import re
from collections import Counter

from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.clusters import GIB, gpu_node
from tests.unit.strategies import (
    clusters,
    cpu_amounts,
    even_splits,
    fixed_size,
    gpu_amounts,
    growing,
    leaves,
    num_workers,
    sized_by_the_user,
    with_kinds,
    wrapped,
)
from tune_policies import (
    AcceleratorPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuMemoryPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    ReservingPolicy,
    Resources,
    TrialPlan,
)
from tune_policies.placement.layout import place_slots
from tune_policies.placement.packing import Request, as_told_apart, count_trials
from tune_policies.policies.policy import build_policy
from tune_policies.policies.reserving import rests

TICKS = 10_000


class Node:
    """Free amounts of one node, in ticks; each device by itself."""

    def __init__(self, node):
        self.cpus = round(node.resources.cpus * TICKS)
        counts = {"GPU": node.resources.gpus, **node.resources.custom}
        self.devices = {name: [TICKS] * int(counts.get(name, 0)) for name in ("GPU", "NPU", "HPU", "TPU")}
        self.memory = node.resources.memory_bytes
        self.custom = {name: round(amount * TICKS) for name, amount in node.resources.custom.items()}
        self.labels = {"ray.io/node-id": node.node_id, **node.labels}
        self.accelerator_type = node.accelerator_type
        self.typed_workers = 1000  # each holds 0.001 of the one unit of accelerator_type:… that Ray gives a node

    def is_selected(self, selector):
        """Whether Ray may place work here; a condition is ``a``, ``!a``, ``in(a,b)`` or ``!in(a,b)``."""
        for key, condition in selector.items():
            listed = condition.removeprefix("!").removeprefix("in(").removesuffix(")").split(",")
            if (self.labels.get(key) in listed) == condition.startswith("!"):
                return False
        return True

    def take(self, worker, accelerator_type):
        """Take a worker's resources if they are there."""
        cpus, memory = round(worker.cpus * TICKS), worker.memory_bytes or 0
        wanted = {"GPU": worker.gpus, **worker.custom}
        if accelerator_type not in (None, self.accelerator_type) or cpus > self.cpus:
            return False
        if self.memory is not None and memory > self.memory:
            return False
        if accelerator_type is not None and self.typed_workers == 0:
            return False
        custom = {name: round(amount * TICKS) for name, amount in worker.custom.items() if name not in self.devices}
        if any(self.custom.get(name, 0) < amount for name, amount in custom.items()):
            return False
        devices = {name: round(amount * TICKS) for name, amount in wanted.items() if name in self.devices}
        if not all(self._take_devices(name, amount) for name, amount in devices.items() if amount):
            return False
        if accelerator_type is not None:
            self.typed_workers -= 1
        self.cpus -= cpus
        for name, amount in custom.items():
            self.custom[name] -= amount
        if self.memory is not None:
            self.memory -= memory
        return True

    def _take_devices(self, name, ticks):
        free = self.devices.get(name, [])
        if ticks < TICKS:
            fitting = [i for i, left in enumerate(free) if left >= ticks]
            if not fitting:
                return False
            free[fitting[0]] -= ticks
            return True
        whole = [i for i, left in enumerate(free) if left == TICKS][: ticks // TICKS]
        if len(whole) < ticks // TICKS:
            return False
        for i in whole:
            free[i] = 0
        return True


def placed_in_slots(capacity, plan, wanted):
    """How many of the wanted trials find room: those of each slot in its place, and more in slots of any type."""
    free = {node.node_id: Node(node) for node in capacity.nodes}
    to_come = [free[node.node_id] for node in capacity.nodes if node.is_expected]
    places = place_slots(plan.slots, capacity).places
    planned = [(plan.slots[place.slot_type], place.node_id) for place in places for _ in range(place.count)]
    placed = sum(
        any(node.take(slot.worker, slot.accelerator_type) for node in ([free[home]] if home else to_come))
        for slot, home in planned[:wanted]
    )
    while placed < wanted and any(
        node.is_selected(slot.label_selector) and node.take(slot.worker, slot.accelerator_type)
        for slot in plan.slots
        for node in free.values()
    ):
        placed += 1
    return placed


def placed_trials(capacity, plan, wanted):
    """How many of the wanted trials find room, drivers first on the fullest node, workers wherever they fit."""
    if len(plan.slots) > 1:
        return placed_in_slots(capacity, plan, wanted)
    free = [node for node in map(Node, capacity.nodes) if node.is_selected(plan.label_selector)]
    random.Random(wanted).shuffle(free)
    placed = 0
    for _ in range(wanted):
        if plan.num_workers:
            homes = sorted(free, key=lambda node: float("inf") if node.memory is None else node.memory)
            if not any(node.take(plan.trial, None) for node in homes):
                break
        workers = max(1, plan.num_workers)
        if not all(any(node.take(plan.worker, plan.accelerator_type) for node in free) for _ in range(workers)):
            break
        placed += 1
    return placed


def room_for_workers(capacity, plan):
    """How many workers find room beside the drivers of all trials, these on the fullest nodes."""
    free = [node for node in map(Node, capacity.nodes) if node.is_selected(plan.label_selector)]
    for _ in range(plan.max_concurrent_trials):
        homes = sorted(free, key=lambda node: float("inf") if node.memory is None else node.memory)
        assert any(node.take(plan.trial, None) for node in homes)
    most = plan.max_concurrent_trials * plan.num_workers + plan.most_workers
    return sum(any(node.take(plan.worker, plan.accelerator_type) for node in free) for _ in range(most))


def plan_or_skip(policy, capacity):
    try:
        return policy.plan(capacity)
    except InfeasibleRequestError as error:
        event("infeasible")
        pickle.loads(pickle.dumps(error))
        assume(False)


@given(clusters(), wrapped)
def test_no_node_and_no_device_is_ever_asked_for_more_than_it_has(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    assert placed_trials(capacity, plan, plan.max_concurrent_trials) == plan.max_concurrent_trials


def with_large_node(capacity):
    """Return the cluster with a node on which most of the random policies fit."""
    custom = {"license": 9, "NPU": 8, "HPU": 8, "TPU": 8}
    large = gpu_node("large", gpus=8, cpus=64, gpu_memory_gib=80, accelerator_type="A100", custom=custom)
    return ClusterCapacity.of(*capacity.nodes, large)


@given(clusters().map(with_large_node), growing)
def test_one_trial_may_grow_to_its_most_while_all_the_others_have_their_fewest(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    others = plan.max_concurrent_trials - 1
    event(f"may grow: {plan.most_workers > plan.num_workers}")
    assert plan.most_workers >= plan.num_workers
    assert room_for_workers(capacity, plan) >= others * plan.num_workers + plan.most_workers


@given(clusters(), fixed_size)
def test_there_is_no_room_for_one_more_trial(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    more = plan.max_concurrent_trials + 1
    assert placed_trials(capacity, plan, more) == plan.max_concurrent_trials


@given(clusters(), even_splits(num_workers))
def test_an_even_split_needs_no_more_waves_than_any_other_and_leaves_no_slot_of_its_size_idle(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    least = {"cpus": policy.min_cpus, "memory": policy.memory, "num_workers": policy.num_workers}
    plain = (GpuPolicy(gpus=policy.min_gpus, **least) if policy.min_gpus else CpuPolicy(**least)).plan(capacity)
    at_once = plan.max_concurrent_trials
    event(f"in waves: {at_once < policy.num_trials}")
    assert plan.num_waves(policy.num_trials) == plain.num_waves(policy.num_trials)
    assert at_once == policy.num_trials or placed_trials(capacity, plan, at_once + 1) == at_once


@given(clusters(), st.builds(GpuPolicy, gpus=st.floats(0.001, 0.999), cpus=st.just(0)))
def test_the_sum_of_gpu_shares_on_a_node_agrees_with_its_devices(capacity, policy):
    """Ray's scheduler and autoscaler keep the sum; a trial admitted by it alone would wait for ever."""
    plan = plan_or_skip(policy, capacity)

    share = round(plan.worker.gpus * TICKS)
    by_sum = sum(round(node.resources.gpus * TICKS) // share for node in capacity.nodes)
    assert plan.max_concurrent_trials == by_sum


@given(clusters(), wrapped, st.randoms())
def test_the_order_of_the_nodes_means_nothing(capacity, policy, rng):
    shuffled = list(capacity.nodes)
    rng.shuffle(shuffled)
    other = ClusterCapacity(nodes=tuple(shuffled))

    answers = []
    for each in (capacity, other):
        try:
            answers.append(policy.plan(each))
        except InfeasibleRequestError as error:  # and nothing else is ever raised
            answers.append(str(error))
    assert answers[0] == answers[1]


def follow(policy, suggestion):
    """The policy with what an error suggests, or None where it suggests no amount of what the policy is about."""
    if isinstance(policy, GpuMemoryPolicy):
        found = re.match(r"Ask for at most (\S+), or add a larger GPU", suggestion)
        return build_policy({**policy.model_dump(), "gpu_memory": found[1]}) if found else None
    if found := re.match(r"Ask for num_workers=(\d+)", suggestion):
        return policy.model_copy(update={"num_workers": int(found[1])})
    if found := re.match(r"Ask for amount=(\d+)", suggestion):
        return build_policy({**policy.model_dump(), "amount": int(found[1])})
    if found := re.match(r"Ask for at most (\S+) (CPU|GPU|of host memory) per worker", suggestion):
        devices = "amount" if isinstance(policy, AcceleratorPolicy) else "gpus"
        field = {"CPU": "cpus", "GPU": devices, "of host memory": "memory"}[found[2]]
        amount = found[1] if field == "memory" else float(found[1])
        return build_policy({**policy.model_dump(), field: amount})
    return None


@settings(suppress_health_check=[HealthCheck.filter_too_much])
@given(clusters(), sized_by_the_user(num_workers))
def test_what_an_error_suggests_works(capacity, policy):
    first = why_not(policy, capacity)
    smaller = first and follow(policy, first.suggestion)
    assume(smaller)

    second = why_not(smaller, capacity)

    # With GPU memory enough, there may still be too few CPUs, or GPUs for so many workers.
    was_memory, is_memory = (error.short_of.endswith("GPU memory") for error in (first, second or first))
    assert second is None or (was_memory and not is_memory)


def why_not(policy, capacity):
    try:
        policy.plan(capacity)
    except InfeasibleRequestError as error:
        return error
    return None


@given(wrapped)
def test_a_policy_survives_plain_data_and_pickle(policy):
    assert build_policy(policy.model_dump()) == policy
    assert pickle.loads(pickle.dumps(policy)) == policy


@given(clusters(), st.sampled_from([0.5, 1, 2, 5]), st.integers(0, 2), leaves)
def test_what_is_reserved_stays_free(capacity, cpus, gpus, policy):
    plan = plan_or_skip(ReservingPolicy(policy, cpus=cpus, gpus=gpus), capacity)

    taken = plan.max_concurrent_trials * max(1, plan.num_workers)
    assert taken * plan.worker.cpus <= sum(node.resources.cpus for node in capacity.nodes) - cpus + 1e-6
    assert taken * plan.worker.gpus <= sum(node.resources.gpus for node in capacity.nodes) - gpus + 1e-6


reservations = st.builds(Resources, cpus=cpu_amounts, gpus=st.integers(0, 2), memory_bytes=st.sampled_from([None, GIB]))


@given(clusters(), reservations)
def test_all_that_is_reserved_is_missing_from_what_is_planned_with(capacity, wish):
    try:
        left = list(rests(capacity, wish))
    except InfeasibleRequestError:
        assume(False)

    before = {node.node_id: node.resources.ticks for node in capacity.nodes}
    for rest in left:
        after = {node.node_id: node.resources.ticks for node in rest.nodes}
        taken = Counter()
        for node_id, ticks in before.items():
            taken.update({name: ticks.get(name, 0) - after[node_id].get(name, 0) for name in ("CPU", "GPU")})
            assert all(0 <= after[node_id].get(name, 0) <= amount for name, amount in ticks.items())
        assert (taken["CPU"], taken["GPU"]) == (wish.ticks["CPU"], wish.ticks.get("GPU", 0))


@given(clusters(), st.sampled_from([0.5, 1, 2, 5]), st.integers(0, 2), leaves)
def test_a_reservation_runs_as_many_trials_as_what_few_nodes_leave(capacity, cpus, gpus, policy):
    try:
        on_few_nodes = next(rests(capacity, Resources(cpus=cpus, gpus=gpus)))
    except InfeasibleRequestError:
        assume(False)
    few = plan_or_skip(policy, on_few_nodes)
    assume(len(few.slots) == 1)

    plan = ReservingPolicy(policy, cpus=cpus, gpus=gpus).plan(capacity)

    assert plan.max_concurrent_trials >= few.max_concurrent_trials


@given(clusters(), st.builds(GpuMemoryPolicy, gpu_memory=st.sampled_from(["1GiB", "5GiB", "6GiB", "16GiB", "40GiB"])))
def test_the_workers_of_a_device_fit_its_memory(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    workers_per_gpu = max(1, int(1 / plan.worker.gpus))
    used = [
        node
        for node in capacity.nodes
        if node.resources.gpus > 0 and plan.accelerator_type in (None, node.accelerator_type)
        if Node(node).is_selected(plan.label_selector) and node.resources.cpus >= plan.worker.cpus
    ]
    assert plan.gpu_memory_bytes >= policy.gpu_memory
    assert all(workers_per_gpu * plan.gpu_memory_bytes <= node.smallest_gpu_memory_bytes for node in used)


without_cpus = (
    st.builds(GpuPolicy, gpus=gpu_amounts, num_workers=num_workers, min_gpu_memory=st.none() | st.just("10GiB"))
    | st.builds(GpuMemoryPolicy, gpu_memory=st.sampled_from(["1GiB", "6GiB"]))
    | st.builds(AcceleratorPolicy, resource=st.just("NPU"), amount=gpu_amounts)
)


@given(clusters(), without_cpus)
def test_a_node_without_cpus_takes_them_from_no_worker_of_the_others(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    name, amount = ("NPU", plan.worker.custom["NPU"]) if plan.worker.custom else ("GPU", plan.worker.gpus)
    has_a_worker = [
        node.resources.cpus > 0
        for node in capacity.nodes
        if node.resources.ticks.get(name, 0) >= round(amount * TICKS)
        if name == "NPU" or Node(node).is_selected(plan.label_selector)
        if plan.accelerator_type in (None, node.accelerator_type)
        if getattr(policy, "gpu_memory", None) is None or node.smallest_gpu_memory_bytes
    ]
    assert (plan.worker.cpus > 0) == any(has_a_worker)


@given(clusters(), with_kinds)
def test_a_plan_is_the_same_as_json_and_each_of_its_kinds_has_trials(capacity, policy):
    plan = plan_or_skip(policy, capacity)

    assert TrialPlan.from_json(plan.to_json()) == plan
    assert all(slot.max_concurrent_trials > 0 for slot in plan.slots)
    assert plan.explain()


@given(with_kinds)
def test_a_policy_of_policies_is_the_same_as_json(policy):
    assert build_policy(json.loads(policy.to_json())) == policy


amounts_of_memory = st.sampled_from([1, 2**20 - 1, 2**20, 3 * 2**20 + 5, 2**30, 2**30 + 1, 10**9]) | st.integers(
    1, 2**31
)


@given(
    memories=st.lists(st.none() | amounts_of_memory, min_size=1, max_size=8),
    needed=st.none() | amounts_of_memory,
    num_workers=st.integers(0, 3),
)
def test_nodes_that_are_not_told_apart_hold_as_many_trials(memories, needed, num_workers):
    capacity = ClusterCapacity.of(*(Resources(cpus=200, memory_bytes=memory) for memory in memories))
    request = Request(worker=Resources(cpus=1, memory_bytes=needed), num_workers=num_workers)

    seen = as_told_apart(capacity, memory=needed, num_workers=num_workers)

    assert count_trials(seen.groups, request) == count_trials(capacity.groups, request)


def test_nodes_that_differ_by_bytes_are_of_one_shape_to_whom_wants_no_memory_and_of_their_own_to_others():
    capacity = ClusterCapacity.of(*(Resources(cpus=1, memory_bytes=2**30 + at) for at in range(9)))

    seen = as_told_apart(capacity, memory=None, num_workers=0)

    assert len(seen.groups) == 1
    assert len(seen.where(lambda node: True).groups) == len(seen.replacing({}).groups) == 9
