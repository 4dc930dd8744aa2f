"""Which tasks wait for what a run has reserved, and when that is said."""

import pytest

from tune_policies.tune.task_watch import StarvedTasks, starved_requests

OURS, OTHERS = "01000000", "02000000"


def node(cpus, *groups):
    """A node on which each of the groups, of a job, has so many CPUs."""
    found = {"CPU": cpus, "memory": 8e9}
    for number, (job_id, reserved) in enumerate(groups):
        identifier = f"{number:028x}{job_id}"
        found |= {f"CPU_group_{identifier}": reserved, f"CPU_group_0_{identifier}": reserved}
    return found


def are_starved(nodes, request):
    return starved_requests(nodes, [request], OURS) == [request]


@pytest.mark.parametrize(
    ("nodes", "request_", "is_so"),
    [
        pytest.param([node(2, (OURS, 1), (OURS, 1))], {"CPU": 1}, True, id="the trials have every CPU"),
        pytest.param([node(2, (OURS, 1.5))], {"CPU": 1}, True, id="they have left less than a task needs"),
        pytest.param([node(2, (OURS, 1))], {"CPU": 1}, False, id="a CPU is left, which other tasks may use just now"),
        pytest.param([node(2, (OURS, 2)), node(1)], {"CPU": 1}, False, id="another node has one"),
        pytest.param([node(2, (OURS, 2))], {"CPU": 4}, False, id="no node has as many anyway"),
        pytest.param([node(2, (OTHERS, 2))], {"CPU": 1}, False, id="another program has them"),
        pytest.param([node(2, (OURS, 1), (OTHERS, 1))], {"CPU": 1}, True, id="both have them"),
        pytest.param([node(2, (OURS, 2))], {"CPU": 1, "TPU": 1}, False, id="there is no such device"),
        pytest.param([node(2, (OURS, 2))], {}, False, id="what needs nothing"),
        pytest.param([node(2, (OURS, 2))], {f"CPU_group_{0:028x}{OURS}": 1}, False, id="what waits in a group"),
    ],
)
def test_tasks_are_starved_where_the_runs_groups_alone_keep_them_waiting(nodes, request_, is_so):
    assert are_starved(nodes, request_) == is_so


def told(*readings):
    tasks = StarvedTasks()
    return [len(tasks.read(starved, now_s)) for now_s, starved in readings]


def test_it_is_said_after_five_seconds_and_then_once_a_minute():
    one = [{"CPU": 1.0}]

    assert told((0, one), (4, one), (5, one), (7, one), (64, one), (65, one)) == [0, 0, 1, 0, 0, 1]


def test_tasks_that_wait_a_moment_again_and_again_are_no_reason():
    one = [{"CPU": 1.0}]

    assert told((0, one), (4, one), (6, []), (8, one), (12, one)) == [0, 0, 0, 0, 0]


def test_the_way_out_is_named():
    tasks = StarvedTasks()
    starved = [{"CPU": 2.0, "GPU": 0.5}]
    tasks.read(starved, 0)

    [text] = tasks.read(starved, 6)

    assert text.startswith("tasks that need 2 CPUs, 0.5 GPU have waited for 6 s")
    assert "ReservingPolicy(policy, cpus=2, gpus=0.5)" in text


def test_what_lasting_actors_hold_is_to_be_left_free_too():
    tasks = StarvedTasks()
    tasks.read([{"CPU": 1.0}], 0, {"CPU": 2.0, "GPU": 1.0})

    [text] = tasks.read([{"CPU": 1.0}], 6, {"CPU": 2.0, "GPU": 1.0})

    assert "trials and Train workers, and lasting actors, have reserved them on every node" in text
    assert (
        "Leave room for them, and for the actors, which use 2 CPUs: plan with ReservingPolicy(policy, cpus=3)" in text
    )
