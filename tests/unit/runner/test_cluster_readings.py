"""Tests of what a run does after each reading of the cluster, such as one with lost placement groups."""

import pytest
from ray.tune.experiment import Trial

from tests.clusters import gpu_node
from tests.unit.runner.small_runs import SmallRun, reading
from tune_policies import CpuPolicy, GpuPolicy, InfeasibleRequestError, MixedPolicy
from tune_policies.trainers.scheduling import run_events

HALVES, CPUS = GpuPolicy(gpus=0.5, cpus=1), CpuPolicy(cpus=2)
MIXED = MixedPolicy(HALVES, CPUS)
NODE = gpu_node("a", gpus=1, cpus=4, memory_gib=16)
TWO_GPUS = gpu_node("a", gpus=2, cpus=4, memory_gib=16)
NODES = gpu_node("a", gpus=1, cpus=2), gpu_node("b", gpus=1, cpus=2), gpu_node("c", gpus=0, cpus=2)
NO_ROOM = InfeasibleRequestError("more", "less", "CPU", "Add nodes.")


@pytest.fixture
def run_of(monkeypatch):
    """A function that returns a run under a policy on nodes."""
    return lambda policy, *nodes, **options: SmallRun(monkeypatch, policy, *nodes or [NODE], **options)


def test_a_run_in_a_trial_that_can_never_start_raises_the_error(run_of):
    run = run_of(HALVES)
    run.add()
    run.watch.next_reading = reading(never=NO_ROOM)

    with pytest.raises(InfeasibleRequestError):
        run.step()
    assert run.controller.saves == [True]


def test_busy_devices_are_reported(run_of):
    run = run_of(HALVES)
    run.add()
    run.watch.next_reading = reading(busy="another program uses the GPU")

    run.step()

    assert run.watch.warnings == ["another program uses the GPU"]


def test_a_trial_whose_placement_group_was_lost_is_requested_again(run_of, caplog):
    run = run_of(HALVES)
    first, second = run.add(2)
    run.request_all()
    run.processes.groups = {first.trial_id: "g1", second.trial_id: "g2"}
    run.processes.started = {first.trial_id, second.trial_id}
    run.watch.next_reading = reading(lost_groups={"g1"})

    again = run.step()

    assert run.controller.withdrawn == [first]
    assert again is first
    assert caplog.messages == ["the placement group of train_00000000 was lost and is requested again"]


def test_a_trial_for_which_a_process_is_reset_keeps_its_request_if_the_node_of_the_process_is_lost(run_of):
    """The reset fails. Tune does not start a trial again whose reset it has not seen to end."""
    run = run_of(HALVES)
    (trial,) = run.add()
    run.request_all()
    run.processes.groups = {trial.trial_id: "g1"}
    run.processes.started = {trial.trial_id}
    trial.temporary_state.ray_actor = object()
    run.watch.next_reading = reading(lost_groups={"g1"})

    run.step()

    assert not run.controller.withdrawn


def test_lost_groups_without_a_process_are_requested_again(run_of, caplog):
    run = run_of(HALVES)
    run.add()
    asked = []
    run.core.tune.groups.replace_lost = lambda lost: asked.append(lost) or [{"CPU": 1}]
    run.watch.next_reading = reading(lost_groups={"g1"})

    run.step()

    assert asked == [{"g1"}]
    assert "a placement group for {'CPU': 1} was lost and is requested again" in caplog.text


def test_the_watch_reads_the_groups_in_which_no_process_has_started(run_of):
    run = run_of(HALVES, TWO_GPUS)
    first, second, third = run.add(3)
    run.run_all()
    second.set_status(Trial.PENDING)
    third.set_status(Trial.PENDING)
    run.processes.groups = {first.trial_id: "g1", second.trial_id: "g2"}
    run.core.tune.groups.ids_without_process = frozenset({"g0"})
    run.core.tune.groups.own_ids = frozenset({"g0", "g1", "g2"})

    run.step()

    assert run.watch.asked_groups == ({"g0", "g2"}, {"g0", "g1", "g2"})


def test_the_nodes_of_running_trials_are_recorded(run_of, monkeypatch):
    run = run_of(MIXED, NODES[0])
    trials = run.add(2)
    run.run_all()
    monkeypatch.setattr(run_events, "actor_of", lambda trial: {trials[0]: "actor-0"}.get(trial))
    run.cluster.nodes = NODES
    run.watch.next_reading = reading(NODES, node_of_actor={"actor-0": "a", "actor-1": "b"})
    run.step()

    run.watch.next_reading = reading(NODES, node_of_actor={"actor-0": "a", "actor-1": "b"})
    run.step()

    assert run.slots.assignments[trials[0]].node_id == "a"


@pytest.mark.parametrize(
    ("stuck", "ends"), [pytest.param(2, True, id="all of them"), pytest.param(1, False, id="one of two")]
)
def test_a_run_ends_if_all_of_its_trials_wait_for_workers_that_cannot_start(run_of, monkeypatch, stuck, ends):
    run = run_of(HALVES)
    trials = run.add(2)
    run.run_all()
    monkeypatch.setattr(run_events, "actor_of", lambda trial: f"actor-{trials.index(trial)}")
    run.watch.next_reading = reading(stuck={f"actor-{i}": NO_ROOM for i in range(stuck)} | {"unknown": NO_ROOM})

    if ends:
        with pytest.raises(InfeasibleRequestError):
            run.step()
    else:
        run.step()

    assert run.controller.saves == [True] * ends
    assert run.watch.warnings[0].startswith("train_00000000 waits for workers that cannot start: ")
