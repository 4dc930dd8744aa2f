"""Ends a Train run whose workers can never start. Without this check, Ray retries indefinitely.

The check runs in a separate thread of Train's controller, because the controller's main thread is blocked while it
waits for its workers.
"""

import logging
import threading
import time
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import ray
from ray.exceptions import RayError
from ray.train import RunConfig

from tune_policies.placement.bundles import BundleGroup
from tune_policies.placement.gang_deadlock import NodeTotals
from tune_policies.ray_compat.gcs import Records, read_records
from tune_policies.ray_compat.train_run import (
    ControllerCallback,
    ControllerError,
    WorkerGroupCallback,
    with_run_config,
    worker_amounts,
)
from tune_policies.values.errors import InfeasibleRequestError, ProbeError, RayVersionError

from .stuck_train_runs import OccupancyReader, StuckRuns, remove_abandoned_groups, remove_groups

_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
_LONGEST_INTERVAL_S: Final = 5.0
_FAIL_AFTER_S: Final = 4.0
"""The time in seconds that the same runs must be stuck before the youngest run fails. The second youngest run fails
after twice this time."""


class GangDeadlockError(InfeasibleRequestError, ControllerError):  # type: ignore[misc]  # Ray's classes are untyped
    """An ``InfeasibleRequestError`` that Ray Train does not wrap, because it is also a ``ControllerError``."""

    @property
    def controller_failure(self) -> Exception:
        """The error that Ray Train uses to decide whether to retry the run."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # ``ControllerError.__reduce__`` would call the constructor with the failure, which is this error itself.
        return (type(self), self.args)


class _HasRunConfig(Protocol):
    run_config: Any


TrainerT = TypeVar("TrainerT", bound=_HasRunConfig)


def with_deadlock_check(trainer: TrainerT) -> TrainerT:
    """Return a copy of a Ray Train trainer that fails within seconds if its workers can never start.

    Without this check, Ray Train retries indefinitely. The trainers of this package and the trainers that
    ``as_trainable`` runs already include the check. The check assumes that a driver releases no resources while its own
    workers wait. It also assumes that detached actors, and this program's actors outside of trials and Train runs,
    never release resources. All other workers, trials and programs are expected to end. Nodes that an autoscaler can
    add count as available.

    Args:
        trainer: A trainer of Ray Train version 2. It is not changed.

    Raises:
        InfeasibleRequestError: In ``fit()``, the workers can never start with the remaining resources. In Ray 2.50,
            this error is the ``controller_failure`` of a ``ControllerError``.
    """
    watched: TrainerT = with_run_config(trainer, with_deadlock_watch(trainer.run_config))
    return watched


def with_deadlock_watch(run_config: RunConfig | None) -> RunConfig:
    """Return the run config with a ``DeadlockWatch`` callback, unless it already has one."""
    run_config = run_config or RunConfig()
    if not isinstance(run_config, RunConfig):  # such as Tune's ``RunConfig``, which Ray rejects with its own error
        return run_config
    if any(isinstance(callback, DeadlockWatch) for callback in run_config.callbacks):
        return run_config
    return replace(run_config, callbacks=[*run_config.callbacks, DeadlockWatch()])


class DeadlockWatch(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # Ray's classes are untyped
    """A callback in Train's controller that checks whether waiting workers can start."""

    def __init__(self) -> None:
        self._gang: BundleGroup | None = None
        self._is_elastic = False
        self._wait: _Wait | None = None
        # Kept for all attempts to start workers.
        self._nodes: dict[str, NodeTotals] = {}

    def after_controller_start(self, train_run_context: Any) -> None:
        """Start the watch."""
        scaling_config = train_run_context.scaling_config
        self._gang = gang_of(scaling_config)
        self._is_elastic = isinstance(scaling_config.num_workers, tuple)
        self._begin()

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Before Train requests the next worker group, raise a ``GangDeadlockError`` if the workers can never start."""
        # Ray Train calls this method for each attempt to start workers, also after a failure.
        self._raise_verdict()
        self._begin()

    def after_worker_group_start(self, worker_group: Any) -> None:
        """Stop the check, because the workers have started."""
        self._end()

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Raise the error of an elastic run here, because Train requests elastic workers only if resources are free."""
        if current_state.is_terminal():
            self._end()
        elif self._is_elastic:
            self._raise_verdict()

    def _begin(self) -> None:
        if self._wait is None and self._gang is not None:
            reader = OccupancyReader(ray.get_runtime_context().get_actor_id(), self._gang, is_elastic=self._is_elastic)
            self._wait = _Wait(reader, self._nodes)

    def _end(self) -> None:
        if self._wait is not None:
            self._wait.stop.set()
            self._wait = None  # ignore a late verdict, because the workers may just have started

    def _raise_verdict(self) -> None:
        if self._wait is not None and self._wait.verdict is not None:
            raise self._wait.verdict


class _Wait:
    """A thread that reads the cluster until the workers start or a deadlock is found."""

    def __init__(self, reader: OccupancyReader, nodes: dict[str, NodeTotals]) -> None:
        self.stop = threading.Event()
        self.verdict: GangDeadlockError | None = None
        self._reader = reader
        self._nodes = nodes
        self._stuck = StuckRuns()
        self._has_warned = False
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        began_s = time.monotonic()
        # The interval grows, because a run may wait for hours while other runs train.
        while not self.stop.wait(min(_LONGEST_INTERVAL_S, max(_INTERVAL_S, (time.monotonic() - began_s) / 20))):
            try:
                records = read_records()
                remove_abandoned_groups(records)
                error = self._find_deadlock(records)
                if error is not None and not self.stop.is_set():
                    # Set before the group is removed, because the controller then continues, and calls
                    # ``before_worker_group_start``.
                    self.verdict = GangDeadlockError(*error.args)
                    # The controller calls no callbacks while it waits for its placement group. Removing the group ends
                    # the wait.
                    remove_groups(self._reader.own_id, only_pending=True)
                    return
            except RayVersionError as failure:
                _logger.warning("the deadlock check for the workers is disabled: %s", failure)
                return
            # Ray may be busy or restarting, so the next reading follows after the interval.
            except (RayError, ProbeError, OSError, RuntimeError) as failure:
                _logger.debug("the cluster could not be read: %s", failure)
            except Exception:  # noqa: BLE001  # an incomplete answer of Ray must not disable the check
                self._warn_once()

    def _warn_once(self) -> None:
        """Log the current error with its traceback, unless an error was logged before."""
        if self._has_warned:
            return
        self._has_warned = True
        _logger.warning(
            "the deadlock check for the workers failed and is tried again every few seconds. Further errors are not "
            "logged",
            exc_info=True,
        )

    def _find_deadlock(self, records: Records) -> InfeasibleRequestError | None:
        """Return the error if the workers can never start and this run should fail, or ``None``.

        The youngest run fails first, so that the other runs can use the resources of its driver.
        """
        view = self._reader.read(records)
        # Include earlier nodes, because a lost node may be replaced.
        self._nodes |= {node.node_id: node for node in view.nodes}
        view = view.model_copy(update={"nodes": tuple(self._nodes.values())})
        found = self._stuck.errors(view, lambda place: _FAIL_AFTER_S * place)
        return next((error for run, error in found if run.run_id == self._reader.own_id), None)


def gang_of(scaling_config: Any) -> BundleGroup:
    """Return a bundle for each worker that must start. An elastic run needs only its minimum number of workers."""
    num_workers = scaling_config.num_workers
    fewest = num_workers[0] if isinstance(num_workers, tuple) else num_workers
    # Ray 2.50's ``ScalingConfig`` has no label selector.
    selectors = getattr(scaling_config, "label_selector", None) or {}
    if isinstance(selectors, dict):  # one selector for all workers
        selectors = [selectors] * fewest
    return BundleGroup([worker_amounts(scaling_config)] * fewest, scaling_config.placement_strategy, selectors)
