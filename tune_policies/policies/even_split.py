"""A policy that divides the cluster evenly among the trials."""

from typing import Self

from pydantic import model_validator

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeGroup
from tune_policies.placement.count_trials import count_trials, largest, workers_on_node
from tune_policies.placement.limiting_resource import limiting_resource
from tune_policies.placement.request import Limit
from tune_policies.plan.build_plan import build_plan
from tune_policies.plan.infeasible_request import infeasible
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.equal_fractions import equal_device_fraction, fraction_of_gpu_memory
from tune_policies.policies.gpu_selection import gpus_of_type
from tune_policies.policies.policy import WorkersPolicy
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    Amount,
    GpuAmount,
    PositiveCount,
    from_ticks,
    to_ticks,
)
from tune_policies.values.wording import counted


class EvenSplitPolicy(WorkersPolicy):
    """Divides the cluster among the trials as evenly as its nodes and devices allow.

    All trials run at once if each can get at least ``min_cpus`` and ``min_gpus``. Otherwise, they run in as few rounds
    as possible. The policy computes the smallest number of concurrent trials for that number of rounds, and divides the
    GPUs and then the CPUs among these trials. For example, 20 trials in 3 rounds require 7 concurrent trials. If the
    cluster has room for additional trials of the resulting size, they also run.

    Attributes:
        num_trials: The number of trials in the experiment.
        min_cpus: The minimum number of CPUs of each worker.
        min_gpus: The minimum number of GPUs of each worker. With 0, trials use no GPU.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve no host memory. The policy does not increase this amount, because Ray does not enforce it as a
            limit.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.

    Raises:
        InvalidResourcesError: A field is invalid, or neither CPUs nor GPUs are requested.
    """

    num_trials: PositiveCount
    min_cpus: Amount = 1
    min_gpus: GpuAmount = 0

    @model_validator(mode="after")
    def _must_request_something(self) -> Self:
        if self.min_cpus == 0 and self.min_gpus == 0:
            raise InvalidResourcesError("min_cpus and min_gpus are both 0. Set at least one of them above 0")
        return self

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        capacity = self._with_rounded_memory(capacity)
        groups = capacity.groups
        least = self._request(self.min_cpus, from_ticks(self._least_share(groups)))
        fit = count_trials(groups, least)
        if fit == 0:
            raise infeasible(capacity, least)
        rounds = -(-self.num_trials // fit)
        at_once = -(-self.num_trials // rounds)  # with fewer concurrent trials, another round is needed
        share = self._largest_share(groups, at_once)
        request = self._request(self._largest_cpus(groups, share, at_once), from_ticks(share))
        reasons = [
            f"the cluster is divided among {counted(self.num_trials, 'trial')}: {request.worker} per {request.unit}"
        ]
        if at_once < fit and request.worker != least.worker:
            reasons.append(
                f"with {least.worker} per {least.unit}, {fit} concurrent trials would fit and need {rounds} rounds; "
                f"{at_once} concurrent trials need the same number of rounds, and each trial gets more resources"
            )
        usable = gpus_of_type(capacity, None).where(lambda node: share > 0 and workers_on_node(node, request) > 0)
        memory = fraction_of_gpu_memory(usable.groups, share)
        plan = build_plan(capacity, request.model_copy(update={"gpu_memory_bytes": memory}), reasons)
        limited_by = Limit.NUM_TRIALS if rounds == 1 else limiting_resource(groups, least, fit)
        # ``capped`` does not set the limit if all trials fit, so it is set here.
        return plan.capped(self.num_trials, limited_by=limited_by).model_copy(update={"limited_by": limited_by})

    def _least_share(self, groups: tuple[NodeGroup, ...]) -> int:
        wish = to_ticks(self.min_gpus)
        if 0 < wish < TICKS:
            return equal_device_fraction(TICKS // wish, _most_gpus(groups))
        return wish

    def _largest_share(self, groups: tuple[NodeGroup, ...], at_once: int) -> int:
        """Return the maximum number of GPUs per worker, in ticks, for which ``at_once`` trials fit."""
        least = self._least_share(groups)
        if least == 0:
            return 0

        def fits(share: int) -> bool:
            return count_trials(groups, self._request(self.min_cpus, from_ticks(share))) >= at_once

        most = _most_gpus(groups)
        # Whole GPUs come first: only if the trials do not fit with a whole GPU each, they share GPUs.
        whole = max(1, least // TICKS)
        if whole <= most and fits(whole * TICKS):
            return TICKS * largest(whole, int(most), lambda gpus: fits(gpus * TICKS))
        if least >= TICKS:
            return least
        # The fraction decreases with the number k of workers per device, and the smallest fraction fits.
        too_few = largest(1, TICKS // least, lambda k: not fits(equal_device_fraction(k, most)))
        return max(least, equal_device_fraction(too_few + 1, most))

    def _largest_cpus(self, groups: tuple[NodeGroup, ...], share: int, at_once: int) -> float:
        """Return the maximum number of CPUs per worker for which ``at_once`` trials fit: a whole number, or below 1."""
        least = to_ticks(self.min_cpus)
        most = max(to_ticks(node.resources.cpus) for node, _ in groups)
        ticks = largest(
            least,
            max(least, most),
            lambda cpus: count_trials(groups, self._request(from_ticks(cpus), from_ticks(share))) >= at_once,
        )
        # Workers have whole numbers of threads, so an amount above 1 is rounded down, but not below ``min_cpus``.
        whole = ticks // TICKS * TICKS
        if whole >= max(least, TICKS):
            return from_ticks(whole)
        return from_ticks(max(least, min(ticks, TICKS)))


def _most_gpus(groups: tuple[NodeGroup, ...]) -> float:
    return max((node.resources.gpus for node, _ in groups), default=0)
