"""A policy that learns from the trials of a run what further trials need.

The policy contains all statistics and is a value like any other. A run uses it as follows:

1. It plans with ``policy.plan(capacity)``. The first plan is that of ``start``.
2. It passes a ``TrialObservation`` of each started trial to ``policy.learn`` when a trial has reported its second
   result, when a trial has ended, and after each out-of-memory error. Observations of the same trial replace each
   other, and those of earlier calls need not be passed again.
3. If ``learn`` returns another value of ``needs``, the run plans again with the returned policy, and logs
   ``describe(capacity)``. Waiting trials get the new slots. Running trials keep their slots, but a trial that reserves
   at least twice as much as planned moves to a smaller slot if it has a checkpoint and the restart pays.
4. After an out-of-memory error, the run retries the trial with the memory of ``needs.need_after(…)``, and passes the
   observation. Before the policy has learned, the trial gets twice its memory.
5. It saves the policy with ``to_json``. A restored or later run that starts from this policy continues to learn.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.learned_needs import LearnedNeeds, learn_needs
from tune_policies.plan.learned_sizes import MOST_SAMPLED, learned_sizes
from tune_policies.plan.slots_by_config import SlotsByNeed, total_resources
from tune_policies.plan.trial_observation import AMOUNT_NAMES, TrialNeed, TrialObservation
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.when_to_learn import is_time_to_learn
from tune_policies.policies.auto import AutoPolicy
from tune_policies.policies.cpu import CpuPolicy
from tune_policies.policies.first_feasible import SKIPPED
from tune_policies.policies.gpu import GpuPolicy
from tune_policies.policies.gpu_memory import GpuMemoryPolicy
from tune_policies.policies.policy import InnerPolicy, ResourcePolicy, WrappingPolicy
from tune_policies.policies.policy_with_need import plan_for_need, with_need
from tune_policies.values.as_code import as_code
from tune_policies.values.field_types import Many
from tune_policies.values.resources import TICKS, PositiveCount
from tune_policies.values.value import Value
from tune_policies.values.wording import counted

LEARNED_FILE: Final = "learned_policy.json"
"""The file in the folder of an experiment with the policy that the run has learned."""

MOST_REQUESTS: Final = 32
"""The maximum number of distinct requests in a run, because each of them is a scheduling class of Ray."""

_MOST_OBSERVATIONS: Final = 512
"""The maximum number of trials that the policy remembers: the latest ones, and those that used the most memory."""

_CROWDING: Final = 2.0
"""The sum of the utilizations of trials on a GPU. It is above 1, because a busy GPU may still have time (NVML)."""


class LearningPolicy(ResourcePolicy):
    """Learns from the first trials of a run how much the other trials need.

    The first trials, called pilots, get the resources of ``start``. When they have reported twice, the policy plans
    with the memory, CPUs and GPU time that they used. It learns again when the number of observed trials has doubled,
    when the first trial has ended, when a trial ran out of memory or used more than all trials before, and when the
    config of a trial is outside the observed range.

    Each resource depends on the config if a formula explains at least 80 % of its variance in cross-validation.
    Otherwise, all trials get the amount of memory with the highest expected throughput, and a trial that runs out of
    memory is retried with more. How much a failure loses depends on checkpoints: trials without checkpoints get twice
    the observed memory until a trial has ended. A config outside the observed range gets twice the largest amount. The
    range of each kind of memory is that of the trials that measured it. If no formula determines the CPUs or the GPU
    time, their range is that of all observed trials, because short trials do not measure them.

    The first trials also reserve their part of the host memory of a node, unless this lets fewer of them run.

    Attributes:
        start: The policy for the pilots. Its fields other than amounts, such as the device type, also apply later.
            Trials with Train workers, several GPUs or other devices keep its requests.
        num_pilots: The number of trials from which the policy learns first. It learns from two trials if all other
            trials that have reported did so twice.
        needs: What trials need, as learned so far, or ``None`` before the policy has learned.
        sizes: The distinct amounts for which slots are planned. Earlier sizes are kept.
        observations: The observed trials.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    start: InnerPolicy = AutoPolicy()
    num_pilots: PositiveCount = 4
    needs: LearnedNeeds | None = None
    sizes: tuple[TrialNeed, ...] = ()
    observations: Many[TrialObservation] = ()

    def __init__(
        self,
        start: ResourcePolicy | None = None,
        num_pilots: int = 4,
        needs: LearnedNeeds | None = None,
        sizes: Sequence[TrialNeed] = (),
        observations: Sequence[TrialObservation] = (),
    ) -> None:
        if start is None:
            start = AutoPolicy()
        Value.__init__(
            self, start=start, num_pilots=num_pilots, needs=needs, sizes=tuple(sizes), observations=tuple(observations)
        )

    @property
    def depends_on_config(self) -> bool:
        """Whether the policy has learned, or ``start`` depends on the config."""
        return self.needs is not None or super().depends_on_config

    def learn(self, observations: Iterable[TrialObservation]) -> "LearningPolicy":
        """Return the policy that has also learned from these trials.

        ``needs`` and ``sizes`` change only if there is enough to learn, so a run plans again only if they differ.
        """
        merged = {seen.trial_id: seen for seen in self.observations}
        new = []
        for seen in observations:
            # The trial is removed and added again, so that the trials are in the order of their latest observation.
            before = merged.pop(seen.trial_id, None)
            # The growth of memory is measured from the first observation that counts.
            early = before.early if before is not None and before.counts else None
            used = seen.used
            if used.gpu_utilization is None and before is not None:  # the device was busy with other trials since
                used = used.model_copy(update={"gpu_utilization": before.used.gpu_utilization})
            known = seen.model_copy(update={"early": early or used, "used": used})
            merged[seen.trial_id] = known
            if known.counts and known != before:
                new.append(known)
        remembered = _remembered(list(merged.values()))
        can_learn = bool(new) and _is_learned(self.start)
        if not can_learn or not is_time_to_learn(remembered, new, self.needs, self.num_pilots):
            return self.model_copy(update={"observations": remembered})
        needs = learn_needs(remembered)
        sizes = learned_sizes(needs, remembered, self.sizes)
        return self.model_copy(update={"observations": remembered, "needs": needs, "sizes": sizes})

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        if self.needs is None:
            return self._pilots(capacity).with_reasons(*self._about_start())
        planned = list(self._planned(capacity))
        if not planned:
            return self.start.plan(capacity).with_reasons("no size that was learned fits, so all trials get the start")
        observed = self._observed(capacity)
        # The sizes are in ascending order, so this is the smallest one that is enough for all observed configs.
        usual = next((plan for size, plan in planned if size.covers(observed)), planned[-1][1])
        reasons = tuple(self._reasons())
        if not self.needs.depends_on_config and len(usual.slots) > 1:
            # All configs need the same, and each node type already has its own slots.
            return usual.with_reasons(*reasons)
        # A reason such as "each trial reserves 1 GiB" holds only for one size.
        shared = [reason for reason in usual.reasons if _is_reason_of_all(reason, [plan for _, plan in planned])]
        common = usual.common_slot
        size_of: dict[TrialSlot, TrialNeed] = {}
        for size, plan in planned:
            slot = plan.common_slot
            # Sizes that lead to the same slot are one size: that slot has enough for both.
            size_of[slot] = size_of.get(slot, size) | size
        if not self.needs.depends_on_config:
            # All configs in the observed range get the same slot, so no config gets an earlier size with less.
            size_of = {slot: size for slot, size in size_of.items() if size.covers(observed)} or size_of
        slots, sizes = [*size_of], [*size_of.values()]
        pilots = _plan_of(self.start, capacity).common_slot
        gpu_memory = self.needs.amounts.get("gpu_memory_bytes")
        # A config with an unknown word may need any amount.
        may_need_more = gpu_memory is not None and bool(gpu_memory.most)
        if may_need_more and pilots.worker.gpus > slots[-1].worker.gpus:
            slots.append(pilots)
            sizes.append(sizes[-1])
        by_config = SlotsByNeed(
            slots=tuple(slots), sizes=tuple(sizes), needs=self.needs, total=total_resources(capacity)
        )
        changes = {"slots": (common,), "common": None, "by_config": by_config, "reasons": (*reasons, *shared)}
        return usual.model_copy(update=changes)

    def __str__(self) -> str:
        """Return the start policy and what has been learned. ``repr`` is the call with all observations."""
        return f"LearningPolicy: {'; '.join(self._facts().values())}"

    def _repr_html_(self) -> str:
        from tune_policies.values.html import fields_to_html  # notebooks only

        return fields_to_html("LearningPolicy", "", self._facts())

    def _facts(self) -> dict[str, str]:
        """Return what the policy starts with, when it learns, and what it has learned."""
        observed = counted(len(self.observations), "trial")
        pilots = f"{self.num_pilots} trials"
        if self.num_pilots == 1:
            pilots = "trial"
        facts = {"start": f"starts with {self.start}"}
        if not _is_learned(self.start):
            facts["learned"] = "; ".join(self._about_start())
        elif self.needs is None:
            facts["learned"] = f"learns from the first {pilots}, {observed} observed so far"
        else:
            facts["learned"] = "; ".join(self._reasons())
        return facts

    def describe(self, capacity: ClusterCapacity, plan: TrialPlan | None = None, at_once: str = "") -> str:
        """Return one sentence about what the policy has learned, compared with the plan of ``start``.

        Args:
            capacity: The nodes.
            plan: The plan for ``capacity`` if it is known.
            at_once: How many trials run at once, as text, if the run does not start as many as the plan allows.
        """
        if self.needs is None:
            return f"{counted(len(self.observations), 'trial')} observed, too few to plan again"
        if not at_once:
            now = (plan or self.plan(capacity)).max_concurrent_trials
            before = _plan_of(self.start, capacity).max_concurrent_trials
            compared = "as before" if now == before else f"instead of {before}"
            at_once = f"{now} would fit at once {compared}"
        need = f"up to {self.needs.at_most}" if self.needs.depends_on_config else str(self.needs.usual)
        return f"after {counted(self.needs.num_trials, 'trial')}: {need}; {at_once}"

    @property
    def learned(self) -> str:
        """What the policy has learned as one line, such as a policy with fixed amounts, or ``""``."""
        if self.needs is None:
            return ""
        fixed = self.with_fixed_amounts()
        if fixed is None:
            return "; ".join(self._reasons())
        return "; ".join([f"{self._learned_from(self.needs)}: {fixed!r}", *self._about_failures()])

    def with_fixed_amounts(self) -> ResourcePolicy | None:
        """Return a policy that starts with the learned amounts, or ``None`` if they depend on the config."""
        needs = self.needs
        if needs is None or needs.depends_on_config or not _is_learned(self.start):
            return None
        # The GPU memory may be unknown although the trials used GPUs, for example if the GPUs are simulated.
        is_on_gpu = "gpu_memory_bytes" in needs.amounts or any(seen.uses_gpu for seen in self.observations)
        kinds: tuple[type[ResourcePolicy], ...] = (CpuPolicy,)
        if is_on_gpu:
            kinds = (GpuPolicy, GpuMemoryPolicy)
        for choice in self.start.choices:
            if isinstance(choice, kinds):
                return with_need(choice, needs.usual.model_copy(update={"gpu_utilization": self._least_share()}))
        return None

    def _pilots(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan of ``start``, in which each trial also reserves its part of the host memory of a node.

        Otherwise, the trials that start after the policy has learned would use memory that the pilots use.
        """
        plan = self.start.plan(capacity)
        worker = plan.worker
        parts = []
        for node, _ in capacity.groups:
            has, reserved = node.resources.cpus, worker.cpus
            if plan.use_gpu:
                has, reserved = node.resources.gpus, worker.gpus
            if has and reserved and node.resources.memory_bytes:
                parts.append(int(node.resources.memory_bytes * min(1, reserved / has)))
        if worker.memory_bytes or not parts:
            return plan
        # All trials get the same amount, so it must fit on the node with the least memory for each trial.
        policy = with_need(self.start, TrialNeed(host_memory_bytes=min(parts)))
        if policy is None:
            return plan
        reserving = policy.plan(capacity)
        if reserving.max_concurrent_trials < plan.max_concurrent_trials:
            return plan
        return reserving

    def _planned(self, capacity: ClusterCapacity) -> Iterable[tuple[TrialNeed, TrialPlan]]:
        """Yield each size with its plan, without sizes that do not fit and sizes that become equal on this cluster."""
        most = _largest_amounts(capacity)
        devices = {node.smallest_gpu_memory_bytes or 0 for node, _ in capacity.groups}
        least = self._least_share()
        seen: set[TrialNeed] = set()
        for size in self.sizes:
            limited = _limited(size, most)
            if limited in seen:
                continue
            seen.add(limited)
            # Two amounts get the same slot if equally many fit on each device. Such amounts are planned once.
            memory = limited.gpu_memory_bytes
            parts = [device // (device // memory) for device in devices if memory and device >= memory]
            planned = {"gpu_memory_bytes": min(parts, default=memory), "gpu_utilization": least}
            plan = plan_for_need(self.start, limited.model_copy(update=planned), capacity)
            if plan is not None:
                yield limited, plan

    def _least_share(self) -> float | None:
        """Return the smallest part of a GPU for a trial, or ``None``, so that the GPU's time is enough for all."""
        # A whole number of trials, so that the plans of the sizes rarely change.
        if not self._utilization:
            return None
        return 1 / max(1, round(_CROWDING / self._utilization))

    @cached_property
    def _utilization(self) -> float:
        """The mean fraction of a GPU's time that a trial uses, or 0 if it is unknown."""
        if self.needs is None or not self.observations or "gpu_utilization" not in self.needs.amounts:
            return 0.0
        utilization = self.needs.amounts["gpu_utilization"]
        observed = self.observations[:: max(1, len(self.observations) // MOST_SAMPLED)]
        return fmean(min(1.0, utilization.amount_for(seen.features) / TICKS) for seen in observed)

    def expected_speed(self, num_running: int, capacity: ClusterCapacity) -> float:
        """Return the expected speed of a trial while ``num_running`` trials run, relative to a trial alone on a GPU.

        Ray fills one GPU before it uses the next. So while the GPUs have time for all trials together, the trials on
        one of them may still slow down each other. If the GPUs have no time left, nothing is expected.
        """
        num_gpus = sum(count * node.resources.gpus for node, count in capacity.groups)
        load = num_running * self._utilization
        if load < num_gpus:
            return 1 / min(max(load, 1.0), _CROWDING)
        return 1.0

    def _observed(self, capacity: ClusterCapacity) -> TrialNeed:
        needs = self.needs
        if needs is None:
            return TrialNeed()
        return _limited(needs.at_most, _largest_amounts(capacity))

    def _about_start(self) -> Iterable[str]:
        if not _is_learned(self.start):
            yield (
                f"all trials keep the requests of {type(self.start).__name__}, because what trials with Train workers, "
                "several GPUs, other devices or different policies need is not learned"
            )
        else:
            have = "has" if self.num_pilots == 1 else "have"
            yield (
                f"trials get these resources until {self.num_pilots} of them, or all that run, {have} shown what they "
                f"use; trials that start later get what those used, as does a plan with the {LEARNED_FILE} of a run"
            )

    def _reasons(self) -> Iterable[str]:
        if self.needs is None:
            return
        yield f"{self._learned_from(self.needs)}: at most {self.needs.at_most} with headroom"
        for name, amount in self.needs.amounts.items():
            yield amount.describe(AMOUNT_NAMES[name])
        yield from self._about_failures()

    @staticmethod
    def _learned_from(needs: LearnedNeeds) -> str:
        """Return from how many trials the policy has learned, and which amounts are from fewer of them."""
        fewer = []
        for name, amount in needs.amounts.items():
            if 0 < amount.num_trials < needs.num_trials:
                fewer.append(f"the {AMOUNT_NAMES[name]} from {amount.num_trials}")
        text = f"learned from {counted(needs.num_trials, 'trial')}"
        if fewer:
            text += f" ({', '.join(fewer)})"
        return text

    def _about_failures(self) -> Iterable[str]:
        num_failed = sum(seen.ran_out for seen in self.observations)
        if num_failed:
            yield (
                f"{counted(num_failed, 'trial')} ran out of memory, so trials may need more than the learned amount. "
                "LearningPolicy retries them, and a policy with fixed amounts does so with OomRetryScheduler()"
            )


def use_of_learned(file: str) -> str:
    """Return the call and the command that use a local file with a learned policy."""
    return f"load_policy({as_code(file)}), or tune-policies exec {shlex.quote(file)} program.py"


def _remembered(observations: Sequence[TrialObservation]) -> tuple[TrialObservation, ...]:
    """Return the latest trials and those with the largest peaks, in the same order."""
    if len(observations) <= _MOST_OBSERVATIONS:
        return tuple(observations)
    half = _MOST_OBSERVATIONS // 2
    older, latest = observations[:-half], observations[-half:]
    ranked = sorted(
        range(len(older)),
        key=lambda i: (older[i].used.gpu_memory_bytes or 0, older[i].used.host_memory_bytes or 0),
        reverse=True,
    )
    return (*(older[i] for i in sorted(ranked[:half])), *latest)


def _largest_amounts(capacity: ClusterCapacity) -> Mapping[str, float | None]:
    """Return the largest amount of each resource on a node, or on a GPU. ``None`` means that an amount is unknown."""
    nodes = [node for node, _ in capacity.groups]
    return {
        "cpus": max((node.resources.cpus for node in nodes), default=None),
        "host_memory_bytes": _largest_known([node.resources.memory_bytes for node in nodes]),
        "gpu_memory_bytes": _largest_known([node.smallest_gpu_memory_bytes for node in nodes if node.resources.gpus]),
    }


def _largest_known(amounts: Sequence[int | None]) -> int | None:
    """Return the largest amount, or ``None`` if there is no amount above 0, or if an amount is unknown."""
    if None in amounts:
        return None
    return max(filter(None, amounts), default=None)


def _limited(size: TrialNeed, most: Mapping[str, float | None]) -> TrialNeed:
    """Return ``size`` with amounts that fit on the largest node and device."""
    less = {name: largest for name, largest in most.items() if largest and (getattr(size, name) or 0) > largest}
    if less:
        return size.model_copy(update=less)
    return size


@lru_cache(maxsize=16)
def _plan_of(start: ResourcePolicy, capacity: ClusterCapacity) -> TrialPlan:
    return start.plan(capacity)


def _is_reason_of_all(reason: str, plans: Sequence[TrialPlan]) -> bool:
    return reason.startswith(SKIPPED) or all(reason in plan.reasons for plan in plans)


def _is_learned(start: ResourcePolicy) -> bool:
    """Return whether amounts can replace those of ``start``."""
    return with_need(start, TrialNeed()) is not None


def with_learned(policy: ResourcePolicy, learned: LearningPolicy) -> ResourcePolicy:
    """Return ``policy`` with ``learned`` instead of the ``LearningPolicy`` that it is or wraps."""
    if isinstance(policy, LearningPolicy):
        return learned
    if isinstance(policy, WrappingPolicy):
        return policy.model_copy(update={"inner": with_learned(policy.inner, learned)})
    return policy
