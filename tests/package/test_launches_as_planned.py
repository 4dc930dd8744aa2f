"""Tests that Ray's autoscaler launches the nodes of a plan when its trials are requested: as many of each type.

Each case is a random policy with a random catalog. The test follows the steps of a user: it makes a plan, writes a
manifest, lets Ray read the manifest, and requests the trials.
"""

import logging
import random
from collections import Counter
from typing import NamedTuple

import pytest
import ray
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.autoscaler_v2 import nodes_launched
from tests.drawn_plans import draw_catalog, draw_policy
from tune_policies import (
    AutoscalingPolicy,
    CappedPolicy,
    ClusterCapacity,
    GpuPolicy,
    InfeasibleRequestError,
    NodeCapacity,
    NodeTypeCapacity,
    ReservingPolicy,
    ResourcePolicy,
    Resources,
)
from tune_policies.kuberay import design_cluster
from tune_policies.kuberay.design.design_cluster import ClusterDesign
from tune_policies.kuberay.writing import write_cluster
from tune_policies.kuberay.writing.options import WriteOptions
from tune_policies.placement.trial_slot import Bundle
from tune_policies.ray_compat.autoscaler_config import read_ray_cluster

# Ray reads the top-level labels and resources of a group only from version 2.51 on.
pytestmark = pytest.mark.skipif(
    tuple(map(int, ray.__version__.split(".")[:2])) < (2, 51), reason="this Ray reads no labels of a worker group"
)


class Case(NamedTuple):
    """A plan and its policy, and the nodes that Ray launches for the trials, also if one more node is allowed."""

    seed: int
    policy: ResourcePolicy
    plan: ClusterDesign
    launched: dict[str, int]
    launched_with_one_more: dict[str, int]

    @property
    def planned(self) -> dict[str, int]:
        return {group.node_type.name: group.max_nodes for group in self.plan.groups}

    @property
    def cause(self) -> str:
        """Return why the nodes that Ray launches differ from the plan, or an empty string if they are equal."""
        if self.launched == self.planned:
            return ""
        if not self.launched and sum(self.launched_with_one_more.values()) == sum(self.planned.values()) + 1:
            return "Ray packs less tightly, and needs one node more"
        if any(self.launched.get(name, 0) > self.planned[name] for name in self.planned) or not self.launched:
            return "not explained: Ray would need more"
        if self._slots_on_launched() == self.plan.trials.slots:
            return "not explained: the policy plans the same on fewer nodes"
        return f"{type(self.policy).__name__} plans less on so few nodes, or for a worse place of drivers"

    def _slots_on_launched(self):
        groups = {group.name: group for group in self.plan.spec.groups}
        nodes = [
            NodeCapacity(
                node_id=f"{name}-{number}",
                resources=groups[name].resources,
                accelerator_type=groups[name].accelerator_type,
                labels=groups[name].labels,
            )
            for name, count in self.launched.items()
            for number in range(count)
        ]
        head = self.plan.spec.head
        try:
            plan = self.policy.plan(ClusterCapacity(nodes=(head, *nodes)))
        except InfeasibleRequestError:
            return None
        return plan.capped(self.plan.num_trials, limited_by="num_trials").slots


def draw_case(seed):
    """Return the case with this seed, or ``None`` if no trial of the policy fits the nodes."""
    rng = random.Random(seed)
    catalog, policy, num_trials = draw_catalog(rng), draw_policy(rng), rng.choice((1, 2, 5, 16, 64, 200))
    try:
        plan = design_cluster(policy, catalog, num_trials)
    except InfeasibleRequestError:
        return None
    text = write_cluster(plan, WriteOptions(ray_version=ray.__version__))
    config = read_ray_cluster(yaml.load(text, yaml.CSafeLoader))
    trials = plan.trials
    wanted = [*trials.bundles(trials.min_concurrent_trials), *reserved(policy)]
    launched, launched_with_one_more = (
        nodes_launched(each, [bundle.resources for bundle in wanted], [bundle.label_selector for bundle in wanted])
        for each in (config, with_one_more(config))
    )
    return Case(seed, policy, plan, launched, launched_with_one_more)


def with_one_more(config):
    """Return the configuration with one more node allowed, of any type except the head's."""
    types = {
        name: each if name == config["head_node_type"] else {**each, "max_workers": each["max_workers"] + 1}
        for name, each in config["available_node_types"].items()
    }
    return {**config, "max_workers": config["max_workers"] + 1, "available_node_types": types}


def reserved(policy):
    """Return the resources that a policy leaves for other programs, as a resource request."""
    inner = getattr(policy, "inner", None)
    own = []
    if isinstance(policy, ReservingPolicy):
        own = [Bundle({"CPU": 1}, {})] * int(policy.cpus) + [Bundle({"GPU": 1}, {})] * int(policy.gpus)
    return own + (reserved(inner) if inner is not None else [])


def cases(number, first_seed=0):
    seed = first_seed
    while number:
        seed += 1
        if (case := draw_case(seed)) is not None:
            number -= 1
            yield case


@pytest.fixture(autouse=True)
def without_logs(caplog):
    """Suppress Ray's log lines about the nodes that it would launch."""
    caplog.set_level(logging.ERROR, logger="ray")


@pytest.mark.parametrize(
    ("number", "least"),
    # With few plans, the required rate is lower, because the rate depends on chance.
    [(30, 0.9), pytest.param(1000, 0.99, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_ray_launches_the_planned_nodes_for_99_of_100_plans_and_others_are_explained(number, least):
    drawn = list(cases(number))

    causes = Counter(case.cause for case in drawn)
    as_planned = causes.pop("", 0)
    print(f"\n{as_planned} of {number} plans: the planned types and counts")
    for cause, count in causes.most_common():
        print(f"{count:4} {cause}: seeds {[case.seed for case in drawn if case.cause == cause]}")
    assert as_planned >= least * number
    assert not [cause for cause in causes if cause.startswith("not explained")]


@given(
    gpus=st.floats(0.004, 1),
    gpus_per_node=st.sampled_from([1, 2, 4, 8]),
    num_trials=st.integers(1, 60),
    num_workers=st.integers(0, 3),
)
def test_nodes_launched_for_gpu_fractions_have_a_device_for_every_trial(gpus, gpus_per_node, num_trials, num_workers):
    node_type = NodeTypeCapacity(
        name="gpus", resources=Resources(cpus=1024, gpus=gpus_per_node, memory_bytes=2**40), max_nodes_to_add=500
    )
    policy = CappedPolicy(GpuPolicy(gpus=gpus, cpus=0.1, num_workers=num_workers), num_trials)
    plan = AutoscalingPolicy(policy).plan(ClusterCapacity(node_types=(node_type,)))
    config = {
        "head_node_type": "head",
        "max_workers": 500,
        "available_node_types": {
            "head": {"resources": {}, "max_workers": 0},
            "gpus": {"resources": {"CPU": 1024, "GPU": gpus_per_node, "memory": 2**40}, "max_workers": 500},
        },
    }

    launched = nodes_launched(config, [each.resources for each in plan.bundles(num_trials)])

    a_device_holds = 10_000 // plan.worker.ticks["GPU"]
    processes = num_trials * max(1, num_workers)
    assert launched["gpus"] * gpus_per_node * a_device_holds >= processes
    assert launched == plan.nodes_to_add
