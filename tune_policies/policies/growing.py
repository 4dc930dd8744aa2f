"""A policy whose last trials get the resources that no waiting trial needs, and the decision which trials grow.

The policy plans as its inner policy. A run uses ``growth`` when a trial ends and none waits:

1. It describes each running trial by a ``GrowingTrial``: its node, its current amount, its speed at each amount that it
   has had, whether it has a checkpoint, and the expected time left at the current speed.
2. It measures ``restart_s``: the time from the pause of a trial to its next result, without the time of one step. Until
   a restart was measured, it passes an upper bound, such as the time from the start of a trial to its first result.
3. It pauses each trial in the result, changes its request to the returned amount, and resumes it from its checkpoint.

At most one restart per trial is decided at a time, and the result is empty if nothing pays.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pydantic import Field

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, WrappingPolicy
from tune_policies.values.resources import TICKS, PositiveCount, amount_of, from_ticks, to_ticks
from tune_policies.values.value import Value

_PAYS: Final = 1.5
"""A restart must save at least this multiple of its time, because the time left is an estimate."""

_SCALES: Final = 0.2
"""A trial can use more if the last growth raised its speed by at least this fraction of the added resources."""


class GrowingTrial(Value):
    """A running trial that may get more resources.

    Attributes:
        trial_id: Tune's ID of the trial.
        node_id: The node on which the trial runs.
        amount: The GPUs that the trial reserves, or its CPUs if it reserves no GPU.
        speeds: The measured steps per second at each amount that the trial has had.
        left_s: The expected time until the end of the trial at its current speed, in seconds, or ``None`` if unknown.
        has_checkpoint: Whether the trial can continue after a restart.
    """

    trial_id: str
    node_id: str
    amount: float = Field(gt=0)
    speeds: tuple[tuple[float, float], ...] = ()
    left_s: float | None = Field(default=None, ge=0)
    has_checkpoint: bool = False

    @property
    def scaling(self) -> float:
        """The part of added resources that raises the speed, from 0 to 1. It is 1 until a growth was measured."""
        known = sorted((amount, speed) for amount, speed in self.speeds if speed > 0)
        if len(known) < 2:
            return 1.0
        # Speed-ups often shrink with the amount, so only the two largest amounts show what more would bring.
        (less, slow), (more, fast) = known[-2:]
        return min(1.0, max(0.0, (fast / slow - 1) / (more / less - 1)))

    def speed_up(self, amount: float) -> float:
        """Return the expected ratio of the speed with ``amount`` to the current speed."""
        return 1 + self.scaling * (amount / self.amount - 1)


class Growth(NamedTuple):
    """The decision to restart a trial with a larger amount, and the time that this is expected to save in seconds."""

    trial_id: str
    amount: float
    saved_s: float


class GrowingPolicy(WrappingPolicy):
    """Plans as ``inner``. When no trial waits, the remaining trials grow into the free resources.

    ``GrowingPolicy(CpuPolicy(), up_to=4)`` starts trials with one CPU each. When CPUs are free and no trial waits,
    trials with checkpoints restart with up to four CPUs, if the restart saves more time than it takes.

    Attributes:
        inner: The policy for the plan.
        up_to: The maximum number of GPUs of a trial, or of CPUs if its slot has no GPU.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    up_to: PositiveCount

    def __init__(self, inner: ResourcePolicy, up_to: int) -> None:
        Value.__init__(self, inner=inner, up_to=up_to)

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan for ``capacity``. See :meth:`ResourcePolicy.plan`."""
        plan = self.inner.plan(capacity)
        if plan.num_workers:
            return plan.with_reasons("trials do not grow, because their Train workers reserve the resources")
        name = "GPU" if plan.use_gpu else "CPU"
        return plan.with_reasons(
            f"when no trial waits, the last trials with checkpoints grow to up to {self.up_to} {name}s"
        )

    def growth(
        self, trials: Sequence[GrowingTrial], free: Mapping[str, float], *, restart_s: float, is_gpu: bool
    ) -> tuple[Growth, ...]:
        """Return which running trials grow to which amount, if no trial waits.

        The free amounts of each node are divided evenly: the trial with the least grows first. A trial grows only if it
        has a checkpoint, can use more, and saves more time than the restart takes. A trial that does not grow leaves
        its part to others.

        Args:
            trials: All running trials.
            free: The free GPUs (``is_gpu``) or CPUs of each node, by node ID.
            restart_s: The measured time that a restart takes, in seconds.
            is_gpu: Whether the amounts are GPUs. GPUs are whole, or equal parts of one device.
        """
        growing = [trial for trial in trials if trial.has_checkpoint and trial.left_s and trial.scaling >= _SCALES]
        while growing:
            targets = self._divided(growing, free, is_gpu=is_gpu)
            decisions = []
            for trial in growing:
                amount, left_s = targets[trial.trial_id], trial.left_s or 0.0
                saved_s = left_s - left_s / trial.speed_up(amount) - restart_s
                decisions.append(Growth(trial.trial_id, amount, saved_s))
            # One restart is already subtracted from ``saved_s``.
            if all(growth.saved_s > (_PAYS - 1) * restart_s for growth in decisions):
                return tuple(decisions)
            # The resources of the trial that gains least may make the growth of others pay.
            least = min(decisions, key=lambda growth: (growth.saved_s, growth.trial_id))
            growing = [trial for trial in growing if trial.trial_id != least.trial_id]
        return ()

    def why_not(
        self, trials: Sequence[GrowingTrial], free: Mapping[str, float], *, restart_s: float, is_gpu: bool
    ) -> str:
        """Return why no trial grows into the free resources, or ``""`` if none could use them or if it is not known.

        The arguments are the same as for :meth:`growth`, which has returned no trial.
        """
        scaling = [trial for trial in trials if trial.scaling >= _SCALES]
        targets = self._divided(scaling, free, is_gpu=is_gpu)
        larger = [trial for trial in scaling if targets[trial.trial_id] > trial.amount]
        if not larger:
            return ""
        if not any(trial.has_checkpoint for trial in larger):
            return "the last trials do not grow, because they have no checkpoints"
        known = [trial for trial in larger if trial.has_checkpoint and trial.left_s is not None]
        if not known:
            return ""
        longest = max(known, key=lambda trial: trial.left_s or 0.0)
        amount, left_s = targets[longest.trial_id], longest.left_s or 0.0
        gained_s = left_s - left_s / longest.speed_up(amount)
        more = amount_of(amount, "GPU" if is_gpu else "CPU")
        return (
            f"the last trials do not grow: with {more}, the longest would train about {gained_s:.0f} s less. That is "
            f"not {_PAYS:g} times the {restart_s:.0f} s that a restart takes"
        )

    def _divided(self, trials: Sequence[GrowingTrial], free: Mapping[str, float], *, is_gpu: bool) -> dict[str, float]:
        """Return the amount of each trial after the free amounts of its node were divided evenly."""
        left = {node: to_ticks(amount) for node, amount in free.items()}
        has = {trial.trial_id: to_ticks(trial.amount) for trial in trials}
        open_trials = sorted(trials, key=lambda trial: trial.trial_id)
        while open_trials:
            trial = min(open_trials, key=lambda candidate: has[candidate.trial_id])
            now = has[trial.trial_id]
            larger = _next_amount(now, is_gpu=is_gpu)
            if larger > self.up_to * TICKS or larger - now > left.get(trial.node_id, 0):
                open_trials.remove(trial)
                continue
            left[trial.node_id] -= larger - now
            has[trial.trial_id] = larger
        return {trial: from_ticks(ticks) for trial, ticks in has.items()}


def _next_amount(ticks: int, *, is_gpu: bool) -> int:
    """Return the next larger legal amount in ticks: the next equal part of a GPU, or the next whole number."""
    if is_gpu and ticks < TICKS:
        parts = TICKS // ticks
        return TICKS // max(1, parts - 1)
    return (ticks // TICKS + 1) * TICKS
