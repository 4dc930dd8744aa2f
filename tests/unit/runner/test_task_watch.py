"""Tests of the warnings about tasks that wait for resources that a run has reserved."""

import pytest

from tune_policies.trainers.watches.task_watch import StarvedTasks, starved_requests

OURS, OTHERS = "01000000", "02000000"


def node(cpus, *groups):
    """Return the resources of a node with a placement group for each job ID and number of CPUs."""
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
        pytest.param([node(2, (OURS, 1), (OURS, 1))], {"CPU": 1}, True, id="the trials reserve every CPU"),
        pytest.param([node(2, (OURS, 1.5))], {"CPU": 1}, True, id="the free part of a CPU is less than the task needs"),
        pytest.param([node(2, (OURS, 1))], {"CPU": 1}, False, id="a CPU outside the groups, which other tasks may use"),
        pytest.param([node(2, (OURS, 2)), node(1)], {"CPU": 1}, False, id="another node has a free CPU"),
        pytest.param([node(2, (OURS, 2))], {"CPU": 4}, False, id="no node has that many CPUs"),
        pytest.param([node(2, (OTHERS, 2))], {"CPU": 1}, False, id="another program reserves them"),
        pytest.param([node(2, (OURS, 1), (OTHERS, 1))], {"CPU": 1}, True, id="both programs reserve them"),
        pytest.param([node(2, (OURS, 2))], {"CPU": 1, "TPU": 1}, False, id="no node has the device"),
        pytest.param([node(2, (OURS, 2))], {}, False, id="an empty request"),
        pytest.param([node(2, (OURS, 2))], {f"CPU_group_{0:028x}{OURS}": 1}, False, id="a request inside a group"),
    ],
)
def test_tasks_are_starved_if_they_would_fit_without_the_placement_groups_of_the_run(nodes, request_, is_so):
    assert are_starved(nodes, request_) == is_so


def num_warnings(*readings):
    tasks = StarvedTasks()
    return [len(tasks.read(starved, now_s)) for now_s, starved in readings]


def test_the_warning_is_printed_after_five_consecutive_seconds_and_then_once_a_minute():
    one = [{"CPU": 1.0}]

    assert num_warnings((0, one), (4, one), (5, one), (7, one), (64, one), (65, one)) == [0, 0, 1, 0, 0, 1]
    assert num_warnings((0, one), (4, one), (6, []), (8, one), (12, one)) == [0, 0, 0, 0, 0]


def warning(*reading):
    tasks = StarvedTasks()
    tasks.read(reading[0], 0, *reading[1:])
    [text] = tasks.read(reading[0], 6, *reading[1:])
    return text


def test_the_warning_suggests_a_policy_that_reserves_the_requested_resources():
    text = warning([{"CPU": 2.0, "GPU": 0.5}])

    assert text.startswith("tasks that need 2 CPUs, 0.5 GPU have waited for 6 s")
    assert "ReservingPolicy(policy, cpus=2, gpus=0.5)" in text


def test_the_suggested_policy_also_reserves_the_resources_of_long_lived_actors():
    text = warning([{"CPU": 1.0}], {"CPU": 2.0, "GPU": 1.0})

    assert "because long-lived actors and this program's trials and Train workers have reserved these resources" in text
    assert text.endswith(
        "leave room for these tasks and for the actors, which use 2 CPUs, plan with ReservingPolicy(policy, cpus=3)"
    )
