"""Tests that autoscaler v2 adds TPU slices to a designed cluster for what Ray Train requests."""

import logging

import pytest
import yaml

from tests.autoscaler_v2 import nodes_launched, nodes_launched_for_groups
from tune_policies import AcceleratorPolicy
from tune_policies.cluster.tpu_slices import SliceShape
from tune_policies.kuberay import design_cluster, forecast_trials
from tune_policies.kuberay.design.catalog_file import NodeCatalog, NodeType
from tune_policies.kuberay.reading.load_cluster import load_cluster
from tune_policies.kuberay.writing import write_cluster
from tune_policies.placement.trial_slot import Bundle
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster

SHAPES = {
    "v4 slice of two hosts": ("TPU-V4", "2x2x2", 2),
    "v5e slice of four hosts": ("TPU-V5LITEPOD", "4x4", 4),
    "v5p slice of four hosts": ("TPU-V5P", "2x2x4", 4),
    "v6e slice of 16 hosts": ("TPU-V6E", "8x8", 16),
}
shapes = pytest.mark.parametrize(("device", "topology", "num_hosts"), SHAPES.values(), ids=SHAPES)


@pytest.fixture(autouse=True)
def _no_messages_of_ray(caplog):
    caplog.set_level(logging.CRITICAL, logger="ray")


def designed(device, topology, num_hosts):
    policy = AcceleratorPolicy(
        resource="TPU", amount=4, accelerator_type=device, topology=topology, num_workers=num_hosts
    )
    host = NodeType(
        name="slices", cpus=8, memory="64GiB", custom={"TPU": 4}, accelerator_type=device, topology=topology
    )
    return policy, design_cluster(policy, NodeCatalog(nodes=(host,)), 1)


def reservation(device, topology):
    """Return the placement group of ``reserve_tpu_slice`` in ``ray._private.accelerators.tpu``."""
    from ray._private.accelerators.tpu import infer_tpu_pod_type_from_topology

    pod_type = infer_tpu_pod_type_from_topology(topology, device)
    selector = {"ray.io/tpu-worker-id": "0", "ray.io/tpu-pod-type": pod_type}
    return [Bundle({f"TPU-{pod_type}-head": 1}, selector)]


def without_labels(text):
    """Return a manifest without the labels of the first host of a slice."""
    return "\n".join(line for line in text.splitlines() if "ray.io/tpu-" not in line)


@shapes
def test_autoscaler_v2_adds_a_host_for_the_slice_that_train_reserves(device, topology, num_hosts):
    _, design = designed(device, topology, num_hosts)
    text = write_cluster(design)

    with_labels, without = (
        nodes_launched_for_groups(read_ray_cluster(yaml.safe_load(each)), [reservation(device, topology)])
        for each in (text, without_labels(text))
    )

    assert (with_labels, without) == ({"slices": 1}, {})


@shapes
def test_autoscaler_v2_adds_all_hosts_of_a_slice_for_a_request_of_the_plan(device, topology, num_hosts):
    _, design = designed(device, topology, num_hosts)
    bundles = design.trials.bundles(1)

    launched = nodes_launched(
        read_ray_cluster(yaml.safe_load(write_cluster(design))),
        [bundle.resources for bundle in bundles],
        [bundle.label_selector for bundle in bundles],
    )

    assert launched == {"slices": num_hosts}


@shapes
def test_the_bundles_of_a_trial_contain_what_train_requests_to_reserve_its_slice(device, topology, num_hosts):
    _, design = designed(device, topology, num_hosts)

    assert design.trials.common_slot.bundles()[1] == reservation(device, topology)[0]


def test_a_plan_for_a_manifest_without_the_labels_states_that_no_slice_is_added(tmp_path):
    policy, design = designed("TPU-V4", "2x2x2", 2)
    path = tmp_path / "cluster.yaml"
    path.write_text(without_labels(write_cluster(design)))

    (caution,) = forecast_trials(policy, load_cluster(path)).cautions

    assert caution == (
        "Ray Train reserves a slice by the labels of its first host, but the labels of group 'slices' do not include "
        "them, so autoscaler version 2 adds no slices of this group. Add to its labels: ray.io/tpu-worker-id: '0', "
        "ray.io/tpu-pod-type: 'v4-16'"
    )


def test_slices_of_one_host_need_no_reservation():
    assert SliceShape("2x2", "TPU-V6E").has_one_host
    assert designed("TPU-V6E", "2x2", 1)[1].trials.common_slot.bundles()[1].resources.keys() >= {"TPU"}
