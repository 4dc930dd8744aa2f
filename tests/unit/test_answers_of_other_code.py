"""Tests that wrong results of user-defined policies, and plans for other clusters, raise clear errors."""

import pytest
from rich.console import Console

from tune_policies import (
    CappedPolicy,
    ClusterCapacity,
    CpuPolicy,
    GpuPolicy,
    InvalidResourcesError,
    ResourcePolicy,
    Resources,
    request_capacity,
)
from tune_policies.oom import classify_oom
from tune_policies.trainers.usage.resource_usage import IdleHours, ResourceHours, ResourceUsage, resource_usage_view

CPUS = ClusterCapacity.of(Resources(cpus=4))


class ForgetsToReturnPolicy(ResourcePolicy):
    def plan(self, capacity):
        CpuPolicy().plan(capacity)


@pytest.mark.parametrize(
    "policy",
    [
        ForgetsToReturnPolicy(),
        ForgetsToReturnPolicy() | CpuPolicy(),
        CappedPolicy(ForgetsToReturnPolicy(), max_concurrent_trials=2),
    ],
    ids=["alone", "a choice", "nested in another policy"],
)
def test_a_policy_that_returns_no_plan_raises_an_error_with_its_name(policy):
    with pytest.raises(InvalidResourcesError, match=r"ForgetsToReturnPolicy\.plan must return a TrialPlan, got None"):
        policy.plan(CPUS)


def test_explaining_a_plan_on_another_cluster_raises_an_error():
    plan = GpuPolicy().plan(ClusterCapacity.of(Resources(cpus=4, gpus=2)))

    with pytest.raises(InvalidResourcesError, match="the plan uses more GPU than the cluster has"):
        plan.explain(CPUS)


def test_a_request_for_nodes_requires_a_plan():
    with pytest.raises(InvalidResourcesError, match="plan must be the TrialPlan of a policy, got None"):
        request_capacity(None)


def test_a_resource_with_zero_total_hours_can_be_shown():
    idle = (IdleHours(reason="waiting", hours=1.0),)
    usage = ResourceUsage(
        elapsed_s=1e14, resources=(ResourceHours(resource="CPU", total_hours=0, used_hours=0, idle=idle),)
    )

    console = Console(width=100)
    with console.capture() as shown:
        console.print(resource_usage_view(usage))

    assert "waiting" in shown.get()


class UnprintableError(Exception):
    def __str__(self):
        raise ValueError("no text")


def test_an_error_that_cannot_be_printed_is_not_an_out_of_memory_error():
    assert classify_oom(UnprintableError()).kind == "none"
