"""Ends a Train run whose workers can never start, with the sum of who holds what, where Ray would retry for ever.

The decision is ``tune_policies.placement.deadlock``'s. Here the cluster is read, by ``occupancy``, for as long as the
workers wait: in a thread of Train's controller, whose own thread is blocked meanwhile.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.train import RunConfig

from tune_policies.placement.deadlock import ClusterOccupancy, Gang, NodeTotals, WaitingRun, deadlock_error, stuck_runs
from tune_policies.ray_compat.train_run import (
    ControllerCallback,
    ControllerError,
    WorkerGroupCallback,
    with_run_config,
    worker_amounts,
)
from tune_policies.values.errors import InfeasibleRequestError, ProbeError
from tune_policies.values.resources import to_ticks

from .occupancy import AddableNodes, OccupancyReader, remove_abandoned_groups, remove_groups

_logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.5
_LONGEST_INTERVAL_S: Final = 5.0
_PATIENCE_S: Final = 4.0
"""How long the same runs must be stuck before the youngest of them gives way, and then the next.

A reading is one moment, in which one run may have ended and another not yet begun.
"""


class GangDeadlockError(InfeasibleRequestError, ControllerError):  # type: ignore[misc]  # Ray is not followed
    """An ``InfeasibleRequestError`` that Ray Train passes on as it is: it wraps whatever is no error of its own."""

    def __init__(self, asked: str, offered: str, short_of: str, suggestion: str, tried: Any = ()) -> None:
        Exception.__init__(self, asked, offered, short_of, suggestion, tried)
        self.asked, self.offered, self.short_of, self.suggestion, self.tried = (
            asked,
            offered,
            short_of,
            suggestion,
            tried,
        )

    @property
    def controller_failure(self) -> Exception:
        """What Ray Train asks an error of its controller for, to know whether to try again."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args)

    def __str__(self) -> str:
        return InfeasibleRequestError.__str__(self)


def with_deadlock_check(trainer: Any) -> Any:
    """Return a copy of one of Ray Train's trainers that fails within seconds where its workers can never start.

    Without it, Ray Train waits and retries for ever. This package's trainers and those of ``as_trainable`` have it.
    What counts as held: the share of each driver whose own workers wait, and the actors of this program, and detached
    ones, that are outside of trials and Train runs. The workers of other runs, other trials and other programs will
    end; nodes that an autoscaler can add count as room.

    Args:
        trainer: Of Ray Train's version 2; it is left untouched.

    Raises:
        InfeasibleRequestError: From ``fit()``: the workers cannot all start beside what holds on. Ray 2.50 wraps it in
            a ``ControllerError``, as its ``controller_failure``.
    """
    return with_run_config(trainer, with_deadlock_watch(trainer.run_config))


def with_deadlock_watch(run_config: RunConfig | None) -> RunConfig:
    """Return the run config with the watch among its callbacks, once."""
    run_config = run_config or RunConfig()
    if not isinstance(run_config, RunConfig):  # Tune's, for instance: Ray says itself what is wrong with it
        return run_config
    if any(isinstance(each, DeadlockWatch) for each in run_config.callbacks):
        return run_config
    return replace(run_config, callbacks=[*run_config.callbacks, DeadlockWatch()])


class DeadlockWatch(ControllerCallback, WorkerGroupCallback):  # type: ignore[misc]  # Ray is not followed
    """Watches, in Train's controller, whether the workers that are waited for can start."""

    def __init__(self) -> None:
        self._gang: Gang | None = None
        self._is_elastic = False
        self._wait: _Wait | None = None
        self._nodes: dict[str, NodeTotals] = {}

    def after_controller_start(self, train_run_context: Any) -> None:
        """Begin to watch."""
        scaling_config = train_run_context.scaling_config
        self._gang = gang_of(scaling_config)
        self._is_elastic = isinstance(scaling_config.num_workers, tuple)
        self._begin()

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        """Fail, where it is known that there is no room: after a group was given up, Train tries the next."""
        self._raise_verdict()
        self._begin()

    def after_worker_group_start(self, worker_group: Any) -> None:
        """End the watch: the workers run."""
        self._end()

    def after_controller_state_update(self, previous_state: Any, current_state: Any) -> None:
        """Fail here where the run is elastic, as Train waits for enough room before it starts a group."""
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
            self._wait = None  # with its verdict: in the same moment the workers may have started after all

    def _raise_verdict(self) -> None:
        if self._wait is not None and self._wait.verdict is not None:
            raise self._wait.verdict


class _Wait:
    """One wait for workers, in which a thread reads the cluster until they start, or are known never to."""

    def __init__(self, reader: OccupancyReader, nodes: dict[str, NodeTotals]) -> None:
        self.stop = threading.Event()
        self.verdict: GangDeadlockError | None = None
        self._reader = reader
        self._nodes = nodes
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        patience, addable = Patience(self._reader.own_id), AddableNodes()
        began = time.monotonic()
        while not self.stop.wait(interval_s(time.monotonic() - began)):
            try:
                remove_abandoned_groups()
                error = find_deadlock(self._with_lost_nodes(self._reader.read()), patience, addable.added_to)
                if error is not None and not self.stop.is_set():
                    self.verdict = GangDeadlockError(*error.args)
                    remove_groups(self._reader.own_id, only_pending=True)  # ends the wait, in which nothing is called
                    return
            except (RayError, ProbeError, OSError, RuntimeError) as failure:
                _logger.debug("the cluster could not be read: %s", failure)

    def _with_lost_nodes(self, view: ClusterOccupancy) -> ClusterOccupancy:
        """Return the view with nodes that were there before: a run that lost one waits until it is replaced."""
        self._nodes |= {node.node_id: node for node in view.nodes}
        return view.model_copy(update={"nodes": tuple(self._nodes.values())})


def interval_s(waited_s: float) -> float:
    """Return the time between two readings: short at first; a run may wait for hours while others train."""
    return min(_LONGEST_INTERVAL_S, max(_INTERVAL_S, waited_s / 20))


class Patience:
    """How long the same runs have been stuck, and whether it is this run's turn to give way."""

    def __init__(self, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.run_id = run_id
        self._clock = clock
        self._seen: list[str] = []
        self._since = 0.0

    def is_over(self, stuck: tuple[WaitingRun, ...]) -> bool:
        """Return whether it is over. The youngest run is the first, so that the others can have its driver's share."""
        ids = [run.run_id for run in stuck]
        if ids != self._seen:
            self._seen, self._since = ids, self._clock()
        if self.run_id not in ids:
            return False
        num_younger = len(ids) - 1 - ids.index(self.run_id)
        return self._clock() - self._since >= _PATIENCE_S * (1 + num_younger)


def find_deadlock(
    view: ClusterOccupancy, patience: Patience, grown: Callable[[ClusterOccupancy], ClusterOccupancy | None]
) -> InfeasibleRequestError | None:
    """Return the error of the run that ``patience`` is of, once it is over.

    Args:
        view: What was read just now.
        patience: Of the run, over all readings.
        grown: Returns the view with the nodes that could be added; ``None``: there may be some that are not known yet.
    """
    stuck = stuck_runs(view)
    is_over = patience.is_over(stuck)
    own = next((run for run in stuck if run.run_id == patience.run_id), None)
    with_more = None if own is None else grown(view)  # asked before it is over, as the first answer takes a while
    if not is_over or own is None or with_more is None:
        return None
    return deadlock_error(with_more, own) if own in stuck_runs(with_more) else None


def gang_of(scaling_config: Any) -> Gang:
    """Return the workers that must start together: of an elastic run, the fewest."""
    num_workers = scaling_config.num_workers
    selector = getattr(scaling_config, "label_selector", None)
    amounts = worker_amounts(scaling_config)
    return Gang(
        worker={name: int(each) if name == "memory" else to_ticks(each) for name, each in amounts.items()},
        num_workers=num_workers[0] if isinstance(num_workers, tuple) else num_workers,
        strategy=scaling_config.placement_strategy,
        label_selector=selector if isinstance(selector, dict) else {},  # a list has one for each worker
    )
