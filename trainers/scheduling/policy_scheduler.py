"""A Tune scheduler that applies a policy to a run: resources, concurrency, placement, and process set-up.

``run_plan`` plans, ``own_requests`` decides which requests of trainables the policy replaces, ``choose_slots`` decides
which trial gets which slot, and ``run_events`` carries the decisions out.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.policies.policy_kinds import instead_of_class
from tune_policies.ray_compat.tune_schedulers import (
    hide_gpu_warning,
    longest_trials,
    show_class_again,
    show_gpu_warning,
    show_schedulers,
)
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.units import check_seconds
from tune_policies.values.wording import shorten

from ..gpu_memory.fraction_limits import LimitOptions
from ..process.process_setup import limit_options
from ..retries.oom_retry_scheduler import OomRetries
from .choose_slots import RunSlots
from .inner_scheduler import changes_resources, check_inner_scheduler, check_is_plain_scheduler
from .run_events import RunCore
from .run_learning import RunLearning
from .run_plan import PlanChange, RunPlan
from .run_scheduler import RunScheduler
from .trial_growth import TrialGrowth
from .trial_record import TrialRecord
from .wrapping_scheduler import nested_schedulers

_logger = logging.getLogger(__name__)


_ABOUT_STATUSES: Final = (
    "in Tune's table, a trial is PENDING while Ray starts its process, which can take half a minute, and PAUSED while "
    "it waits for a slot"
)
"""The line after the plan. Tune starts any pending trial, so trials that wait for a slot must be paused for Tune."""


class _RunOptions(NamedTuple):
    """The arguments of a ``PolicyScheduler``, except the inner scheduler."""

    policy: ResourcePolicy | TrialPlan
    limits: LimitOptions
    may_move: bool
    falls_back: bool
    replan_interval_s: float
    wait_for_nodes_s: float


class PolicyScheduler(RunScheduler):
    """Runs the trials of ``tune.run`` and ``Tuner`` under a policy.

    Example: ``tune.run(train_fn, scheduler=PolicyScheduler(AutoPolicy()))``. The policy plans on the cluster when the
    run begins, not in the constructor, and the plan is printed. Each trial gets the best free slot of the plan, so the
    plan limits the number of concurrent trials. Before your code runs, the devices, the thread count and the GPU memory
    limit of the trial's process are set. Each result contains the trial's slot as ``"slot"``. The metrics of the trial,
    and at most every two seconds its results, contain its resource usage as ``"usage"`` and, if the trial has a GPU,
    its GPU memory usage as ``"gpu_memory"``. The inner scheduler decides everything else.

    While a trial waits for a slot, Tune shows its status as ``PAUSED``. A trial whose slot is used by another program
    moves to another free slot.

    If a trainable requests one bundle, the policy's resources replace this request, and the run prints the difference.
    If it requests several bundles, as an RLlib algorithm does, the bundles are kept, and the policy decides only how
    many such trials run concurrently and on which nodes.

    A slow slot is left idle if the faster slots finish all waiting trials before the slow slot would finish one. The
    speeds of slots come from the plan and from finished trials. If the searcher does not report the number of further
    trials, every slot is used.

    If nodes are added, removed or changed, the policy plans again. If the node of a trial or of its Train workers is
    lost, the trial is requeued and resumes from its latest checkpoint. This does not count as a failure:
    ``max_failures`` and ``fail_fast`` apply only to other errors. A trial that is lost three times in a row without
    progress in between may be the cause itself, so its third and each further loss counts as a failure. A trial makes
    progress if it reaches a higher training iteration than before, or saves another checkpoint.

    Args:
        policy: A policy or a plan. If you pass a plan, it is used without changes and is not printed. After a loss of
            nodes, it is feasible as long as a remaining node has room for a trial.
        inner: The scheduler that decides everything else. The default is Tune's FIFO scheduler.
        isolation: Pass ``"mps"`` to also limit trials with NVIDIA's MPS daemon, if the daemon is running.
        on_unenforced_limit: Whether to raise an error or add a warning to the result if a memory limit cannot be
            enforced. For example, a setting may disable the limit, or the framework may detect no GPU. If this happens
            in the first trials, the run ends. On simulated GPUs, trials run without limits in any case.
        may_move: Whether a trial that was paused or requeued may resume on another type of device.
        falls_back: Whether a trial that cannot use its device resumes with the policy's next choice without a device,
            such as ``CpuPolicy()`` in ``GpuPolicy() | CpuPolicy()``. For example, other processes may use the memory of
            the device, or the driver may fail. A fallback does not count as a failure. In the trial,
            ``trial_plan().use_gpu`` is then ``False``.
        replan_interval_s: The interval at which the nodes of the cluster are read, in seconds.
        wait_for_nodes_s: The time in seconds to wait for nodes if no plan is feasible on the remaining nodes, or if
            only trials wait whose own bundles no longer fit. After this time, the run ends with an
            ``InfeasibleRequestError``, and can be resumed.

    Raises:
        InvalidResourcesError: An argument is invalid. In the run, the policy contradicts the trainable's request, or a
            decision was measured with package versions that are not installed. After trials have run, a trial whose
            request contradicts the policy fails, and the run continues.
        InfeasibleRequestError: In the run, not even one trial fits.
        ProbeError: In the run, the cluster cannot be read.
        MemoryLimitError: In a trial, the GPU memory cannot be limited, or other processes use it.
        UnenforcedLimitError: In the run, the memory limits of the first trials cannot be enforced.
    """

    def __init__(
        self,
        policy: ResourcePolicy | TrialPlan,
        inner: TrialScheduler | None = None,
        *,
        isolation: Literal["mps"] | None = None,
        on_unenforced_limit: Literal["raise", "warn"] = "raise",
        may_move: bool = False,
        falls_back: bool = False,
        replan_interval_s: float = 5.0,
        wait_for_nodes_s: float = 600.0,
    ) -> None:
        if not isinstance(policy, ResourcePolicy | TrialPlan):
            raise InvalidResourcesError(
                "policy must be a policy, such as AutoPolicy(), or a plan, got "
                f"{shorten(policy)}{instead_of_class(policy)}"
            )
        for name, value in (("may_move", may_move), ("falls_back", falls_back)):
            if not isinstance(value, bool):  # the string "no" is true
                raise InvalidResourcesError(f"{name} must be True or False, got {shorten(value)}")
        check_is_plain_scheduler(inner, PolicyScheduler)
        if falls_back and (isinstance(policy, TrialPlan) or len(policy.choices) < 2):
            raise InvalidResourcesError(
                f"falls_back=True requires a policy with a second choice, got {shorten(policy)}. Use a policy such as "
                "GpuPolicy() | CpuPolicy()"
            )
        super().__init__(inner)
        self._options = _RunOptions(
            policy,
            LimitOptions(isolation=isolation, on_unenforced_limit=on_unenforced_limit),
            may_move=may_move,
            falls_back=falls_back,
            replan_interval_s=check_seconds(replan_interval_s, "replan_interval_s"),
            wait_for_nodes_s=check_seconds(wait_for_nodes_s, "wait_for_nodes_s"),
        )
        self._run_plan: RunPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that ``Tuner`` pickles: the inner scheduler and the options, but not the state of a run."""
        return super().__getstate__() | {"_run_plan": None}

    def around(self, inner: TrialScheduler | None) -> "PolicyScheduler":
        """Return a scheduler with the same policy and options, but with the inner scheduler ``inner``."""
        other = PolicyScheduler(self._options.policy, inner)
        other.use_options_of(self)
        return other

    def use_options_of(self, other: "PolicyScheduler") -> None:
        """Use the policy and the options of another scheduler from the next run on."""
        self._options = other._options
        self._run_plan = None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Plan on the cluster of the new run, print the plan, and pass the metric and its mode to the inner scheduler.

        Raises:
            InfeasibleRequestError: Not even one trial fits.
            InvalidResourcesError: A decision was measured with package versions that are not installed.
            ProbeError: The cluster cannot be read.
        """
        self._begin()
        # ``tune.run`` warns about unused GPUs after it has called this method.
        hide_gpu_warning()
        # An earlier run may have ended before its first step, which restores the class.
        show_class_again(self)
        inner = [type(part).__name__ for part in nested_schedulers(self.inner)]
        if type(self.inner) is not FIFOScheduler:
            show_schedulers(self, [type(self).__name__, *inner])
        return super().set_search_properties(metric, mode, **spec)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the trial that starts now, or ``None``."""
        show_class_again(self)  # Tune has printed its table
        return super().choose_trial_to_run(tune_controller)

    def _begin(self) -> RunPlan:
        self._core = None
        options = self._options
        run_plan = RunPlan(
            options.policy, interval_s=options.replan_interval_s, wait_for_nodes_s=options.wait_for_nodes_s
        )
        check_inner_scheduler(self.inner, run_plan.plan)
        if isinstance(options.policy, ResourcePolicy):  # a plan that the user made is not printed
            print(_ABOUT_STATUSES)
        self._run_plan = run_plan
        return run_plan

    def _join(self, core: RunCore) -> None:
        super()._join(core)
        run_plan = self._run_plan or self._begin()
        # ``_begin`` forgets the core of an earlier run, so the core is set again.
        self._core = core
        options = self._options
        core.slots = RunSlots(run_plan, may_move=options.may_move, falls_back=options.falls_back)
        core.tune.start_together()
        core.limits = limit_options(options.limits.isolation, options.limits.on_unenforced_limit)
        show_gpu_warning()
        core.watch.watch_tasks()
        # Two parts that change the requests of the same trials would undo each other's changes.
        if changes_resources(self.inner):
            if run_plan.learning is not None:
                core.retries = core.retries or OomRetries()
            if run_plan.learning is not None or run_plan.growing is not None:
                _logger.warning(
                    "ResourceChangingScheduler decides about the resources of trials, so the policy neither learns nor "
                    "lets trials grow"
                )
            return
        if run_plan.learning is not None:
            core.learning = RunLearning(run_plan)
            # Once the policy has learned, a retry gets what the policy expects instead of a fixed factor more.
            core.retries = core.retries or OomRetries(learned_growth=core.learning.retry_growth)
        if run_plan.growing is not None or run_plan.learning is not None:
            # The end of a trial may be known only from the ``max_t`` of an inner scheduler, such as ASHA.
            longest: dict[str, float] = {}
            for part in nested_schedulers(self.inner):
                longest |= longest_trials(part)
            core.growth = TrialGrowth(run_plan.growing, longest)

    @property
    def plan(self) -> TrialPlan | None:
        """The current plan, or ``None`` before a run."""
        if self._run_plan is None:
            return None
        return self._run_plan.plan

    @property
    def policy(self) -> ResourcePolicy | TrialPlan:
        """The policy or the plan of the run. A ``LearningPolicy`` includes what it has learned."""
        if self._run_plan is None:
            return self._options.policy
        return self._run_plan.policy

    @property
    def changes(self) -> tuple[PlanChange, ...]:
        """The changes to the plan since the start of the run, in order."""
        if self._run_plan is None:
            return ()
        return tuple(self._run_plan.changes)

    @property
    def _records(self) -> Mapping[Trial, TrialRecord]:
        if self._core is None:
            return {}
        return self._core.records

    def slot_of(self, trial: Trial) -> TrialSlot | None:
        """Return the current or last slot of ``trial``, or ``None`` if it never had a slot."""
        if self._core is None or self._core.slots is None:
            return None
        assignment = self._core.slots.assignments.get(trial)
        if assignment is not None:
            return assignment.slot
        record = self._records.get(trial)
        if record is None:
            return None
        return record.slot

    @property
    def num_fallbacks(self) -> int:
        """The number of trials that could not use their device and fell back to a slot without a device."""
        return sum(record.has_fallen_back for record in self._records.values())

    def slots_left_idle(self) -> dict[int, int]:
        """Return the number of free slots that the last decision left idle, by slot type. Zeros are omitted."""
        if self._core is None or self._core.slots is None:
            return {}
        return dict(self._core.slots.left_idle)

    def replan(self, plan: TrialPlan, why: str = "a new plan was given") -> None:
        """Use ``plan`` from now on for trials that are not running yet."""
        (self._run_plan or self._begin()).replan(plan, why)
