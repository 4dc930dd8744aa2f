"""Tests that a written cluster file is read back with the same values."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kuberay.designed_clusters import cluster_plans
from tune_policies import AcceleratorPolicy, GpuPolicy
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.kuberay.design.design_cluster import design_cluster
from tune_policies.kuberay.design.forecast import forecast_trials
from tune_policies.kuberay.reading.load_cluster import load_cluster
from tune_policies.kuberay.writing import WriteOptions, write_cluster

kuberay = st.builds(
    WriteOptions,
    ray_version=st.sampled_from(["2.50.0", "2.60.0"]),
    job=st.none() | st.just("python train.py"),
    image=st.just("me/tune:1"),
    platform=st.sampled_from(["gke", "eks", "aks", "karpenter", "gpu-operator", None]),
    num_gpus=st.booleans(),
)
cluster_yaml = st.just(WriteOptions(format="cluster-yaml"))


def groups_of(spec, without):
    """Return the groups by name, without the fields that a file may not contain or that depend on its format."""
    omitted = {"price_per_hour", "topology", "is_type_counted", "needs_start_params", *without}
    return {group.name: group.model_dump(exclude=omitted) for group in spec.groups}


@given(
    st.tuples(cluster_plans(), kuberay, st.just(()))
    | st.tuples(cluster_plans(hosts=1), cluster_yaml, st.just(("devices",)))
)
@settings(max_examples=40)
def test_a_written_file_is_read_back_with_the_designed_values(tmp_path_factory, case):
    """A cluster YAML does not contain the ``devices`` of a node, so they are not compared."""
    plan, options, without = case
    path = tmp_path_factory.getbasetemp() / "cluster.yaml"
    path.write_text(write_cluster(plan, options))

    spec = load_cluster(path)

    assert groups_of(spec, without) == groups_of(plan.spec, without)
    assert (spec.name, spec.head, spec.idle_timeout_s) == (plan.name, plan.spec.head, plan.idle_timeout_s)


@pytest.mark.parametrize(
    ("policy", "fields"),
    [
        pytest.param(GpuPolicy(gpus=0.25, cpus=2), {"gpus": 1, "accelerator_type": "L4"}, id="GPU fractions"),
        pytest.param(GpuPolicy(cpus=1), {"gpus": 1, "device_key": "nvidia.com/mig-1g.10gb"}, id="MIG"),
        pytest.param(
            AcceleratorPolicy(resource="TPU", amount=4),
            {"custom": {"TPU": 4}, "accelerator_type": "TPU-V6E", "topology": "4x4"},
            id="TPU slices",
        ),
    ],
)
def test_a_written_cluster_runs_all_planned_trials(policy, fields, tmp_path):
    nodes = NodeCatalog(nodes=(NodeType(name="node", cpus=16, memory="64GiB", **fields),))
    path = tmp_path / "cluster.yaml"
    path.write_text(write_cluster(design_cluster(policy, nodes, num_trials=10)))

    forecast = forecast_trials(policy, load_cluster(path))

    assert (forecast.at_minimum.trials_at_once, forecast.cautions) == (0, ())
    assert forecast.at_maximum.trials_at_once >= 10
