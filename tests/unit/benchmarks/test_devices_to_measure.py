"""Tests of the names of devices to measure, and of the resources that a trial reserves on each device."""

import pytest

from tests.clusters import nodes
from tune_policies import ClusterCapacity, InvalidResourcesError, Resources
from tune_policies.benchmarks.measuring.device_plans import Device, parse_device, parse_devices, plan_device


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("cpu", Device("CPU")),
        ("GPU", Device("GPU")),
        ("gpu@0.25", Device("GPU", 0.25)),
        ("gpu@2", Device("GPU", 2)),
        ("tpu@4", Device("TPU", 4)),
        ("npu@0.5", Device("NPU", 0.5)),
        ("neuron_cores", Device("neuron_cores")),
    ],
)
def test_a_device_is_parsed_to_a_family_and_an_amount(text, device):
    assert parse_device(text) == device


@pytest.mark.parametrize("text", ["cpu", "gpu", "gpu@0.25", "TPU", "TPU@4"])
def test_a_parsed_device_is_formatted_as_the_same_text(text):
    assert str(parse_device(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpus", "unknown device 'gpus'; did you mean 'gpu'?"),
        ("quantum", "unknown device 'quantum'; known: cpu, FURIOSA, gpu"),
        ("cpu@2", "with --cpus"),
        ("gpu@", "a number above 0, such as 0.25"),
        ("gpu@nan", "a number above 0, such as 0.25"),
        ("gpu@1.5", "Request 1 or 2"),
        ("TPU@0.5", "valid amounts per worker are 1, 2, 4 or 8"),
        ("HPU@0.5", "valid amounts per worker are whole numbers"),
    ],
)
def test_an_invalid_device_is_refused_with_a_suggestion(text, message):
    with pytest.raises(InvalidResourcesError, match=message.replace("?", r"\?")):
        parse_device(text)


def test_a_device_given_twice_is_measured_once():
    assert parse_devices(["gpu", "cpu", "gpu@1"]) == (Device("GPU"), Device("CPU"))


def test_a_trial_reserves_the_same_cpus_on_every_device():
    capacity = nodes((16, 1))

    workers = [plan_device(parse_device(text), capacity, 4).plan.worker for text in ("cpu", "gpu", "gpu@0.25")]

    assert workers == [Resources(cpus=4), Resources(cpus=4, gpus=1), Resources(cpus=4, gpus=0.25)]


def test_a_device_of_another_family_is_planned_with_its_resource():
    capacity = ClusterCapacity.of(Resources(cpus=8, custom={"TPU": 4}))

    planned = plan_device(parse_device("TPU@4"), capacity, 1)

    assert planned.plan.worker == Resources(cpus=1, custom={"TPU": 4})


def test_a_device_that_the_cluster_lacks_is_recorded_as_missing():
    planned = plan_device(parse_device("gpu"), ClusterCapacity.of(Resources(cpus=8)), 1)

    assert planned.plan is None
    assert planned.found.slot is None
    assert "short of GPU" in planned.found.why_missing
