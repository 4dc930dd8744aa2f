"""Tests of the plan of a run while nodes are added, removed and lost."""

import pytest
from ray.tune import PlacementGroupFactory

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import PlannedRun, SmallCluster
from tune_policies import (
    AutoscalingPolicy,
    ByConfigPolicy,
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    FreeCapacityPolicy,
    GpuPolicy,
    InfeasibleRequestError,
    InvalidResourcesError,
    MixedPolicy,
    Resources,
    TrialPlan,
    TrialSlot,
)
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.trainers.scheduling import run_plan
from tune_policies.trainers.scheduling.run_plan import RunPlan
from tune_policies.values.errors import ProbeError

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
A, B, C = gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2), gpu_node("c", gpus=0, cpus=2)
NO_ROOM = InfeasibleRequestError("more", "less", "CPU", "Add nodes.")
TWO_TYPES = TrialPlan(
    slots=(
        TrialSlot(trial=Resources(cpus=1, gpus=0.5), max_concurrent_trials=2),
        TrialSlot(trial=Resources(cpus=2), max_concurrent_trials=1),
    ),
    limited_by="CPU",
)


@pytest.fixture
def planned(monkeypatch):
    """A function that returns the plan of a run with a policy on nodes."""
    return lambda policy, *nodes: PlannedRun(monkeypatch, policy, *nodes)


# Placements


def test_slots_of_one_type_may_be_on_any_node(planned):
    assert planned(HALVES, A, B).places() == [(0, None, 4)]


def test_slots_of_several_types_on_one_node_may_be_anywhere(planned):
    assert planned(TWO_TYPES, gpu_node("a", gpus=1, cpus=4)).places() == [(0, None, 2), (1, None, 1)]


def test_slots_of_several_types_are_assigned_to_nodes_with_better_types_first(planned):
    run = planned(MixedPolicy(HALVES, CPUS), C, A)

    assert run.places() == [(0, "a", 2), (1, "c", 1)]


def test_the_request_of_a_placement_selects_its_node(planned):
    run = planned(MixedPolicy(HALVES, CPUS), A, C)

    selectors = [request._kwargs["bundle_label_selector"] for request in run.plan.factories.values()]

    assert selectors == [[{"ray.io/node-id": "a"}], [{"ray.io/node-id": "c"}]]


def test_without_changes_the_placements_are_computed_once(planned):
    run = planned(HALVES, A)

    assert not run.follow(A)


def test_slots_on_nodes_that_the_autoscaler_adds_may_be_anywhere(planned, monkeypatch):
    """Requests for these slots make the autoscaler add the nodes."""
    capacity = ClusterCapacity.of(A, C).model_copy(
        update={"node_types": (NodeTypeCapacity(name="gpu", resources=A.resources, max_nodes_to_add=1),)}
    )
    policy = AutoscalingPolicy(MixedPolicy(HALVES, CPUS))
    cluster = SmallCluster(monkeypatch, A, C)
    monkeypatch.setattr(run_plan, "plan_with_capacity", lambda policy: (policy.plan(capacity), capacity))
    plan = RunPlan(policy, interval_s=5.0, wait_for_nodes_s=60.0)

    plan.follow_nodes(cluster.nodes)

    by_type = {(place.slot_type, place.node_id): place.count for place in plan.placements}
    assert by_type[0, None] == 2
    assert by_type[0, "a"] == 2


def test_a_plan_without_room_on_the_remaining_nodes_is_infeasible(planned):
    run = planned(TWO_TYPES, A, C)

    run.follow(gpu_node("d", gpus=0, cpus=1), gpu_node("e", gpus=0, cpus=1))

    assert run.places() == []
    assert not run.plan.is_feasible
    assert "no remaining node has room for such a trial" in run.plan.changes[-1].why


ONE_CPU = gpu_node("e", gpus=0, cpus=1)


@pytest.mark.parametrize(
    ("plan", "nodes"),
    [
        pytest.param(HALVES.plan(ClusterCapacity.of(A, B)), (A, B, C), id="slots of one type on several nodes"),
        pytest.param(HALVES.plan(ClusterCapacity.of(A)), (A,), id="slots of one type on one node"),
        pytest.param(TWO_TYPES, (A, C), id="slots of several types"),
    ],
)
@pytest.mark.parametrize(
    "left",
    [pytest.param((ONE_CPU,), id="one node is left"), pytest.param((ONE_CPU, gpu_node("f", gpus=0, cpus=1)), id="two")],
)
def test_a_plan_whose_nodes_are_lost_waits_for_nodes_and_then_ends_the_run(planned, plan, nodes, left):
    run = planned(plan, *nodes)

    run.follow(*left)
    run.pass_time(59)

    assert run.places() == []
    assert run.plan.timeout_error is None
    run.pass_time(2)
    assert "no remaining node has room for such a trial" in str(run.plan.timeout_error)


def test_further_lost_nodes_do_not_extend_the_wait_of_a_plan(planned):
    run = planned(HALVES.plan(ClusterCapacity.of(A)), A)
    run.follow(ONE_CPU, gpu_node("f", gpus=0, cpus=1))
    run.pass_time(50)
    run.follow(ONE_CPU)
    run.pass_time(11)

    assert run.plan.timeout_error


def test_a_plan_whose_nodes_are_lost_continues_on_a_new_node(planned):
    run = planned(HALVES.plan(ClusterCapacity.of(A)), A)
    run.follow(ONE_CPU)
    run.pass_time(50)

    run.follow(ONE_CPU, B)
    run.pass_time(50)

    assert run.plan.timeout_error is None
    assert run.places() == [(0, None, 2)]


def test_a_plan_with_nodes_to_add_requests_them_again_if_its_nodes_are_lost(planned):
    plan = HALVES.plan(ClusterCapacity.of(A)).model_copy(update={"nodes_to_add": {"gpu": 1}})
    run = planned(plan, A)

    run.follow(ONE_CPU)

    assert run.plan.is_feasible
    assert run.places() == [(0, None, 2)]


def test_a_plan_for_which_no_node_had_room_yet_keeps_its_requests_when_nodes_change(planned):
    """An autoscaler may add nodes for these requests, also if the plan does not contain the nodes."""
    run = planned(HALVES.plan(ClusterCapacity.of(A)), ONE_CPU)

    run.follow(ONE_CPU, gpu_node("f", gpus=0, cpus=1))

    assert run.plan.is_feasible
    assert run.places() == [(0, None, 2)]


def test_a_plan_is_feasible_again_when_nodes_are_added(planned):
    run = planned(TWO_TYPES, A, C)
    run.follow(gpu_node("d", gpus=0, cpus=1), gpu_node("e", gpus=0, cpus=1))
    run.pass_time(5)

    run.follow(A, C)

    assert run.plan.is_feasible
    assert run.places() == [(0, "a", 2), (1, "c", 1)]


def test_slots_of_a_plan_that_may_be_on_any_node_stay_the_same_when_nodes_are_added(planned):
    run = planned(HALVES.plan(ClusterCapacity.of(A)), A)

    assert not run.follow(A, B)
    assert run.places() == [(0, None, 2)]


def test_a_plan_of_slots_without_devices_is_placed_on_the_remaining_and_new_nodes(planned):
    """These slots are assigned to nodes, so that nodes without devices are filled first."""
    run = planned(CPUS.plan(ClusterCapacity.of(A, C)), A, C)
    assert run.places() == [(0, "c", 1), (0, "a", 1)]

    assert run.follow(A, gpu_node("d", gpus=0, cpus=2))
    assert run.places() == [(0, "d", 1), (0, "a", 1)]


def test_a_plan_of_slots_without_devices_avoids_the_devices_of_a_new_node(planned):
    run = planned(CPUS.plan(ClusterCapacity.of(C, gpu_node("d", gpus=0, cpus=2))), C, gpu_node("d", gpus=0, cpus=2))
    assert run.places() == [(0, None, 2)]

    assert run.follow(A, C, gpu_node("d", gpus=0, cpus=2))
    assert run.places() == [(0, "c", 1), (0, "d", 1)]


def test_bundles_of_a_trial_may_use_a_new_node_under_a_plan(planned):
    run = planned(HALVES.plan(ClusterCapacity.of(A)), A)
    bundles = PlacementGroupFactory([{"CPU": 1, "GPU": 2}])
    with pytest.raises(InfeasibleRequestError, match="the nodes do not have room"):
        run.plan.slot_of_bundles(bundles)

    run.follow(A, gpu_node("d", gpus=2, cpus=2))

    assert run.plan.slot_of_bundles(bundles).slot.max_concurrent_trials == 1


def test_a_plan_of_several_slot_types_is_placed_on_the_new_nodes(planned):
    run = planned(TWO_TYPES, A, C)

    assert run.follow(B, C)
    assert run.places() == [(0, "b", 2), (1, "c", 1)]
    assert run.plan.plan == TWO_TYPES


def test_a_plan_can_be_used_if_the_nodes_cannot_be_read(monkeypatch, caplog):
    cluster = SmallCluster(monkeypatch)
    cluster.nodes = None

    plan = RunPlan(TWO_TYPES, interval_s=5.0, wait_for_nodes_s=60.0)

    assert plan.follow_nodes(None)
    assert [place.node_id for place in plan.placements] == [None, None]
    assert "the nodes of the cluster could not be read" in caplog.text


def test_a_policy_for_free_capacity_places_slots_only_on_free_resources(planned):
    busy = gpu_node("a", gpus=1, cpus=4, in_use=Resources(cpus=2))
    run = planned(FreeCapacityPolicy(MixedPolicy(HALVES, CPUS)), busy, C)

    assert run.places() == [(0, "a", 2), (1, "c", 1)]


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        pytest.param(FreeCapacityPolicy, {"b"}, id="not for a policy for free capacity"),
        pytest.param(lambda policy: policy, {"a", "b"}, id="for other policies"),
    ],
)
def test_a_node_whose_devices_are_in_use_has_gpu_slots(planned, wrap, expected):
    busy = gpu_node("a", gpus=1, cpus=2, in_use=Resources(gpus=1))

    places = planned(wrap(MixedPolicy(HALVES, CPUS)), busy, B, C).places()

    assert {node_id for slot_type, node_id, _ in places if slot_type == 0} == expected


def test_the_use_at_the_start_counts_for_free_capacity_because_the_own_trials_use_resources_later(planned):
    run = planned(FreeCapacityPolicy(CpuPolicy(cpus=1)), gpu_node("a", gpus=0, cpus=4, in_use=Resources(cpus=1)))
    assert run.num_trials == 3

    run.follow(gpu_node("a", gpus=0, cpus=4, in_use=Resources(cpus=4)), gpu_node("b", gpus=0, cpus=2))

    assert run.num_trials == 5


# Changes


def test_a_policy_plans_again_when_a_node_is_added(planned):
    run = planned(HALVES, A)

    assert run.follow(A, B)
    assert run.num_trials == 4
    assert [change.why for change in run.plan.changes] == ["1 node added"]
    assert run.plan.changes[0].plan is run.plan.plan
    assert run.plan.have_nodes_changed


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        pytest.param([A], "1 node removed", id="removed"),
        pytest.param([A, gpu_node("d", gpus=2), C], "2 nodes added and 1 node removed", id="added and removed"),
        pytest.param([A, gpu_node("b", gpus=2, cpus=4)], "the resources of a node changed", id="changed"),
    ],
)
def test_the_reason_of_a_change_counts_the_nodes(planned, nodes, why):
    run = planned(HALVES, A, B)

    run.follow(*nodes)

    assert [change.why for change in run.plan.changes] == [why]


def test_a_change_that_leads_to_the_same_plan_is_not_recorded(planned):
    run = planned(HALVES, A)

    run.follow(A, C)

    assert run.plan.changes == []
    assert run.plan.have_nodes_changed


def test_the_plan_changes_only_at_the_interval(planned):
    run = planned(HALVES, A)
    run.follow(A, B)

    run.follow(A)
    assert run.num_trials == 4
    run.pass_time(4.9)
    run.follow(A)
    assert run.num_trials == 4
    run.pass_time(0.2)
    run.follow(A)
    assert run.num_trials == 2


def test_a_node_that_joins_never_reduces_the_number_of_trials(planned):
    """The policy alone would then plan only the GPU."""
    run = planned(HALVES | CpuPolicy(cpus=1), gpu_node("c", gpus=0, cpus=8))
    assert run.num_trials == 8

    run.follow(gpu_node("c", gpus=0, cpus=8), A)

    assert run.num_trials == 10
    assert [slot.has_device for slot in run.plan.plan.slots] == [False, True]


def test_a_removed_node_may_reduce_the_number_of_trials(planned):
    run = planned(HALVES | CpuPolicy(cpus=1), gpu_node("c", gpus=0, cpus=8), gpu_node("d", gpus=0, cpus=8))

    run.follow(gpu_node("c", gpus=0, cpus=8), A)

    assert run.num_trials == 2


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(CappedPolicy(HALVES | CpuPolicy(cpus=1), max_concurrent_trials=6), id="with a cap"),
        pytest.param(HALVES | CappedPolicy(CpuPolicy(cpus=1), max_concurrent_trials=6), id="with a capped choice"),
    ],
)
def test_a_policy_that_limits_the_trials_does_not_add_the_slots_of_new_nodes(planned, policy):
    run = planned(policy, gpu_node("c", gpus=0, cpus=8))

    run.follow(gpu_node("c", gpus=0, cpus=8), A)

    assert run.num_trials == 6


def test_a_new_node_on_which_nothing_fits_does_not_change_the_plan(planned):
    run = planned(GpuPolicy(gpus=1, cpus=1) | CpuPolicy(cpus=4), gpu_node("c", gpus=0, cpus=8))
    before = run.plan.plan

    run.follow(gpu_node("c", gpus=0, cpus=8), gpu_node("d", gpus=0, cpus=2))

    assert run.plan.plan == before


def test_an_error_of_a_users_policy_does_not_change_the_plan(planned, monkeypatch, caplog):
    run = planned(HALVES, A)
    before = run.plan.plan

    def fails(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(GpuPolicy, "plan", fails)
    run.follow(A, B)

    assert run.plan.plan is before
    assert "1 node added: the plan does not change because the policy failed" in caplog.text


def test_a_plan_that_is_given_during_a_run_is_recorded_with_its_reason(planned):
    run = planned(HALVES, A)

    other = TWO_TYPES.model_copy(update={"slots": TWO_TYPES.slots[::-1]})
    run.plan.replan(other, "a test")

    assert [(change.plan, change.why) for change in run.plan.changes] == [(other, "a test")]
    assert run.plan.slot_types.slots == other.slots
    assert run.plan.common_factory.required_resources == {"CPU": 2}
    assert run.plan.follow_nodes(None)


# Infeasible plans


def test_no_trial_starts_while_no_plan_is_feasible(planned, caplog):
    run = planned(HALVES, A, C)

    run.follow(C)

    assert not run.plan.is_feasible
    assert run.places() == []
    assert "1 node removed. No plan is feasible, so no trial starts until nodes are added" in caplog.text


def test_the_plan_is_kept_if_it_is_infeasible_only_for_the_policy_because_a_node_was_added(planned, monkeypatch):
    run = planned(HALVES, A)
    before = run.plan.plan

    def refuses(*_):
        raise NO_ROOM

    monkeypatch.setattr(GpuPolicy, "plan", refuses)
    run.follow(A, B)

    assert run.plan.is_feasible
    assert run.plan.plan is before


def test_the_run_ends_if_no_plan_is_feasible_for_too_long(planned):
    run = planned(HALVES, A)
    run.pass_time(1000)
    assert run.plan.timeout_error is None

    run.plan.wait_for_nodes(NO_ROOM, "a test")
    run.pass_time(60)
    assert run.plan.timeout_error is None
    run.pass_time(0.1)
    assert run.plan.timeout_error is NO_ROOM


def test_further_infeasible_changes_do_not_extend_the_time_and_are_recorded_once(planned):
    run = planned(HALVES, A)
    run.plan.wait_for_nodes(NO_ROOM, "a test")
    run.pass_time(50)
    run.plan.wait_for_nodes(NO_ROOM, "another test")
    run.pass_time(11)

    assert run.plan.timeout_error is NO_ROOM
    assert len(run.plan.changes) == 1


def test_a_feasible_plan_ends_the_wait(planned):
    run = planned(HALVES, A, C)
    run.follow(C)
    run.pass_time(100)

    run.follow(A, C)

    assert run.plan.is_feasible
    assert run.plan.timeout_error is None
    assert run.num_trials == 2


# The slots of single trials


BUNDLES = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])


def test_the_slot_of_a_request_is_computed_once(planned):
    run = planned(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))

    own = run.plan.slot_of_bundles(BUNDLES)

    assert own is run.plan.slot_of_bundles(BUNDLES)
    assert own.slot.max_concurrent_trials == 4
    assert own.factory.bundles == BUNDLES.bundles


def test_the_slot_of_a_request_changes_with_the_nodes(planned):
    run = planned(CpuPolicy(cpus=1), gpu_node("a", gpus=0, cpus=8))
    run.plan.slot_of_bundles(BUNDLES)

    run.follow(gpu_node("a", gpus=0, cpus=8), gpu_node("b", gpus=0, cpus=8))

    assert run.plan.slot_of_bundles(BUNDLES).slot.max_concurrent_trials == 8


GPU_BUNDLES = PlacementGroupFactory([{"CPU": 1}, {"GPU": 1}])


def test_a_request_that_contradicts_the_policy_is_invalid(planned):
    run = planned(CpuPolicy(cpus=1), A)

    with pytest.raises(InvalidResourcesError, match="the policy plans trials without a GPU"):
        run.plan.slot_of_bundles(GPU_BUNDLES)


def test_a_request_for_devices_that_are_gone_is_infeasible(planned):
    """The run then waits for nodes, or ends and can be resumed."""
    run = planned(HALVES | CpuPolicy(cpus=1), A, C)
    run.follow(C)

    with pytest.raises(InfeasibleRequestError, match="the remaining nodes have no such devices"):
        run.plan.slot_of_bundles(GPU_BUNDLES)


def test_the_slot_of_a_config_is_computed_once(planned):
    run = planned(ByConfigPolicy("algo", {"SAC": CPUS}, default=HALVES), A)

    own = run.plan.slot_by_config({"algo": "SAC"})

    assert own is run.plan.slot_by_config({"algo": "SAC"})
    assert own.factory.required_resources == {"CPU": 2}


def test_a_config_about_which_the_policy_knows_nothing_is_reported_once(planned, monkeypatch, caplog):
    run = planned(ByConfigPolicy("algo", {"SAC": CPUS}, default=HALVES), A)
    monkeypatch.setattr(type(run.plan.plan.by_config), "why_unknown", lambda self, config: f"{config} is unknown")

    run.plan.slot_by_config({"algo": "SAC"})
    run.plan.slot_by_config({"algo": "SAC"})

    assert caplog.messages == ["{'algo': 'SAC'} is unknown: the trial gets 2 CPUs"]


def test_a_known_config_is_not_reported(planned, caplog):
    run = planned(ByConfigPolicy("algo", {"SAC": CPUS}, default=HALVES), A)

    run.plan.slot_by_config({"algo": "SAC"})

    assert caplog.messages == []


def test_the_slot_without_a_device_is_the_first_feasible_choice_without_one(planned):
    run = planned(HALVES | GpuPolicy(gpus=1) | CpuPolicy(cpus=64) | CpuPolicy(cpus=2) | CpuPolicy(cpus=1), A)

    own = run.plan.slot_without_device()

    assert own.slot.trial.cpus == 2
    assert own is run.plan.slot_without_device()


@pytest.mark.parametrize(
    ("policy", "cause"),
    [
        pytest.param(HALVES | GpuPolicy(gpus=1), type(None), id="all choices have devices"),
        pytest.param(
            HALVES | CpuPolicy(cpus=64), InfeasibleRequestError, id="the choice without a device is too large"
        ),
        pytest.param(TWO_TYPES, type(None), id="a plan has no choices"),
    ],
)
def test_without_a_feasible_choice_without_a_device_the_fallback_is_infeasible(planned, policy, cause):
    run = planned(policy, A)

    with pytest.raises(InfeasibleRequestError, match=r"Add a choice without a device") as caught:
        run.plan.slot_without_device()

    assert isinstance(caught.value.__cause__, cause)


# Checks


def test_the_versions_of_a_plan_by_config_are_checked_at_the_start(planned, monkeypatch):
    def refuses(_):
        raise InvalidResourcesError("other versions")

    monkeypatch.setattr(run_plan, "check_versions", refuses)

    with pytest.raises(InvalidResourcesError, match="other versions"):
        planned(ByConfigPolicy("algo", {"SAC": CPUS}), A)
    assert planned(CPUS, A)


def test_a_cluster_that_cannot_be_read_is_an_error_at_the_start_of_a_policy(monkeypatch):
    SmallCluster(monkeypatch).nodes = None

    with pytest.raises(ProbeError):
        RunPlan(HALVES, interval_s=5.0, wait_for_nodes_s=60.0)


# Nodes with devices


def test_trials_without_devices_fill_the_nodes_without_devices_first(planned):
    run = planned(CpuPolicy(cpus=1), A, C)

    assert [node for _, node, _ in run.places()] == ["c", "a"]


@pytest.mark.parametrize(
    ("policy", "nodes"),
    [
        pytest.param(GpuPolicy(gpus=0.5, cpus=1), (A, C), id="trials with devices"),
        pytest.param(CpuPolicy(cpus=1), (C, C.model_copy(update={"node_id": "d"})), id="no devices"),
        pytest.param(CpuPolicy(cpus=1, num_workers=2), (A, C), id="Train chooses the nodes of workers"),
    ],
)
def test_ray_chooses_the_nodes_of_equal_slots_if_no_node_must_stay_free(planned, policy, nodes):
    assert [node for _, node, _ in planned(policy, *nodes).places()] == [None]
