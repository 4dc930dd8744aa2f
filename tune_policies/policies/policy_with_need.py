"""A policy whose amounts are replaced by what trials need, and its plan."""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.learned_needs import PARTS_OF_CPU
from tune_policies.plan.trial_observation import TrialNeed
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.auto import AutoPolicy
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.first_feasible import FirstFeasiblePolicy
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.gpu_selection import GpuTypesPolicy
from tune_policies.policies.policy import ResourcePolicy, WorkersPolicy, WrappingPolicy
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import to_ticks
from tune_policies.values.units import MIB

_WORTH_FEWER_CPUS: Final = 0.96
"""Trials get fewer CPUs than they use if they otherwise use at most this part of the CPUs that they could use."""


def with_need(policy: ResourcePolicy, need: TrialNeed, *, divides_cpus: bool = True) -> ResourcePolicy | None:
    """Return ``policy`` with the amounts of ``need``, or ``None`` if it contains a policy whose requests are kept.

    Args:
        policy: The policy.
        need: The amounts. Unknown amounts stay as in the policy.
        divides_cpus: Whether GPU trials divide the CPUs of a node instead of reserving the CPUs of ``need``.
    """
    if isinstance(policy, WorkersPolicy) and policy.num_workers:
        return None
    host = {}
    if need.host_memory_bytes is not None:
        host["memory"] = max(MIB, need.host_memory_bytes)
    match policy:
        case AutoPolicy(profile=None):
            # ``AutoPolicy`` has no field for CPUs, but the policies that it consists of have one.
            return with_need(_choices_of(policy), need, divides_cpus=divides_cpus)
        case CpuPolicy():
            cpus = {} if need.cpus is None else {"cpus": need.cpus}
            return policy.model_copy(update={**cpus, **host})
        case GpuPolicy(gpus=gpus) if gpus <= 1:
            return _gpu_policy(policy, need, host, divides_cpus=divides_cpus)
        case GpuMemoryPolicy(profile=None):
            return _gpu_policy(policy, need, host, divides_cpus=divides_cpus)
        case WrappingPolicy():
            inner = with_need(policy.inner, need, divides_cpus=divides_cpus)
            if inner is None:
                return None
            return policy.model_copy(update={"inner": inner})
        case FirstFeasiblePolicy():
            changed = [with_need(choice, need, divides_cpus=divides_cpus) for choice in policy.policies]
            known = [choice for choice in changed if choice is not None]
            if len(known) == len(changed):
                return policy.model_copy(update={"policies": tuple(known)})
            return None
        case _:
            return None


def _gpu_policy(
    policy: GpuTypesPolicy, need: TrialNeed, host: Mapping[str, int], *, divides_cpus: bool
) -> ResourcePolicy:
    cpus = {} if divides_cpus or need.cpus is None else {"cpus": need.cpus}
    changes = {**host, **cpus}
    if need.gpu_memory_bytes is None:
        return policy.model_copy(update=changes)
    fields = {name: getattr(policy, name) for name in GpuTypesPolicy.model_fields}
    if need.gpu_utilization:
        fields["max_trials_per_gpu"] = max(1, round(1 / need.gpu_utilization))
    return GpuMemoryPolicy(**{**fields, **changes, "gpu_memory": max(MIB, need.gpu_memory_bytes)})


@lru_cache(maxsize=16)
def _choices_of(policy: AutoPolicy) -> FirstFeasiblePolicy:
    return FirstFeasiblePolicy(*policy.choices)


@lru_cache(maxsize=128)
def plan_for_need(policy: ResourcePolicy, need: TrialNeed, capacity: ClusterCapacity) -> TrialPlan | None:
    """Return the plan of ``policy`` with the amounts of ``need``, or ``None`` if no trial fits.

    GPU trials divide the CPUs of their node, unless this gives them fewer than they use. The plans of most sizes stay
    the same when the policy learns again.
    """
    plan = None
    fitting = _with_fitting_cpus(need, capacity)
    for divides_cpus in (True, False):
        changed = with_need(policy, fitting, divides_cpus=divides_cpus)
        if changed is None:
            return None
        try:
            plan = changed.plan(capacity)
        except InfeasibleRequestError:
            continue
        # If the second plan does not fit, the first one remains, with fewer CPUs than the trials use.
        if not plan.use_gpu or plan.worker.cpus >= (need.cpus or 0):
            break
    return plan


def _with_fitting_cpus(need: TrialNeed, capacity: ClusterCapacity) -> TrialNeed:
    """Return ``need`` with fewer CPUs if trials would leave many CPUs of a node unused.

    For example, trials of 6 CPUs use 30 of 32 CPUs, and trials of 4 CPUs use all of them. On 2 CPUs, three trials of
    3/4 of a CPU are hardly slower than two, because a trial rarely needs a CPU all the time.
    """
    if need.cpus is None:
        return need
    if need.cpus > 1:
        most = math.ceil(need.cpus)
        # Fewer CPUs than a trial uses slow it down, so it gets at least about half of them.
        choices = [float(cpus) for cpus in range(most, (most - 1) // 2, -1)]
    else:
        smaller = [part for part in reversed(PARTS_OF_CPU) if need.cpus / 2 <= part < need.cpus]
        choices = [need.cpus, *smaller]

    def num_used(cpus: float) -> float:
        ticks = to_ticks(cpus)
        used = sum(count * (node.resources.ticks.get("CPU", 0) // ticks) for node, count in capacity.groups)
        return round(used * cpus, 2)  # so that three times 0.6666 is 2

    best = max(choices, key=num_used)  # the largest of the best
    if num_used(best) * _WORTH_FEWER_CPUS > num_used(choices[0]):
        return need.model_copy(update={"cpus": best})
    return need
