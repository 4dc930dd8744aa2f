"""Tests that, without an autoscaler, a node has the resources of its group and the detected devices."""

import pytest

from tune_policies.kuberay.reading.kuberay_models import WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import started_counts


def started(limits, **fields):
    container = {"name": "ray", "resources": {"limits": {"cpu": "8", **limits}, "requests": {}}}
    group = {"groupName": "mine", "template": {"spec": {"containers": [container]}}, **fields}
    counts = started_counts(WorkerGroupSpec.model_validate(group))
    return {name: amount for name, amount in counts.items() if amount}


@pytest.mark.parametrize(
    ("limits", "fields", "expected"),
    [
        pytest.param({"nvidia.com/mig-1g.10gb": 2}, {}, {"GPU": 2}, id="parts of GPUs"),
        pytest.param({"aws.amazon.com/neuroncore": 4}, {}, {"neuron_cores": 4}, id="Neuron cores"),
        pytest.param({"aws.amazon.com/neuron": 2}, {}, {"neuron_cores": 4}, id="Neuron chips have two cores or more"),
        pytest.param({"habana.ai/gaudi": 8}, {}, {"HPU": 8}, id="cards that Ray finds on the node"),
        pytest.param({"nvidia.com/gpu.shared": 4}, {}, {"GPU": 1}, id="time slices of one GPU"),
        pytest.param({"nvidia.com/gpu": 4}, {"rayStartParams": {"num-gpus": "0"}}, {}, id="GPUs declared as 0"),
        pytest.param(
            {"nvidia.com/gpu": 4}, {"resources": {"GPU": "2"}}, {"GPU": 2}, id="GPUs in the resources of the group"
        ),
        pytest.param({}, {"rayStartParams": {"resources": "'{\"mine\": 2}'"}}, {"mine": 2}, id="in single quotes"),
    ],
)
def test_without_an_autoscaler_a_node_has_the_detected_devices(limits, fields, expected):
    assert started(limits, **fields) == {"CPU": 8, **expected}
