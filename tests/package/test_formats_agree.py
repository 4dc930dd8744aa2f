"""Tests that a written cluster file in each format is read as the same cluster."""

import pytest

from tune_policies import AcceleratorPolicy, CpuPolicy, GpuPolicy
from tune_policies.kuberay.design.catalog import NodeCatalog, NodeType
from tune_policies.kuberay.design.design_cluster import design_cluster
from tune_policies.kuberay.design.forecast import forecast_trials
from tune_policies.kuberay.reading.load_cluster import load_cluster
from tune_policies.kuberay.writing import write_cluster
from tune_policies.kuberay.writing.options import WriteOptions

GIB = 2**30
CASES = [
    ("shared GPUs", GpuPolicy(gpus=0.25, cpus=2), {"gpus": 1, "accelerator_type": "L4"}),
    ("a device type", GpuPolicy(accelerator_type="L4"), {"gpus": 2, "accelerator_type": "L4"}),
    ("MIG", GpuPolicy(gpus=1, cpus=1), {"gpus": 1, "device_key": "nvidia.com/mig-1g.10gb"}),
    ("Gaudi", AcceleratorPolicy(resource="HPU", amount=1), {"custom": {"HPU": 8}, "accelerator_type": "Intel-GAUDI"}),
    ("CPUs only", CpuPolicy(cpus=2, memory="2GiB"), {"custom": {"disk": 2}}),
    (
        "TPU slices",
        AcceleratorPolicy(resource="TPU", amount=4),
        {"custom": {"TPU": 4}, "accelerator_type": "TPU-V6E", "topology": "4x4"},
    ),
]


def planned(policy, fields):
    node_type = NodeType(name="node", cpus=16, memory=64 * GIB, **fields)
    return design_cluster(policy, NodeCatalog(nodes=(node_type,)), num_trials=10)


@pytest.fixture
def read_again(tmp_path):
    def write_and_read(plan, written_as):
        path = tmp_path / "cluster.yaml"
        path.write_text(write_cluster(plan, WriteOptions(format=written_as)))
        return load_cluster(path)

    return write_and_read


def comparable(cluster, *, without=()):
    """Return the groups without prices, which files do not contain, and without GPU parts, which cluster YAML lacks."""
    groups = [group.model_dump(exclude={"price_per_hour", *without}) for group in cluster.groups]
    return cluster.head, cluster.idle_timeout_s, groups


@pytest.mark.parametrize(("policy", "fields"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
@pytest.mark.parametrize(("written_as", "without"), [("kuberay", ()), ("cluster-yaml", ("devices",))])
def test_a_written_cluster_is_read_as_designed(read_again, policy, fields, written_as, without):
    if written_as == "cluster-yaml" and "topology" in fields:
        pytest.skip("Ray's launcher has no slices")
    plan = planned(policy, fields)

    found = read_again(plan, written_as)

    assert comparable(found, without=without) == comparable(plan.spec, without=without)


@pytest.mark.parametrize(("policy", "fields"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_written_cluster_runs_all_planned_trials(read_again, policy, fields):
    plan = planned(policy, fields)

    forecast = forecast_trials(policy, read_again(plan, "kuberay"))

    assert (forecast.at_minimum.trials_at_once, forecast.cautions) == (0, ())
    assert forecast.at_maximum.trials_at_once >= 10
