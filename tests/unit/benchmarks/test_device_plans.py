"""Tests of whether the processes of a group run concurrently, and of the resources that each process reserves."""

import pytest

from tests.clusters import nodes
from tune_policies.benchmarks.measuring.device_plans import colocate, parse_device, plan_device
from tune_policies.benchmarks.record.missing_measurements import groups_of
from tune_policies.benchmarks.record.settings import Settings


def colocated(capacity, cpus, *devices, has_control=True):
    settings = Settings(sizes={"mlp": (1,)}, devices=devices, cpus=cpus, has_control=has_control)
    plans = {device: plan_device(parse_device(device), capacity, cpus).plan for device in devices}
    (group,) = groups_of(settings, devices)
    colocation = colocate(group, plans, capacity)
    return colocation, [
        colocation.options(configuration, plans[configuration.device], group) for configuration in group.configurations
    ]


@pytest.mark.parametrize(
    ("shapes", "cpus", "devices"),
    [
        pytest.param([(3, 1)], 1, ("cpu", "gpu"), id="three CPUs for a CPU, its control and a GPU"),
        pytest.param([(2, 0), (4, 1)], 2, ("cpu", "gpu"), id="on several nodes"),
        pytest.param([(4, 1)], 1, ("gpu@0.25", "cpu", "cpu"), id="fractions of a GPU"),
    ],
)
def test_processes_that_fit_concurrently_reserve_the_resources_of_trials(shapes, cpus, devices):
    colocation, options = colocated(nodes(*shapes), cpus, *devices)

    assert (colocation.is_together, colocation.shares_cpus_on) == (True, None)
    assert {each["num_cpus"] for each in options} == {cpus}


@pytest.mark.parametrize(
    ("devices", "reserved"),
    [
        (("cpu",), [(16, 0), (0, 0)]),
        (("cpu", "gpu"), [(0, 0), (16, 1), (0, 0)]),
        (("gpu@0.5", "cpu"), [(16, 0.5), (0, 0), (0, 0.5)]),
    ],
)
def test_if_cpus_are_short_one_process_reserves_the_cpus_for_all_processes(devices, reserved):
    colocation, options = colocated(nodes((16, 1)), 16, *devices)

    assert colocation.is_together
    assert [(each["num_cpus"], each["num_gpus"]) for each in options] == reserved


@pytest.mark.parametrize(
    "devices",
    [
        pytest.param(("gpu",), id="the control has no GPU"),
        pytest.param(("cpu", "gpu", "gpu@0.5"), id="a GPU and half of the same GPU"),
    ],
)
def test_if_devices_are_short_the_processes_run_one_after_the_other(devices):
    colocation, _ = colocated(nodes((16, 1)), 1, *devices)

    assert not colocation.is_together
