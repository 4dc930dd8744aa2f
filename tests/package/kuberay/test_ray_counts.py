"""Tests that this project and Ray's autoscaler count the same resources of sample groups and generated groups."""

import os
from fractions import Fraction
from pathlib import Path

import pytest
import ray
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tune_policies.files.yaml_documents import read_documents
from tune_policies.kuberay.reading.documents import clusters_in, read_text
from tune_policies.kuberay.reading.kuberay_models import WorkerGroupSpec
from tune_policies.kuberay.reading.kubernetes_quantities import parse_quantity, ray_amount
from tune_policies.kuberay.reading.load_cluster import to_cluster_spec
from tune_policies.kuberay.reading.ray_counts import ray_counts
from tune_policies.values.errors import InvalidResourcesError

SAMPLES = os.environ.get("TUNE_POLICIES_KUBERAY_SAMPLES")
READS_GROUP_FIELDS = tuple(map(int, ray.__version__.split(".")[:2])) >= (2, 51)
DEFAULTS = {"replicas": 0, "minReplicas": 0, "maxReplicas": 2147483647, "numOfHosts": 1}

numbers = st.decimals(min_value=0, max_value=10**6, places=3).map(str) | st.integers(0, 10**9).map(str)
units = st.sampled_from(["", "m", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti", "u", "n", "e3", "E-2"])
quantities = st.builds("{}{}".format, numbers, units)
params = st.sampled_from(["0", "4", " 8", "1.5", "x", ""])
quoted = st.sampled_from(
    ["'{\"a\": 1}'", '"{\\"TPU\\": 4, \\"b\\": 2}"', "'{\"GPU\": 3}'", '{"a": 1}', "'{\"a\": 1.5}'", "", "x"]
)
keys = st.sampled_from(
    ["cpu", "memory", "nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpu.shared", "google.com/tpu", "ephemeral-storage"]
)
amounts = st.dictionaries(keys, quantities | st.integers(0, 64), max_size=5)
names = st.sampled_from(["CPU", "GPU", "TPU", "memory", "gpu", "mine", "accelerator_type:L4"])
selectors = st.fixed_dictionaries(
    {},
    optional={
        "cloud.google.com/gke-tpu-topology": st.sampled_from(["2x2x1", "4x4", "2x4", "16x16", ""]),
        "cloud.google.com/gke-tpu-accelerator": st.sampled_from(["tpu-v4-podslice", "tpu-v6e-slice", "tpu-v9"]),
    },
)


def pod(limits, requests, selector):
    container = {"name": "ray", "resources": {"limits": limits, "requests": requests}}
    return {"spec": {"containers": [container], "nodeSelector": selector}}


groups = st.fixed_dictionaries(
    {"groupName": st.just("gpu"), "template": st.builds(pod, amounts, amounts, selectors)},
    optional={
        "resources": st.dictionaries(names, quantities, max_size=4),
        "labels": st.just({"ray.io/accelerator-type": "L4"}),
        "minReplicas": st.integers(0, 3),
        "maxReplicas": st.integers(3, 9),
        "numOfHosts": st.integers(1, 4),
        "idleTimeoutSeconds": st.integers(0, 100),
        "rayStartParams": st.fixed_dictionaries(
            {},
            optional={"num-cpus": params, "num-gpus": params, "memory": params, "resources": quoted},
        ),
    },
)


def as_ray_reads(group):
    """Return Ray's node type of a group, or ``None`` if Ray's reader fails."""
    from ray.autoscaler._private.kuberay.autoscaling_config import _node_type_from_group_spec

    try:
        return _node_type_from_group_spec({**DEFAULTS, **group}, is_head=False)
    except Exception:  # noqa: BLE001 - a ValueError, an AssertionError, or an error of json
        return None


def as_read_here(group):
    seen = {key: value for key, value in group.items() if READS_GROUP_FIELDS or key not in ("resources", "labels")}
    try:
        return ray_counts(WorkerGroupSpec.model_validate(seen))
    except InvalidResourcesError:
        return None


@settings(max_examples=400)
@given(groups)
def test_a_group_has_the_resources_that_rays_autoscaler_counts(group):
    node_type = as_ray_reads(group)

    assert as_read_here(group) == (node_type and node_type["resources"])


@given(quantities)
def test_a_quantity_has_the_value_that_rays_autoscaler_reads(quantity):
    from ray.autoscaler._private.kuberay.autoscaling_config import _round_up_k8s_quantity
    from ray.autoscaler._private.kuberay.utils import parse_quantity as parse_as_ray

    assert parse_quantity(quantity) == Fraction(parse_as_ray(quantity))
    assert ray_amount(quantity) == _round_up_k8s_quantity(quantity)


def clusters_of(path):
    return [found for each in read_documents(read_text(path), path.name) for found in clusters_in(each)[0]]


@pytest.mark.skipif(not SAMPLES, reason="set TUNE_POLICIES_KUBERAY_SAMPLES to the folder of the samples")
@pytest.mark.parametrize("path", sorted(Path(SAMPLES or ".").glob("ray-*.yaml")), ids=lambda path: path.stem)
def test_an_official_sample_is_read_as_rays_autoscaler_reads_it(path):
    (cluster,) = clusters_of(path)
    spec = next(each for each in yaml.safe_load_all(path.read_text()) if str(each["kind"]).startswith("Ray"))
    for key in cluster.path:
        spec = spec[key]

    expected = {group["groupName"]: as_ray_reads(group) for group in spec.get("workerGroupSpecs") or ()}

    found = to_cluster_spec(cluster)
    assert [
        (group.name, group.min_nodes, group.max_nodes, group.labels, ray_counts(of))
        for group, of in zip(found.groups, cluster.spec.workerGroupSpecs, strict=True)
    ] == [
        (name, each["min_workers"], each["max_workers"], each["labels"], each["resources"])
        for name, each in expected.items()
    ]
