"""The used and idle resources of a run are metered in Ray's ticks, and each idle amount has one reason."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clusters import nodes
from tune_policies import CappedPolicy, CpuPolicy, GpuPolicy
from tune_policies.trainers.usage.reservation_meter import (
    FEWER_LEFT,
    HELD,
    LESS_THAN_SLOT,
    NOTHING_RAN,
    ON_PURPOSE,
    PAUSED,
    SEARCH,
    STARTING,
    AvailableResources,
    ReservationMeter,
    SlotRow,
    SlotType,
    TrialQueue,
    TrialReservation,
    available_resources,
    idle_by_reason,
)
from tune_policies.trainers.usage.resource_usage import ResourceUsage

ONE = 10_000
TWO_GPUS = AvailableResources({"GPU": 2 * ONE}, {}, (SlotType(2, {"GPU": ONE}),))


def reservation(gpus=1, slot_type=0):
    return TrialReservation(slot_type, SlotRow(f"{gpus} GPU"), {"GPU": int(gpus * ONE)})


# The reasons for idle resources.


amounts = st.dictionaries(st.sampled_from(["CPU", "GPU"]), st.integers(0, 8 * ONE), max_size=2)
available_resources_drawn = st.builds(
    AvailableResources,
    total=amounts,
    unplanned=st.dictionaries(st.tuples(st.sampled_from(["CPU", "GPU"]), st.text(max_size=2)), st.integers(0, ONE)),
    slot_types=st.lists(st.builds(SlotType, st.integers(1, 4), amounts), min_size=1, max_size=3).map(tuple),
)
reservations = st.builds(TrialReservation, st.none() | st.integers(0, 2), st.just(SlotRow("slot")), amounts)
queues = st.builds(
    TrialQueue,
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
    st.dictionaries(st.integers(0, 2), st.integers(0, 3)),
    st.booleans(),
    st.integers(0, 5),
).map(lambda queue: queue._replace(num_starting=min(queue.num_starting, queue.num_waiting)))


@given(available_resources_drawn, st.lists(reservations, max_size=5), queues)
def test_idle_and_reserved_amounts_add_up_to_the_total(available, running, queue):
    held = Counter()
    for each in running:
        held.update(each.amounts)
    idle = Counter()
    for (name, _), ticks in idle_by_reason(available, running, queue).items():
        idle[name] += ticks

    assert idle == +Counter({name: max(0, ticks - held[name]) for name, ticks in available.total.items()})


@pytest.mark.parametrize(
    ("running", "queue", "reason"),
    [
        ([], TrialQueue(num_waiting=2), STARTING),
        ([], TrialQueue(num_paused=2), PAUSED),
        ([], TrialQueue(more_to_come=True), SEARCH),
        ([], TrialQueue(num_waiting=1, more_to_come=True, num_starting=1), STARTING),
        ([], TrialQueue(num_waiting=1, more_to_come=True, is_held=True), HELD),
        ([], TrialQueue(num_waiting=2, is_held=True, num_starting=2), STARTING),
        ([], TrialQueue(more_to_come=True, is_held=True), HELD),
        ([], TrialQueue(), NOTHING_RAN),
        ([reservation()], TrialQueue(), FEWER_LEFT),
        ([reservation()], TrialQueue(num_waiting=3, left_idle={0: 1}), ON_PURPOSE),
        ([reservation(0.5), reservation(0.5)], TrialQueue(num_waiting=3), LESS_THAN_SLOT),
    ],
)
def test_a_free_slot_is_idle_for_one_reason(running, queue, reason):
    found = idle_by_reason(TWO_GPUS, running, queue)

    assert found == {("GPU", reason): (2 - sum(each.amounts["GPU"] / ONE for each in running)) * ONE}


def test_a_waiting_trial_gets_the_better_slot_type():
    available = AvailableResources({"GPU": ONE, "CPU": ONE}, {}, (SlotType(1, {"GPU": ONE}), SlotType(1, {"CPU": ONE})))

    found = idle_by_reason(available, [], TrialQueue(num_waiting=1))

    assert found == {("GPU", STARTING): ONE, ("CPU", FEWER_LEFT): ONE}


def test_an_amount_that_the_plan_does_not_use_is_idle_for_the_reason_of_the_plan():
    capacity = nodes((8, 2), (8, 2))
    plan = CappedPolicy(inner=GpuPolicy(gpus=1, cpus=1), max_concurrent_trials=3).plan(capacity)

    found = available_resources(plan, capacity)

    assert (
        found.unplanned["GPU", "not in the plan: not needed, because max_concurrent_trials limits the number of trials"]
        == ONE
    )
    assert sum(ticks for (name, _), ticks in found.unplanned.items() if name == "CPU") == 13 * ONE


def test_after_nodes_are_removed_the_unplanned_resources_are_idle_because_of_the_limiting_resource():
    plan = CpuPolicy(cpus=2).plan(nodes((8, 1), (8, 0)))

    found = available_resources(plan, nodes((8, 1)))

    assert found.unplanned == {("GPU", "not in the plan: limited by CPU"): ONE}


def test_a_slot_type_includes_the_planned_train_workers():
    plan = CpuPolicy(cpus=2, num_workers=2).plan(nodes((8, 0)))

    assert available_resources(plan, None).slot_types == (SlotType(2, {"CPU": 4 * ONE}),)


# The meter.


steps = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.sampled_from(["start", "end", "queue", "available"]),
        st.integers(0, 3),
        queues,
        available_resources_drawn,
    ),
    max_size=20,
)


@given(steps)
def test_used_and_idle_hours_add_up_to_the_capacity_times_the_time(steps):
    meter, now_s = ReservationMeter(), 0.0
    meter.set_available(TWO_GPUS)
    for passed_s, what, number, queue, available in steps:
        now_s += passed_s
        meter.count_until(now_s)
        match what:
            case "start":
                meter.start_trial(str(number), reservation(slot_type=number))
            case "end":
                meter.end_trial(str(number))
            case "queue":
                meter.set_queue(queue)
            case "available":
                meter.set_available(available)

    for each in meter.record().resources:
        assert each.used_hours + sum(idle.hours for idle in each.idle) == pytest.approx(each.total_hours)


def test_two_trials_that_share_a_gpu_for_an_hour_use_one_gpu_hour():
    meter = ReservationMeter()
    meter.set_available(AvailableResources({"GPU": ONE}, {}, (SlotType(2, {"GPU": ONE // 2}),)))
    meter.start_trial("a", reservation(0.5))
    meter.start_trial("b", reservation(0.5))
    meter.count_until(3600)

    usage = meter.record()

    assert [(each.used_hours, each.total_hours, each.idle) for each in usage.resources] == [(1.0, 1.0, ())]
    assert [(each.trial_hours, each.hours, each.num_starts) for each in usage.slots] == [(2.0, {"GPU": 1.0}, 2)]


@given(steps)
def test_a_restored_meter_continues_from_its_record(steps):
    meter = ReservationMeter()
    meter.set_available(TWO_GPUS)
    meter.start_trial("a", reservation())
    meter.count_until(sum(step[0] for step in steps))
    record = meter.record()

    assert ReservationMeter(ResourceUsage.from_json(record.to_json())).record() == record
