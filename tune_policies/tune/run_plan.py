"""Keeps the plan of a run up to date as nodes come and go, and says where its slots are.

Tune's loop must not wait for Ray, so the nodes are read in a thread of its own, with a deadline.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

import ray
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.layout import Placement, place_slots
from tune_policies.placement.trial_slot import SLOT_ATTRIBUTE
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.free_capacity import FreeCapacityPolicy, free_part
from tune_policies.policies.policy import ResourcePolicy, with_inner
from tune_policies.probe.probe_cluster import plan_on_cluster, probe_cluster
from tune_policies.ray_compat.gcs import dead_actors, node_of_actor, read_cluster_state
from tune_policies.ray_compat.tune_controller import actor_of
from tune_policies.ray_compat.tune_request import bundles_of, reservation_of, with_selectors
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError, ProbeError
from tune_policies.values.resources import Resources
from tune_policies.values.units import is_number
from tune_policies.values.value import Value, counted

from .own_slots import OwnSlot, slot_of_bundles
from .slot_assignment import SlotTypes

_logger = logging.getLogger(__name__)

_READ_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 5.0
_CONNECT_TIMEOUT_S: Final = 2.0


T = TypeVar("T")


class BackgroundTask(Generic[T]):
    """Runs one piece of work at a time, in a thread that does not keep the program alive. A copy starts empty."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._answers: SimpleQueue[T | Exception] = SimpleQueue()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()  # Tune saves its schedulers; a thread cannot be

    def start(self, work: Callable[[], T]) -> bool:
        """Begin ``work`` unless other work still runs; return whether it began."""
        if not self.wait(0):
            return False

        def run() -> None:
            try:
                self._answers.put(work())
            except Exception as error:  # noqa: BLE001  # it is handed over where the answer is taken
                self._answers.put(error)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        return True

    def take(self) -> T | Exception | None:
        """Return the next answer, or the error instead of it; ``None``: there is none."""
        try:
            return self._answers.get_nowait()
        except Empty:
            return None

    def wait(self, timeout_s: float) -> bool:
        """Wait for the work; return whether it ended in time."""
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()


class NodeWatch:
    """Tells when nodes have come or gone, or have other totals than before.

    Args:
        interval_s: How often the nodes are read, in seconds.
        probes: Whether each change starts a full probe, which also reads the devices on the nodes. Otherwise the watch
            returns what Ray's GCS says.
    """

    def __init__(self, interval_s: float, *, probes: bool) -> None:
        self._interval_s = interval_s
        self._probes = probes
        self._known: Hashable = None
        self._next_at_s = 0.0
        self._reading: BackgroundTask[tuple[Hashable, ClusterCapacity] | None] = BackgroundTask()

    def read_now(self) -> ClusterCapacity | None:
        """Return the nodes now, against which later changes are told; ``None``: they could not be read in time."""
        try:
            self._known, capacity = _read_nodes()
        except ProbeError as error:
            _logger.warning("the nodes of the cluster could not be read: %s", error)
            return None
        return capacity

    def changed(self) -> ClusterCapacity | None:
        """Return the cluster once for each change of its nodes; ``None``: none since the last call. Does not wait."""
        match self._reading.take():
            case (known, capacity):
                self._known = known
                return capacity
            case Exception() as error:  # the next reading may succeed
                _logger.warning("the nodes of the cluster could not be read, and will be again: %s", error)
        now = time.monotonic()
        if now >= self._next_at_s and self._reading.start(partial(self._read, self._known)):
            self._next_at_s = now + self._interval_s
        return None

    def _read(self, known: Hashable) -> tuple[Hashable, ClusterCapacity] | None:
        # A probe runs tasks on the nodes and takes far longer than the GCS, so only a change starts one.
        signature, capacity = _read_nodes()
        if signature == known:
            return None
        return signature, probe_cluster() if self._probes else capacity


def _read_nodes() -> tuple[Hashable, ClusterCapacity]:
    """Return the nodes as Ray's GCS knows them, and what differs after any change of theirs."""
    capacity = ClusterCapacity(nodes=read_cluster_state(_READ_TIMEOUT_S).nodes)
    signature = frozenset(
        (node.node_id, tuple(sorted(node.resources.ticks.items())), tuple(sorted(node.labels.items())))
        for node in capacity.nodes
    )
    return signature, capacity


def lost_node(error: object) -> str | None:
    """Return the identifier of the dead node with which a trial, or one of its Train workers, was lost.

    ``None``: their nodes live, or are not known. Ray takes seconds to count a killed node as dead
    (``health_check_period_ms`` and its like), while the node's trials fail at once. So where Ray still counts the node
    as alive, this calls its raylet: a dead one does not answer.
    """
    actor_ids = [*dead_actors(error)]
    if not actor_ids:
        return None
    # Without an answer the failure counts, as without this scheduler.
    return _ask(lambda: _dead_node_of(actor_ids), "whether a trial was lost with its node")


def nodes_of(trials: Iterable[Trial]) -> dict[Trial, str]:
    """Return the identifiers of the nodes on which trials run; those of which Ray does not tell are left out."""
    actors = {trial: actor_id for trial in trials if (actor_id := actor_of(trial)) is not None}
    if not actors:
        return {}
    found = _ask(lambda: {trial: node_of_actor(actor_id) for trial, actor_id in actors.items()}, "where trials run")
    return {trial: node_id for trial, node_id in (found or {}).items() if node_id is not None}


def _ask(read: Callable[[], T], what: str) -> T | None:
    """Return what ``read`` returns, which asks Ray; ``None``: it failed, or took too long."""
    reading: BackgroundTask[T] = BackgroundTask()
    reading.start(read)
    answer: T | Exception | None = TimeoutError(f"no answer within {_ANSWER_TIMEOUT_S:g} s")
    if reading.wait(_ANSWER_TIMEOUT_S):
        answer = reading.take()
    if isinstance(answer, Exception):
        _logger.warning("%s could not be told: %s", what, answer)
        return None
    return answer


def _dead_node_of(actor_ids: Iterable[str]) -> str | None:
    node_ids = {node_of_actor(actor_id) for actor_id in actor_ids}
    return next((str(node["NodeID"]) for node in ray.nodes() if node["NodeID"] in node_ids and _is_dead(node)), None)


def _is_dead(node: Mapping[str, Any]) -> bool:
    if node["Alive"]:
        address = node["NodeManagerAddress"], node["NodeManagerPort"]
        with suppress(OSError), socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S):
            return False  # its raylet answers
    return True


_WITHOUT_DEVICE: Final = "without a device"
"""The key of the slot of trials that cannot use their device."""

_AVOID_LOST_NODE_S: Final = 60.0
"""How long a node that lost a trial gets no other. By then Ray counts the node as dead, or it answers again."""


class PlanChange(Value):
    """A plan that replaced another while trials ran.

    Attributes:
        at_s: When, in seconds since 1970.
        plan: The plan from then on; where no plan is possible, the last one that was.
        why: What changed, in a sentence.
    """

    at_s: float
    plan: TrialPlan
    why: str


class RunPlan:
    """The plan of a run, made again as nodes join, leave or change if a policy makes it; a given plan stays.

    Creating it plans on the program's cluster, and prints the plan. The nodes are read every ``interval_s`` seconds.
    There may be no feasible plan for ``wait_for_nodes_s`` seconds.

    Raises:
        InfeasibleRequestError: Not even one trial fits.
        InvalidResourcesError: The plan depends on a measurement with other versions than are installed.
        ProbeError: The cluster cannot be read.
    """

    def __init__(self, policy: ResourcePolicy | TrialPlan, *, interval_s: float, wait_for_nodes_s: float) -> None:
        self._policy = policy if isinstance(policy, ResourcePolicy) else None
        self.plan = _check_versions(plan_on_cluster(policy) if isinstance(policy, ResourcePolicy) else policy)
        self.slot_types = SlotTypes(self.plan.slots)
        self.changes: list[PlanChange] = []
        self.factories: dict[Placement, PlacementGroupFactory] = {}
        self._placements: tuple[Placement, ...] | None = None
        self._watch = NodeWatch(interval_s, probes=self._policy is not None)
        self._capacity: ClusterCapacity | None = None
        self._probed: ClusterCapacity | None = None
        self._own_slots: dict[Hashable, OwnSlot] = {}
        self.have_nodes_changed = False
        policies = [] if self._policy is None else with_inner([self._policy])
        self._is_on_free = any(isinstance(each, FreeCapacityPolicy) for each in policies)
        self._in_use: dict[str, Resources | None] = {}
        self._lost_nodes: dict[str, float] = {}
        self._wait_for_nodes_s = wait_for_nodes_s
        self._infeasible: InfeasibleRequestError | None = None
        self._infeasible_since_s = 0.0

    @property
    def is_feasible(self) -> bool:
        """Whether there is a plan for the nodes that are left."""
        return self._infeasible is None

    @property
    def placements(self) -> list[Placement]:
        """Where the slots are, the better types first; without the nodes that have just lost a trial."""
        since_s = time.monotonic() - _AVOID_LOST_NODE_S
        lost = {node_id for node_id, at_s in self._lost_nodes.items() if at_s > since_s}
        return [placement for placement in self._placements or () if not lost & placement.nodes]

    @property
    def timeout_error(self) -> InfeasibleRequestError | None:
        """The error with which the run ends: no plan has been possible for too long; ``None``: the run goes on."""
        waited_s = time.monotonic() - self._infeasible_since_s
        return self._infeasible if waited_s > self._wait_for_nodes_s else None

    def avoid_node(self, node_id: str) -> None:
        """Give no trial to a node that just died: Ray takes seconds to count it as dead."""
        self._lost_nodes[node_id] = time.monotonic()

    def replan(self, plan: TrialPlan, why: str) -> None:
        """Use ``plan`` from now on."""
        if plan != self.plan:
            _logger.info("%s: %s", why, plan.explain())
            self.plan = plan
            self.slot_types = SlotTypes(plan.slots)
            self.changes.append(PlanChange(at_s=time.time(), plan=plan, why=why))
        self._infeasible = None
        self._placements = None

    def slot_by_config(self, config: Mapping[str, Any]) -> "OwnSlot":
        """Return the slot of a trial whose config determines it.

        Raises:
            InfeasibleRequestError: The config is known to need more than any slot has.
        """
        slot = self.plan.slot_for(config)
        key = slot.to_json()
        if key not in self._own_slots:
            self._own_slots[key] = OwnSlot(slot, slot.placement_group_factory())
            if self.plan.by_config is not None and (why := self.plan.by_config.why_unknown(config)) is not None:
                _logger.warning("%s: the trial gets %s", why, slot)
        return self._own_slots[key]

    def slot_of_bundles(self, asked: PlacementGroupFactory) -> "OwnSlot":
        """Return the slot of a trial that reserves several bundles of its own.

        Raises:
            InvalidResourcesError: The policy contradicts what the trial asks for.
            InfeasibleRequestError: The cluster does not have room for one such trial.
        """
        if asked not in self._own_slots:
            try:
                slot = slot_of_bundles(self.plan, reservation_of(asked), self._read_devices())
            except InvalidResourcesError as error:
                if not self.have_nodes_changed:
                    raise
                raise InfeasibleRequestError(
                    asked="the devices of its bundles",
                    offered="the nodes that are left have none",
                    short_of="GPU",
                    suggestion="Add nodes, and resume the run.",
                ) from error
            bundles = [slot.with_type(bundle) for bundle in bundles_of(asked)]
            factory = with_selectors(asked, bundles, slot.label_selector)
            setattr(factory, SLOT_ATTRIBUTE, slot.to_json())
            self._own_slots[asked] = OwnSlot(slot, factory)
        return self._own_slots[asked]

    def slot_without_device(self) -> OwnSlot:
        """Return the slot of a trial that cannot use its device: that of the first choice of the policy without one.

        Raises:
            InfeasibleRequestError: No such choice fits.
        """
        if _WITHOUT_DEVICE not in self._own_slots:
            capacity = self._read_devices()
            errors = []
            for choice in self._policy.choices if self._policy else ():
                try:
                    slot = choice.plan(capacity).common_slot
                except InfeasibleRequestError as error:
                    errors.append(error)
                    continue
                if not slot.has_device:
                    self._own_slots[_WITHOUT_DEVICE] = OwnSlot(slot, slot.placement_group_factory())
                    return self._own_slots[_WITHOUT_DEVICE]
            raise InfeasibleRequestError(
                "a slot without a device", "no choice of the policy has one", "CPU", "Add a choice: | CpuPolicy()."
            ) from (errors[-1] if errors else None)
        return self._own_slots[_WITHOUT_DEVICE]

    def _read_devices(self) -> ClusterCapacity:
        if self._probed is None:
            self._probed = self._used_as_at_start(probe_cluster())
        return self._probed

    def _used_as_at_start(self, capacity: ClusterCapacity) -> ClusterCapacity:
        """Return the capacity with what others used when the run began, because the run's own trials use more now."""
        return capacity.with_nodes(
            node.model_copy(update={"in_use": self._in_use.get(node.node_id)}) for node in capacity.nodes
        )

    def follow_nodes(self) -> bool:
        """Bring the plan up to date with the nodes; return whether placements were made again. Does not wait."""
        if self._policy is not None or len(self.plan.slots) > 1:
            if self._capacity is None:
                self._capacity = self._watch.read_now() or ClusterCapacity()
                self._in_use = {node.node_id: node.in_use for node in self._capacity.nodes}
            elif (capacity := self._watch.changed()) is not None:
                self._plan_anew(capacity)
        if self._placements is not None:
            return False
        self._own_slots.clear()
        self._placements = (
            () if self._infeasible is not None else self._place_slots(self._capacity or ClusterCapacity())
        )
        self.factories = {
            each: self.plan.slots[each.slot_type].placement_group_factory(
                node_id=each.node_id, worker_nodes=each.worker_nodes
            )
            for each in self._placements
        }
        return True

    def _plan_anew(self, capacity: ClusterCapacity) -> None:
        why = _what_changed(self._capacity, capacity)
        capacity = self._used_as_at_start(capacity)
        self._capacity = capacity
        self.have_nodes_changed = True
        if self._policy is not None:
            self._probed = capacity
        self._placements = None
        if self._policy is None:
            self._infeasible = None
            return
        try:
            self.replan(self._policy.plan(capacity), why)
        except InfeasibleRequestError as error:
            self.wait_for_nodes(error, why)
        except Exception:  # a policy is anybody's code, and must not end trials that have run for hours
            _logger.exception("%s: the plan stays as it was, as the policy failed", why)

    def wait_for_nodes(self, error: InfeasibleRequestError, why: str) -> None:
        """Start no trial until nodes come, and end the run with ``error`` after ``wait_for_nodes_s`` seconds."""
        if self._infeasible is None:
            self._infeasible_since_s = time.monotonic()
            text = f"{why}: no plan is possible, and nothing starts until nodes come: {error}"
            _logger.warning("%s", text)
            self.changes.append(PlanChange(at_s=time.time(), plan=self.plan, why=text))
        self._infeasible = error

    def _place_slots(self, capacity: ClusterCapacity) -> tuple[Placement, ...]:
        slots = self.plan.slots
        if self._is_on_free:
            capacity = free_part(capacity)
        if len(slots) == 1 or len(capacity.nodes) <= 1:
            return tuple(_anywhere(slot_type, slot.max_concurrent_trials) for slot_type, slot in enumerate(slots))
        layout = place_slots(slots, capacity)
        to_come = [slot.max_concurrent_trials - layout.count(slot_type) for slot_type, slot in enumerate(slots)]
        # The autoscaler adds nodes for what is requested.
        anywhere = [
            _anywhere(slot_type, count) for slot_type, count in enumerate(to_come) if count and self.plan.nodes_to_add
        ]
        placements = tuple(sorted((*layout.places, *anywhere), key=lambda placement: placement.slot_type))
        if not placements:
            error = InfeasibleRequestError(
                asked=" or ".join(map(str, slots)),
                offered="no node that is left has room for it",
                short_of=self.plan.limited_by,
                suggestion="Add nodes, or give PolicyScheduler a policy instead of a plan, and resume the run.",
            )
            self.wait_for_nodes(error, "nodes went")
        return placements


def _anywhere(slot_type: int, count: int) -> Placement:
    return Placement(slot_type=slot_type, node_id=None, count=count)


def _what_changed(before: ClusterCapacity | None, after: ClusterCapacity) -> str:
    known = {node.node_id for node in before.nodes} if before else set()
    now = {node.node_id for node in after.nodes}
    parts = [
        f"{counted(len(ids), 'node')} {verb}" for ids, verb in ((now - known, "came"), (known - now, "went")) if ids
    ]
    return " and ".join(parts) or "what a node has changed"


def _check_versions(plan: TrialPlan) -> TrialPlan:
    if plan.by_config is not None:
        check_versions(plan.by_config.holds_for)
    return plan


def check_versions(measured_with: Mapping[str, str]) -> None:
    """Raise unless each installed package has the version with which was measured.

    A package that is not installed where the program runs, such as on a laptop, is not compared.

    Args:
        measured_with: Versions by package.

    Raises:
        InvalidResourcesError: Some have another version.
    """
    others = [
        f"{name} {measured} ({found} is installed)"
        for name, measured in sorted(measured_with.items())
        if (found := _installed(name)) not in (None, measured)
    ]
    if others:
        raise InvalidResourcesError(
            f"the plan goes by a decision that was measured with {', '.join(others)}: measure again with what is "
            "installed, or give BenchmarkedPolicy accept_other_versions=True"
        )


def _installed(name: str) -> str | None:
    for build in (name, f"{name}-cpu"):  # as TensorFlow and XGBoost call theirs without CUDA
        with suppress(PackageNotFoundError):
            return version(build)
    return None


def check_seconds(seconds: float, name: str) -> float:
    """Return ``seconds`` if it is a number above 0, else raise ``InvalidResourcesError``."""
    if not is_number(seconds) or not seconds > 0:
        raise InvalidResourcesError(f"{name} must be above 0 seconds, got {seconds!r}")
    return float(seconds)
