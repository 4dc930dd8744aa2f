"""Simulates nodes and actors without Ray and without processes, with a clock that jumps from event to event.

``SimulatedActors`` replaces Ray's ``RayActorManager``: an actor waits until a node has free resources for its request,
starts, runs tasks and stops. An actor fails if its process is killed or its node is lost. A GPU fraction is allocated
on a random device with enough free capacity, because Ray does not define which device it chooses. As a second base
class of ``TrialActors``, the simulation runs under its decisions about starts, resets and failures.
"""

import heapq
import itertools
import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from ray.air.execution._internal import TrackedActor
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.air.execution._internal.tracked_actor_task import TrackedActorTask
from ray.exceptions import RayActorError, RayTaskError
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint

from tune_policies import ClusterCapacity, NodeCapacity
from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.labels import matcher
from tune_policies.values.resources import TICKS, ray_ticks

STARTS_IN_S: Final = 2.0
"""The time that the process of an actor takes to start, in seconds."""

TICK_S: Final = 5.0
"""The time between two steps of Tune if no event is due, in seconds. In a real run, it is 0.1 s."""


class Clock:
    """A simulated clock in seconds that replaces the module ``time``."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def monotonic(self) -> float:
        """Return the simulated seconds since the start."""
        return self.now_s

    time = monotonic

    def call_in(self, delay_s: float, event: Callable[[], object]) -> None:
        """Schedule an event in ``delay_s`` seconds."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), event))

    def advance(self, limit_s: float) -> None:
        """Run the next event if it is due within ``limit_s`` seconds. Otherwise, advance the time by ``limit_s``."""
        if self._events and self._events[0][0] <= self.now_s + limit_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        else:
            self.now_s += limit_s


class Held(NamedTuple):
    """An allocation on a node, in ticks: ``amounts`` by resource, and ``devices`` by resource and device index."""

    node_id: str
    amounts: dict[str, int]
    devices: dict[str, dict[int, int]]


class SimulatedNode:
    """A node that allocates and releases resources. It tracks each device separately."""

    def __init__(self, capacity: NodeCapacity, rng: random.Random) -> None:
        self.capacity = capacity
        self._rng = rng
        has = capacity.amounts
        self.free = {name: ticks for name, ticks in has.items() if name not in DEVICE_RESOURCES}
        self.devices = {name: [TICKS] * (ticks // TICKS) for name, ticks in has.items() if name in DEVICE_RESOURCES}

    @property
    def is_idle(self) -> bool:
        """Whether the node has no allocations."""
        of_devices = {name: sum(free) for name, free in self.devices.items()}
        return {**self.free, **of_devices} == dict(self.capacity.amounts)

    def allocate(self, wanted: Mapping[str, int]) -> Held | None:
        """Allocate ticks of each resource, or return ``None`` if too few ticks are free on the node."""
        held = Held(self.capacity.node_id, {}, {})
        for name, ticks in wanted.items():
            if name in DEVICE_RESOURCES:
                whole, fraction = divmod(ticks, TICKS)
                free = self.devices.get(name, [])
                if whole and fraction:
                    return None
                number = whole or 1
                ticks_of_device = TICKS if whole else fraction
                room = [device for device, left in enumerate(free) if left >= ticks_of_device]
                if len(room) < number:
                    return None
                held.devices[name] = dict.fromkeys(self._rng.sample(room, number), ticks_of_device)
            elif name in self.free or name != "memory":  # host memory is not limited if it is unknown
                if self.free.get(name, 0) < ticks:
                    return None
                held.amounts[name] = ticks
        self._add(held, -1)
        return held

    def release(self, held: Held) -> None:
        """Release an allocation."""
        self._add(held, 1)

    def _add(self, held: Held, sign: int) -> None:
        for name, ticks in held.amounts.items():
            self.free[name] += sign * ticks
        for name, by_device in held.devices.items():
            for device, ticks in by_device.items():
                self.devices[name][device] += sign * ticks


class SimulatedCluster:
    """Nodes that can be added and removed."""

    def __init__(self, rng: random.Random, clock: Clock) -> None:
        self.nodes: dict[str, SimulatedNode] = {}
        self.changed_at_s = 0.0
        self._rng, self._clock = rng, clock
        self._numbers = itertools.count()

    @property
    def capacity(self) -> ClusterCapacity:
        """The capacity that a probe of this cluster would return."""
        return ClusterCapacity(nodes=tuple(node.capacity for node in self.nodes.values()))

    def add(self, shape: NodeCapacity) -> str:
        """Add a node, and return its ID."""
        node_id = f"{next(self._numbers):056x}"
        self.nodes[node_id] = SimulatedNode(shape.model_copy(update={"node_id": node_id}), self._rng)
        self.changed_at_s = self._clock.now_s
        return node_id

    def remove(self, node_id: str) -> None:
        """Remove a node."""
        del self.nodes[node_id]
        self.changed_at_s = self._clock.now_s

    def allocate(self, bundle: Mapping[str, float], selector: Mapping[str, str]) -> Held | None:
        """Allocate a bundle on a random node that matches ``selector`` and has enough free, or return ``None``."""
        selects = matcher(selector)
        nodes = [node for node in self.nodes.values() if selects(node.capacity.ray_labels)]
        self._rng.shuffle(nodes)
        for node in nodes:
            held = node.allocate(ray_ticks(bundle))
            if held is not None:
                return held
        return None

    def release(self, held: Held) -> None:
        """Release an allocation, unless its node was removed."""
        if held.node_id in self.nodes:
            self.nodes[held.node_id].release(held)


class SimulatedActor:
    """The process of a trial.

    Attributes:
        held: The allocation of the actor, or ``None`` while the actor is pending.
        request: The resource request.
        config: The config of the trial.
        done: The number of finished steps.
        is_dead: Whether the process was killed.
    """

    def __init__(self, tracked: TrackedActor, request: Any, config: dict[str, Any]) -> None:
        self.tracked, self.request, self.config = tracked, request, config
        self.held: Held | None = None
        self.done = 0
        self.has_started = self.is_dead = self.is_stopping = False
        self.tasks: dict[int, tuple[str, TrackedActorTask]] = {}
        # Tune reads metrics such as the address of the trial's process. They may be empty.
        self.handle = SimpleNamespace(get_auto_filled_metrics=SimpleNamespace(remote=lambda **_: {}))


class Simulation(NamedTuple):
    """What the processes of a simulated run depend on.

    Attributes:
        cluster: The nodes.
        clock: The clock.
        step: A function that runs one step of a trial, and returns its duration in seconds and its result or error.
        before_event: A function that is called before each event.
        folder: The folder for checkpoints.
    """

    cluster: SimulatedCluster
    clock: Clock
    step: Callable[[SimulatedActor], tuple[float, dict[str, Any] | Exception]]
    before_event: Callable[[], None]
    folder: Path


class SimulatedActors(RayActorManager):  # type: ignore[misc]  # Ray has no types
    """The actors of a run, without processes.

    Attributes:
        simulation: What the actors depend on. A subclass for one run sets it.
        node_of: The node of each actor that Ray has granted, by the ID of the actor.
    """

    simulation: Simulation

    def __init__(self, resource_manager: Any) -> None:
        self._resource_manager = resource_manager  # no placement group is requested
        self._numbers = itertools.count()
        self._actors: dict[TrackedActor, SimulatedActor] = {}
        self._failed_actor_ids: set[int] = set()
        self.node_of: dict[str, str] = {}

    # The following methods are the interface of RayActorManager.

    @property
    def _live_actors_to_ray_actors_resources(self) -> dict[TrackedActor, tuple[Any, Any]]:
        return {actor.tracked: (actor.handle, actor.request) for actor in self.live}

    @property
    def num_live_actors(self) -> int:
        return len(self.live)

    @property
    def num_pending_actors(self) -> int:
        return len(self.pending)

    @property
    def num_total_actors(self) -> int:
        return len(self._actors)

    @property
    def num_actor_tasks(self) -> int:
        return sum(len(actor.tasks) for actor in self._actors.values())

    def get_live_actors_resources(self) -> dict[str, float]:
        return {}

    def is_actor_started(self, tracked_actor: TrackedActor) -> bool:
        return tracked_actor in self._actors and self._actors[tracked_actor].held is not None

    def get_actor_resources(self, tracked_actor: TrackedActor) -> None:
        return None

    def add_actor(
        self, cls: Any, kwargs: dict[str, Any], resource_request: Any, *, on_start: Any, on_stop: Any, on_error: Any
    ) -> TrackedActor:
        tracked = TrackedActor(next(self._numbers), on_start=on_start, on_stop=on_stop, on_error=on_error)
        self._actors[tracked] = SimulatedActor(tracked, resource_request, kwargs["config"])
        return tracked

    def remove_actor(self, tracked_actor: TrackedActor, kill: bool = False, stop_future: Any = None) -> bool:
        if tracked_actor.actor_id in self._failed_actor_ids:
            return False
        actor = self._actors[tracked_actor]
        if actor.held is None:
            del self._actors[tracked_actor]
            return False
        actor.is_stopping = True
        actor.tasks.clear()
        if not actor.has_started:
            tracked_actor._on_stop = tracked_actor._on_error = None  # as in RayActorManager
        ends_in_s = 0.0 if kill else 0.2
        self.simulation.clock.call_in(ends_in_s, lambda: self._stopped(actor))
        return True

    def schedule_actor_task(
        self,
        tracked_actor: TrackedActor,
        method_name: str,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        on_result: Callable[..., None] | None = None,
        on_error: Callable[[Any, Exception], None] | None = None,
        **options: Any,
    ) -> Any:
        actor = self._actors.get(tracked_actor)
        if actor is None or tracked_actor.actor_id in self._failed_actor_ids or method_name == "stop":
            return None
        takes_s, outcome = self._outcome(actor, method_name, args or ())
        number = next(self._numbers)
        actor.tasks[number] = method_name, TrackedActorTask(tracked_actor, on_result=on_result, on_error=on_error)
        self.simulation.clock.call_in(takes_s, lambda: self._task_done(actor, number, outcome))
        return number if options.get("_return_future") else None

    def clear_actor_task_futures(self, tracked_actor: TrackedActor) -> None:
        if tracked_actor in self._actors:
            self._actors[tracked_actor].tasks.clear()

    def next(self, timeout: float | None = None) -> bool:
        """Start the pending actors for which a node has enough resources, and run the next event.

        With a timeout of 0, the time does not advance.
        """
        for actor in self.pending:
            selectors = actor.request._kwargs.get("bundle_label_selector") or [{}]
            actor.held = self.simulation.cluster.allocate(actor.request.bundles[0], selectors[0])
            if actor.held is not None:
                self.node_of[str(actor.tracked.actor_id)] = actor.held.node_id
                self.simulation.clock.call_in(STARTS_IN_S, partial(self._started, actor))
        self.simulation.before_event()
        step_s = 0.0 if timeout == 0 else TICK_S
        self.simulation.clock.advance(step_s)
        return True

    def cleanup(self) -> None:
        for actor in list(self._actors.values()):
            self._drop(actor)

    # Events.

    @property
    def live(self) -> list[SimulatedActor]:
        """The actors with an allocation."""
        return [actor for actor in self._actors.values() if actor.held is not None]

    @property
    def pending(self) -> list[SimulatedActor]:
        """The actors without an allocation."""
        return [actor for actor in self._actors.values() if actor.held is None]

    def kill(self, actor: SimulatedActor) -> None:
        """Kill the process of an actor. Its current or next task fails."""
        actor.is_dead = True
        for number in list(actor.tasks):
            self.simulation.clock.call_in(0.5, partial(self._task_done, actor, number, None))

    def kill_node(self, node_id: str) -> None:
        """Remove a node, and kill its actors."""
        lost = [actor for actor in self.live if actor.held is not None and actor.held.node_id == node_id]
        self.simulation.cluster.remove(node_id)
        for actor in lost:
            self.kill(actor)

    def _started(self, actor: SimulatedActor) -> None:
        if actor.tracked not in self._actors or actor.is_stopping:
            return
        if actor.is_dead:
            self._actor_start_failed(actor.tracked, RayActorError(actor_id=str(actor.tracked.actor_id)))
        else:
            actor.has_started = True
            actor.tracked._on_start(actor.tracked)

    def _outcome(self, actor: SimulatedActor, method: str, args: tuple[Any, ...]) -> tuple[float, Any]:
        match method:
            case "train":
                return self.simulation.step(actor)
            case "save":
                path = self.simulation.folder / f"checkpoint-{next(self._numbers)}"
                path.mkdir()
                return 0.5, _TrainingResult(Checkpoint.from_directory(path), {"training_iteration": actor.done})
            case "restore":
                actor.done = args[0].metrics["training_iteration"]
                return 0.5, None
            case "reset":
                actor.config, actor.done = args[0], 0
                return 0.5, True
        raise NotImplementedError(method)

    def _task_done(self, actor: SimulatedActor, number: int, outcome: Any) -> None:
        if number not in actor.tasks:
            return
        method, task = actor.tasks.pop(number)
        if actor.is_dead:
            self._actor_task_failed(task, RayActorError(actor_id=str(actor.tracked.actor_id)))
        elif isinstance(outcome, Exception):
            raised = RayTaskError(method, str(outcome), outcome, proctitle="trial", pid=1, ip="127.0.0.1")
            self._actor_task_failed(task, raised)
        else:
            if method == "train":
                actor.done = outcome["training_iteration"]
            self._actor_task_resolved(task, outcome)

    def _cleanup_actor(self, tracked_actor: TrackedActor) -> None:
        self._drop(self._actors[tracked_actor])

    def _stopped(self, actor: SimulatedActor) -> None:
        if actor.tracked in self._actors:
            self._drop(actor)
            if actor.tracked._on_stop:
                actor.tracked._on_stop(actor.tracked)

    def _drop(self, actor: SimulatedActor) -> None:
        del self._actors[actor.tracked]
        if actor.held is not None:
            self.simulation.cluster.release(actor.held)
