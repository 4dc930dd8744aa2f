"""A Tune scheduler that applies a policy to a run: resources, concurrency, placement, and process set-up.

``RunSlots`` assigns slots to trials, ``RunWatch`` finds requests that can never be fulfilled, and ``trial_process``
runs in the process of a trial.
"""

import logging
from functools import cache, partial
from itertools import islice
from typing import Any, Literal

from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial
from ray.tune.schedulers import ResourceChangingScheduler, TrialScheduler

from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.ray_compat.tune_controller import (
    actor_of,
    hide_gpu_warning,
    install_hook,
    save_experiment,
    show_gpu_warning,
)
from tune_policies.ray_compat.tune_queue import TuneQueue, gate_searcher
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.value import shorten

from ..gpu_memory.fraction_limits import LimitOptions
from ..process.process_setup import limit_options
from ..process.trial_process import process_class
from ..watches.run_watch import RunWatch
from ..watches.task_watch import watch_tasks
from .run_plan import PlanChange, check_seconds, lost_node
from .run_slots import RunOptions, RunSlots
from .wrapping_scheduler import WrappingScheduler, nested_schedulers, runs_first_waiting

_logger = logging.getLogger(__name__)


class PolicyScheduler(WrappingScheduler):
    """Runs the trials of ``tune.run`` and ``Tuner`` under a policy.

    Example: ``tune.run(train_fn, scheduler=PolicyScheduler(AutoPolicy()))``. The policy plans on the cluster when the
    run begins, not in the constructor, and the plan is printed. Each trial gets the best free slot of the plan, so the
    plan limits the number of concurrent trials. Before your code runs, the devices, the thread count and the GPU memory
    limit of the trial's process are set. Each result contains the trial's slot as ``"slot"``, its resource usage as
    ``"usage"`` and, if the trial has a GPU, its GPU memory usage as ``"gpu_memory"``. The inner scheduler decides
    everything else.

    If a trainable requests one bundle, the policy's resources replace this request, and the run prints the difference.
    If it requests several bundles, as an RLlib algorithm does, the bundles are kept, and the policy decides only how
    many such trials run concurrently and on which nodes.

    A slow slot is left idle if the faster slots finish all waiting trials before the slow slot would finish one. The
    speeds of slots come from the plan and from finished trials. If the searcher does not report the number of further
    trials, every slot is used.

    If nodes are added, removed or changed, the policy plans again. If the node of a trial or of its Train workers is
    lost, the trial is requeued and resumes from its latest checkpoint. This does not count as a failure:
    ``max_failures`` and ``fail_fast`` apply only to other errors.

    Args:
        policy: A policy or a plan. If you pass a plan, it is used without changes and is not printed.
        inner: The scheduler that decides everything else. The default is Tune's FIFO scheduler.
        isolation: Pass ``"mps"`` to also limit trials with NVIDIA's MPS daemon, if the daemon is running.
        on_unenforced_limit: Whether to raise an error or add a warning to the result if a memory limit cannot be
            enforced. For example, a setting may disable the limit, or the framework may detect no GPU. To rehearse on
            simulated GPUs, pass ``"warn"``.
        may_move: Whether a trial that was paused or requeued may resume on another type of device.
        falls_back: Whether a trial that cannot use its device resumes with the policy's next choice without a device,
            such as ``CpuPolicy()`` in ``GpuPolicy() | CpuPolicy()``. For example, other processes may use the memory of
            the device, or the driver may fail. A fallback does not count as a failure. In the trial,
            ``trial_plan().use_gpu`` is then ``False``.
        replan_interval_s: The interval at which the nodes of the cluster are read, in seconds.
        wait_for_nodes_s: The time in seconds to wait for nodes if no plan is feasible on the remaining nodes. After
            this time, the run ends with the policy's ``InfeasibleRequestError``, and can be resumed.

    Raises:
        InvalidResourcesError: An argument is invalid. In the run, the policy contradicts the trainable's request, or a
            decision was measured with package versions that are not installed.
        InfeasibleRequestError: In the run, not even one trial fits.
        ProbeError: In the run, the cluster cannot be read.
        MemoryLimitError: In a trial, the GPU memory cannot be limited, or other processes use it.
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
                f"policy must be a policy, such as AutoPolicy(), or a plan, got {shorten(policy)}"
            )
        if inner is not None and not isinstance(inner, TrialScheduler):
            raise InvalidResourcesError(f"inner must be a scheduler of Tune, got {shorten(inner)}")
        if falls_back and (isinstance(policy, TrialPlan) or len(policy.choices) < 2):
            raise InvalidResourcesError(
                f"falls_back=True requires a policy with a second choice, got {shorten(policy)}. Use a policy such as "
                "GpuPolicy() | CpuPolicy()"
            )
        super().__init__(inner)
        self._options = RunOptions(
            policy,
            LimitOptions(isolation=isolation, on_unenforced_limit=on_unenforced_limit),
            may_move=may_move,
            falls_back=falls_back,
            replan_interval_s=check_seconds(replan_interval_s, "replan_interval_s"),
            wait_for_nodes_s=check_seconds(wait_for_nodes_s, "wait_for_nodes_s"),
        )
        self._reset_run()

    def _reset_run(self) -> None:
        self._slots: RunSlots | None = None
        self._queue: TuneQueue | None = None
        self._watch = RunWatch()
        self._error: Exception | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that ``Tuner`` pickles: the inner scheduler and the options, but not the state of a run."""
        return {"_inner": self._inner, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._requeued = set()
        self._reset_run()

    def around(self, inner: TrialScheduler | None) -> "PolicyScheduler":
        """Return a scheduler with the same policy and options, but with the inner scheduler ``inner``."""
        other = PolicyScheduler(self._options.policy, inner)
        other.use_options_of(self)
        return other

    def use_options_of(self, other: "PolicyScheduler") -> None:
        """Use the policy and the options of another scheduler from the next run on."""
        self._options = other._options
        self._slots = None

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Plan on the cluster of the new run, print the plan, and pass the metric and its mode to the inner scheduler.

        Raises:
            InfeasibleRequestError: Not even one trial fits.
            InvalidResourcesError: A decision was measured with package versions that are not installed.
            ProbeError: The cluster cannot be read.
        """
        self._begin()
        hide_gpu_warning()
        return super().set_search_properties(metric, mode, **spec)

    def _begin(self) -> RunSlots:
        self._reset_run()
        self._slots = slots = RunSlots(self._options)
        plan = slots.run_plan.plan
        changes_resources = any(isinstance(each, ResourceChangingScheduler) for each in nested_schedulers(self._inner))
        if changes_resources and (len(plan.slots) > 1 or plan.by_config is not None):
            raise InvalidResourcesError(
                "ResourceChangingScheduler requires the same request for all trials, but the plan has several slot "
                "types. Use a policy with one slot type, or omit ResourceChangingScheduler"
            )
        limits = limit_options(self._options.limits.isolation, self._options.limits.on_unenforced_limit)
        self._process_class = cache(partial(process_class, limits=limits))
        return slots

    @property
    def _run_slots(self) -> RunSlots:
        return self._slots or self._begin()

    @property
    def plan(self) -> TrialPlan | None:
        """The current plan, or ``None`` before a run."""
        return None if self._slots is None else self._slots.run_plan.plan

    @property
    def changes(self) -> tuple[PlanChange, ...]:
        """The changes to the plan since the start of the run, in order."""
        return () if self._slots is None else tuple(self._slots.run_plan.changes)

    def slot_of(self, trial: Trial) -> TrialSlot | None:
        """Return the current or last slot of ``trial``, or ``None`` if it never had a slot."""
        return None if self._slots is None else self._slots.slot_of(trial)

    @property
    def num_fallbacks(self) -> int:
        """The number of trials that could not use their device and fell back to a slot without a device."""
        return 0 if self._slots is None else len(self._slots.fallen_back)

    def slots_left_idle(self) -> dict[int, int]:
        """Return the number of free slots that the last decision left idle, by slot type. Zeros are omitted."""
        return {} if self._slots is None else dict(self._slots.left_idle)

    def replan(self, plan: TrialPlan, why: str = "a new plan was given") -> None:
        """Use ``plan`` from now on for trials that are not running yet."""
        self._run_slots.run_plan.replan(plan, why)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Add a trial that waits for a slot.

        An error here would make Tune restart a resumed run, so errors are raised in the next step.
        """
        try:
            queue = self._queue_of(tune_controller)
            queue.forget(trial)  # a requeued trial may have been staged while it ran
            slots = self._run_slots
            install_hook(trial, self, tune_controller, self._process_class)
            slots.add(trial)
        except Exception as error:  # noqa: BLE001
            self._error = self._error or error
        super().on_trial_add(tune_controller, trial)

    def _queue_of(self, tune_controller: Any) -> TuneQueue:
        if self._queue is None or not self._queue.is_of(tune_controller):
            slots, queue = self._run_slots, TuneQueue(tune_controller)
            self._queue = queue
            show_gpu_warning()
            watch_tasks()
            gate_searcher(tune_controller, lambda: slots.num_startable(queue))
        return self._queue

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Record the trial's duration, and report its end to the inner scheduler."""
        self._run_slots.finish(trial)
        super().on_trial_complete(tune_controller, trial, result)

    def should_requeue(self, trial: Trial, error: object) -> bool:
        """Return whether to requeue a failed trial because a node was lost or the trial falls back to CPUs.

        The lost node may have run the trial itself or its Train workers.

        Raises:
            InfeasibleRequestError: The trial cannot use its device, and no other choice of the policy fits.
        """
        node_id = lost_node(error)
        if node_id is None:
            return self._run_slots.fall_back(trial, error)
        _logger.warning(
            "%s was lost with node %s and is requeued. This does not count as a failure", trial, node_id[:8]
        )
        self._run_slots.run_plan.avoid_node(node_id)
        return True

    def adjust_resources(self, trial: Trial, planned: PlacementGroupFactory) -> PlacementGroupFactory:
        """Return the request of the trial's slot, with the resources that another scheduler requested, if any."""
        return self._run_slots.adjust_resources(trial, planned)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Assign the free slots to waiting trials, first to the trial that the inner scheduler chooses.

        Returns:
            The chosen trial, or ``None`` if it got no slot.

        Raises:
            InfeasibleRequestError: No plan has been feasible for ``wait_for_nodes_s``, or no trial can proceed.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        slots = self._run_slots
        queue = self._queue or TuneQueue(tune_controller)
        slots.follow_nodes(queue)
        if slots.run_plan.timeout_error is not None:
            save_experiment(tune_controller, wait=True)
            raise slots.run_plan.timeout_error
        self._watch_run(tune_controller, queue)
        slots.update(queue)
        may_start = slots.may_start()
        if queue.num_paused or not runs_first_waiting(self._inner):
            view: Any = queue.view(may_start)
        else:
            view = queue.view_of(list(islice(filter(may_start, slots.waiting), 1)))
        chosen = super().choose_trial_to_run(view)
        slots.update(queue)  # the inner scheduler may have changed requests
        is_assigned = slots.assign(queue, chosen)
        slots.keep_idle_processes(queue)
        return chosen if is_assigned else None

    def _watch_run(self, tune_controller: Any, queue: TuneQueue) -> None:
        """Request lost placement groups again, and end a run in which no trial can proceed.

        Raises:
            InfeasibleRequestError: No trial can proceed.
        """
        reading = self._watch.read(queue.requested_groups(), queue.own_groups())
        if reading is None:
            return
        if reading.busy:
            self._watch.warn_once(reading.busy)
        for group_id in reading.lost_groups:
            if (request := queue.request_group_again(group_id)) is not None:
                amounts = request.required_resources
                _logger.warning("placement group %s for %s was lost and is requested again", group_id, amounts)
        assignments = self._run_slots.assignments
        running = {actor_of(trial): trial for trial, each in assignments.items() if each.has_started}
        stuck = {running[driver_id]: error for driver_id, error in reading.stuck.items() if driver_id in running}
        for trial, error in stuck.items():
            self._watch.warn_once(f"{trial} waits for workers that cannot start", str(error))
        if stuck and len(stuck) == len(assignments):
            save_experiment(tune_controller, wait=True)
            raise next(iter(stuck.values()))
