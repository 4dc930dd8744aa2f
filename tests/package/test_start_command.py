"""A node of a cluster without an autoscaler has what Ray reads of KubeRay's start command, and what it detects."""

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.package.kuberay_start_command import started_as
from tune_policies.kuberay.design.device_plugins import ray_resource
from tune_policies.kuberay.reading.kuberay_models import WorkerGroupSpec
from tune_policies.kuberay.reading.ray_counts import started_counts
from tune_policies.values.errors import InvalidResourcesError

SAMPLES = os.environ.get("TUNE_POLICIES_KUBERAY_SAMPLES")

quantities = st.sampled_from(["0", "1", "4", "500m", "16Gi", "2G", 1, 8])
params = st.sampled_from(["0", "4", "1.5", "x", ""])
quoted = st.sampled_from(
    ["'{\"a\": 1}'", '"{\\"TPU\\": 4, \\"b\\": 2}"', "'{\"GPU\": 3}'", '{"a": 1}', "'{\"a\": 1.5}'", "", "x", "'[1]'"]
)
DEVICES = (
    *("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"),
    *("google.com/tpu", "aws.amazon.com/neuroncore", "aws.amazon.com/neuron", "habana.ai/gaudi"),
)
amounts = st.fixed_dictionaries(
    {},
    optional={"cpu": quantities, "memory": quantities, "hugepages-2Mi": quantities}
    | dict.fromkeys(DEVICES, st.sampled_from(["0", "1", 4])),  # Kubernetes has no parts of devices
)
groups = st.fixed_dictionaries(
    {
        "groupName": st.just("mine"),
        "template": st.builds(
            lambda limits, requests: {
                "spec": {"containers": [{"name": "ray", "resources": {"limits": limits, "requests": requests}}]}
            },
            amounts,
            amounts,
        ),
    },
    optional={
        "resources": st.dictionaries(
            st.sampled_from(["CPU", "GPU", "TPU", "memory", "gpu", "mine"]),
            st.sampled_from(["0", "2", "8Gi"]),
            max_size=3,
        ),
        "rayStartParams": st.fixed_dictionaries(
            {}, optional={"num-cpus": params, "num-gpus": params, "memory": params, "resources": quoted}
        ),
    },
)


def read_here(group):
    try:
        return {
            name: amount for name, amount in started_counts(WorkerGroupSpec.model_validate(group)).items() if amount
        }
    except InvalidResourcesError:
        return None


def group_with(limits, **fields):
    container = {"name": "ray", "resources": {"limits": {"cpu": "8", **limits}, "requests": {}}}
    return {"groupName": "mine", "template": {"spec": {"containers": [container]}}, **fields}


@settings(max_examples=100, deadline=None)
@given(groups)
def test_a_node_has_what_the_command_tells_ray_and_the_devices_that_it_finds(group):
    expected, found = started_as(group), read_here(group)

    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    detectable = {ray_resource(key) for key in limits} - {None}
    assert (found is None) == (expected is None)
    if expected is not None:
        assert expected.items() <= found.items()
        assert found.keys() - expected.keys() <= detectable


@pytest.mark.parametrize(
    ("limits", "fields", "expected"),
    [
        pytest.param({"nvidia.com/mig-1g.10gb": 2}, {}, {"GPU": 2}, id="parts of GPUs"),
        pytest.param({"aws.amazon.com/neuroncore": 4}, {}, {"neuron_cores": 4}, id="Neuron cores"),
        pytest.param({"aws.amazon.com/neuron": 2}, {}, {"neuron_cores": 4}, id="Neuron chips have two cores or more"),
        pytest.param({"habana.ai/gaudi": 8}, {}, {"HPU": 8}, id="cards that Ray finds on the node"),
        pytest.param({"nvidia.com/gpu.shared": 4}, {}, {"GPU": 1}, id="time slices of one GPU"),
        pytest.param(
            {"nvidia.com/gpu": 4}, {"rayStartParams": {"num-gpus": "0"}}, {}, id="GPUs that Ray is told of none"
        ),
        pytest.param({"nvidia.com/gpu": 4}, {"resources": {"GPU": "2"}}, {"GPU": 2}, id="what the group says"),
        pytest.param({}, {"resources": {"gpu": "2"}}, {"GPU": 2}, id="in any case of letters"),
        pytest.param({}, {"rayStartParams": {"resources": "'{\"mine\": 2}'"}}, {"mine": 2}, id="in single quotes"),
        pytest.param(
            {"aws.amazon.com/neuroncore": 4},
            {"rayStartParams": {"resources": '{"mine": 2}'}},
            {"mine": 2, "neuron_cores": 4},
            id="without quotes, which KubeRay adds with the devices",
        ),
    ],
)
def test_without_an_autoscaler_a_node_has(limits, fields, expected):
    assert read_here(group_with(limits, **fields)) == {"CPU": 8, **expected}


@pytest.mark.skipif(not SAMPLES, reason="TUNE_POLICIES_KUBERAY_SAMPLES names no folder")
@pytest.mark.parametrize("path", sorted(Path(SAMPLES or ".").glob("ray-cluster*.yaml")), ids=lambda path: path.stem)
def test_the_groups_of_an_official_sample_start_so(path):
    for manifest in yaml.safe_load_all(path.read_text()):
        for group in manifest["spec"].get("workerGroupSpecs", []) if manifest["kind"] == "RayCluster" else ():
            container = group["template"]["spec"]["containers"][0]
            container["resources"] = {"limits": {}, "requests": {}, **container.get("resources", {})}

            assert read_here(group) == started_as(group)
