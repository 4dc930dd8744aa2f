"""Defines the guarantees ("promises") that every policy must keep, and the function that checks them.

Most promises concern one cluster, and the policy's plan or error for it. The check of a promise is a function
that returns a description of the violation, or an empty string.
"""

import inspect
import json
import pickle
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import chain
from typing import Final

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.placement.layout import workers_on_nodes
from tune_policies.placement.trial_slot import TrialSlot
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.policy import ResourcePolicy, build_policy, with_inner
from tune_policies.testing.clusters import draw_cluster, simpler_clusters, twice
from tune_policies.testing.placing import TICKS, NodeState, count_workers, place_trials
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.wording import counted, shorten

_MOST_STEPS: Final = 1000
"""The maximum number of simpler clusters that are tried to simplify a counterexample."""

_MOST_PLACED: Final = 500
"""The maximum number of trials that are placed one by one. The trials of a larger plan are not placed."""


class Promise(Enum):
    """A promise that every policy must keep. The value of a member describes the promise."""

    IS_A_VALUE = "a policy is frozen, has a hash, and is equal after conversion to and from JSON, plain data and pickle"
    RAISES_INFEASIBLE_ALONE = "plan() returns a TrialPlan, or raises InfeasibleRequestError and nothing else"
    IS_PURE = "plan() returns the same result each time, changes nothing, and does no I/O"
    IGNORES_ORDER = "the order of the nodes does not matter"
    PLAN_IS_A_VALUE = "a plan is equal after conversion to and from JSON and pickle, and states what limits it"
    FITS = "all trials of a plan can run at once, and each fits on the individual devices of its nodes"
    IS_FULL = "no further trial fits, unless the plan sets fewer_than_fit"
    GROWS = "one elastic trial can grow to max_workers while all other trials have their minimum number of workers"
    SHARES_ARE_EQUAL = (
        "the devices of a node have room for all fractions that Ray admits, although Ray compares only sums"
    )
    GPU_MEMORY_FITS = "the memory limits of the workers on a GPU add up to no more than the memory of the GPU"
    ADDS_KNOWN_NODES = "a plan adds no more nodes than the autoscaler may add"
    MORE_NODES_ARE_ENOUGH = (
        "if each node is duplicated, the policy still has a plan, and no fewer trials run if all slots are equal. "
        "Policies with several choices, and plans that leave resources free, are exempt"
    )
    PLANS_SOMEWHERE = "the policy has a plan for at least one of the clusters"


class PolicyCheckError(AssertionError):
    """A policy breaks a promise.

    Attributes:
        promise: The broken promise.
        found: A description of the violation.
        policy: The policy.
        capacity: The smallest cluster found on which the policy breaks the promise, or ``None`` if the promise is not
            about a cluster.
    """

    def __init__(
        self, promise: Promise, found: str, policy: ResourcePolicy, capacity: ClusterCapacity | None = None
    ) -> None:
        super().__init__(promise, found, policy, capacity)
        self.promise = promise
        self.found = found
        self.policy = policy
        self.capacity = capacity

    def __str__(self) -> str:
        lines = [f"{type(self.policy).__name__} breaks a promise: {self.promise.value}", self.found]
        lines.append(f"policy: {self.policy!r}")
        if self.capacity is not None:
            data = self.capacity.model_dump(exclude_defaults=True)
            lines.append(f"smallest cluster found: ClusterCapacity.from_dict({data})")
        return "\n".join(lines)


def check_policy(
    policy: ResourcePolicy, *, num_clusters: int = 200, seed: int = 0, clusters: Iterable[ClusterCapacity] = ()
) -> None:
    """Check that a policy keeps the promises of all policies, on many small clusters.

    The clusters have nodes without GPUs, nodes with GPUs of one or several types and of known or unknown memory, nodes
    with other accelerators, and TPU slices. Some clusters have an autoscaler, are in use, or are empty. The promises
    are the members of :class:`Promise`. To check whether the trials of a plan fit, the function places them one by one,
    without the arithmetic of the planner.

    200 clusters take from 0.2 to 3 seconds of CPU time for the policies of this package (AMD EPYC, Python 3.11).

    Args:
        policy: The policy. Check its variants separately, for instance with Train workers.
        num_clusters: The number of random clusters.
        seed: The seed of the random clusters. The same seed produces the same clusters.
        clusters: Additional clusters, for a policy that needs special clusters, such as clusters with your own labels.

    Raises:
        PolicyCheckError: The policy breaks a promise. The error contains the promise, and the smallest cluster found on
            which the policy breaks it. It is an ``AssertionError``, so test frameworks report it as a failure.
    """
    found = _is_no_value(policy)
    if found:
        raise PolicyCheckError(Promise.IS_A_VALUE, found, policy)
    rng = random.Random(seed)  # noqa: S311 - for tests
    has_plan = False
    for capacity in chain(clusters, (draw_cluster(rng) for _ in range(num_clusters))):
        case = _Case(policy, capacity)
        for promise, check in _CHECKS.items():
            if check(case):
                smallest, found = _shrink(promise, case)
                raise PolicyCheckError(promise, found, policy, smallest)
        has_plan = has_plan or isinstance(case.answer, TrialPlan)
    if not has_plan:
        found = (
            f"the policy has no plan for any of {counted(num_clusters, 'random cluster')}. Pass clusters=[…] for which "
            "it has a plan"
        )
        raise PolicyCheckError(Promise.PLANS_SOMEWHERE, found, policy)


def _shrink(promise: Promise, case: "_Case") -> tuple[ClusterCapacity, str]:
    """Return the smallest cluster found on which a promise is broken, and a description of the violation."""
    capacity, found = case.capacity, _CHECKS[promise](case)
    waiting = simpler_clusters(capacity)
    for _ in range(_MOST_STEPS):
        simpler = next(waiting, None)
        if simpler is None:
            break
        still = _CHECKS[promise](_Case(case.policy, simpler))
        if still:
            capacity, found = simpler, still
            waiting = simpler_clusters(capacity)
    return capacity, found


@dataclass(frozen=True)
class _Case:
    """A policy and a cluster, with the policy's plan or error for it."""

    policy: ResourcePolicy
    capacity: ClusterCapacity

    @cached_property
    def first_answer(self) -> tuple[TrialPlan | Exception, bool]:
        """The plan or the raised error, and whether planning left the capacity unchanged."""
        before = self.capacity.to_json()
        answer = _answer(self.policy, self.capacity)
        return answer, self.capacity.to_json() == before

    @property
    def answer(self) -> TrialPlan | Exception:
        """The plan, or the error that was raised."""
        return self.first_answer[0]

    @cached_property
    def plan(self) -> TrialPlan | None:
        """The plan, or ``None`` if an error was raised."""
        if isinstance(self.answer, TrialPlan):
            return self.answer
        return None

    @cached_property
    def grown(self) -> ClusterCapacity:
        """The cluster with the nodes that the plan adds."""
        if self.plan is None:
            return self.capacity
        return self.capacity.with_nodes_added(self.plan.nodes_to_add)

    @property
    def num_trials(self) -> int:
        """The number of trials that run at once, or 0 if there are too many to place one by one."""
        if self.plan is None:
            return 0
        planned = sum(slot.max_concurrent_trials for slot in self.plan.slots)
        return planned if planned <= _MOST_PLACED else 0


def _answer(policy: ResourcePolicy, capacity: ClusterCapacity) -> TrialPlan | Exception:
    try:
        return policy.plan(capacity)
    except Exception as error:  # noqa: BLE001 - any error is a result of the test
        return error


def _same(one: TrialPlan | Exception, other: TrialPlan | Exception) -> bool:
    if isinstance(one, TrialPlan) or isinstance(other, TrialPlan):
        return one == other
    return type(one) is type(other) and str(one) == str(other)


def _shown(answer: TrialPlan | Exception) -> str:
    if isinstance(answer, TrialPlan):
        return answer.explain()
    return f"{type(answer).__name__}: {answer}"


def _is_no_value(policy: ResourcePolicy) -> str:
    data = json.loads(policy.to_json())
    if data.get("kind") != type(policy).__name__:
        return f"the kind of the policy is {data.get('kind')!r}, not the name of its class"
    others: Mapping[str, Callable[[], ResourcePolicy]] = {
        "from_json(to_json())": lambda: type(policy).from_json(policy.to_json()),
        "build_policy(json.loads(to_json()))": lambda: build_policy(data),
        "build_policy(model_dump())": lambda: build_policy(policy.model_dump()),
        "pickle": lambda: pickle.loads(pickle.dumps(policy)),  # noqa: S301 - just written
    }
    for name, make in others.items():
        try:
            other = make()
        except Exception as error:  # noqa: BLE001 - any error is a result of the test
            return f"{name} raises {type(error).__name__}: {error}"
        if type(other) is not type(policy) or other != policy:
            return f"{name} returns {shorten(other)}"
        if other.to_json() != policy.to_json():
            return f"{name} returns an equal policy whose JSON differs: {other.to_json()}"
    try:
        hash(policy)
    except TypeError as error:
        return f"it has no hash, because {error}. Use tuples instead of lists and sets"
    for name in type(policy).model_fields:
        try:
            setattr(policy, name, getattr(policy, name))
        except ValueError:
            continue
        return f"its field {name} can be changed"
    return ""


def _raises_another_error(case: _Case) -> str:
    answer = case.answer
    if isinstance(answer, TrialPlan):
        if not case.capacity.nodes and not answer.nodes_to_add:
            return "it returns a plan for a cluster without nodes"
        return ""
    if type(answer) is not InfeasibleRequestError:
        return f"it raises {type(answer).__name__}: {answer}"
    if not (answer.asked and answer.offered and answer.short_of and answer.suggestion):
        return f"its error lacks the request, the available resources, or a suggestion: {answer}"
    again = pickle.loads(pickle.dumps(answer))  # noqa: S301 - just written
    if not _same(again, answer):
        return f"its error changes when it is pickled and unpickled: {again}"
    return ""


def _is_impure(case: _Case) -> str:
    first, is_unchanged = case.first_answer
    if not is_unchanged:
        return "it changes the capacity"
    with _io_noted() as noted:
        second = _answer(case.policy, case.capacity)
    if not _same(first, second):
        return f"two calls return different answers:\n{_shown(first)}\n{_shown(second)}"
    if noted:
        return f"it does I/O: {noted[0]}"
    return ""


def _depends_on_order(case: _Case) -> str:
    other = _answer(case.policy, case.capacity.with_nodes(reversed(case.capacity.nodes)))
    if _same(case.answer, other):
        return ""
    return f"the answer changes if the order of the nodes is reversed:\n{_shown(case.answer)}\n{_shown(other)}"


def _plan_is_no_value(case: _Case) -> str:
    plan = case.plan
    if plan is None:
        return ""
    if not (plan.limited_by and plan.explain(case.capacity)):
        return "the plan does not state what limits the number of trials"
    if TrialPlan.from_json(plan.to_json()) != plan:
        return f"the plan changes when it is converted to JSON and back: {plan.to_json()}"
    if pickle.loads(pickle.dumps(plan)) != plan:  # noqa: S301 - just written
        return "the plan changes when it is pickled and unpickled"
    return ""


def _does_not_fit(case: _Case) -> str:
    if case.plan is None:
        return ""
    plans = [case.plan]
    if case.plan.by_config:
        # All trials of a run may have configs with the same slot.
        alone = [{"slots": (slot,), "by_config": None} for slot in case.plan.by_config.slots]
        plans += (case.plan.model_copy(update=fields) for fields in alone)
    for plan in plans:
        planned = sum(slot.max_concurrent_trials for slot in plan.slots)
        if planned > _MOST_PLACED:
            continue
        placed = place_trials(case.grown, plan, planned)
        if placed < planned:
            return f"only {placed} of {counted(planned, 'trial')} fit:\n{plan.explain()}"
    return ""


def _is_not_full(case: _Case) -> str:
    plan = case.plan
    # With Train workers, whether further trials fit depends on the order of placement.
    if plan is None or plan.fewer_than_fit or not case.num_trials or any(slot.num_workers for slot in plan.slots):
        return ""
    if any(_shares(slot) != _shares(plan.slots[0]) for slot in plan.slots):
        return ""  # plans never mix the fractions of several slot types on one device, but `place_trials` does
    more = case.num_trials + 1
    if place_trials(case.grown, plan, more) == more:
        return f"one more trial fits than planned:\n{plan.explain()}"
    return ""


def _shares(slot: TrialSlot) -> Mapping[str, int]:
    devices = _device_ticks(slot)
    return {name: min(TICKS, ticks) for name, ticks in devices.items()}


def _device_ticks(slot: TrialSlot) -> Mapping[str, int]:
    worker = slot.worker
    amounts = {"GPU": worker.gpus, "NPU": worker.custom.get("NPU", 0)}
    return {name: round(amount * TICKS) for name, amount in amounts.items() if amount}


def _cannot_grow(case: _Case) -> str:
    # The autoscaler adds nodes when a trial grows, and the plan does not include all of them.
    if case.plan is None or len(case.plan.slots) > 1 or case.capacity.node_types:
        return ""
    slot = case.plan.slots[0]
    if slot.max_workers is None or not case.num_trials:
        return ""
    planned = (slot.max_concurrent_trials - 1) * slot.num_workers + slot.max_workers
    fit = count_workers(case.capacity, slot)
    if fit < planned:
        return f"only {fit} of {counted(planned, 'worker')} fit: {slot}"
    return ""


def _slots_on_nodes(case: _Case) -> Iterator[tuple[TrialSlot, NodeCapacity]]:
    """Yield pairs of a slot and a node on which its workers may run. With several slot types, it is a planned node."""
    slots = case.plan.slots if case.plan else ()
    nodes_of: dict[int, set[str]] = defaultdict(set)
    if len(slots) > 1:
        for node, workers in workers_on_nodes(slots, case.grown):
            for slot_type, count in enumerate(workers):
                if count:
                    nodes_of[slot_type].add(node.node_id)
    for slot_type, slot in enumerate(slots):
        own = nodes_of[slot_type]
        for node in case.grown.nodes:
            state = NodeState(node)
            is_own = not own or node.node_id in own
            if is_own and state.is_selected(slot) and state.take(slot.worker, slot.accelerator_type):
                yield slot, node


def _shares_differ(case: _Case) -> str:
    for slot, node in _slots_on_nodes(case):
        has = {"GPU": node.resources.gpus, **node.resources.custom}
        for name, share in _device_ticks(slot).items():
            devices = round(has.get(name, 0) * TICKS)
            by_sum, one_by_one = devices // share, TICKS // share * (devices // TICKS) + devices % TICKS // share
            if case.plan and case.plan.fewer_than_fit:
                by_sum = min(by_sum, slot.max_concurrent_trials * max(1, slot.num_workers))
            if share < TICKS and by_sum > one_by_one:
                return (
                    f"on a node with {has[name]:g} {name}, {one_by_one} fractions of {share / TICKS:g} fit on the "
                    f"devices, but Ray admits {by_sum}"
                )
    return ""


def _exceeds_gpu_memory(case: _Case) -> str:
    for slot, node in _slots_on_nodes(case):
        share, memory_bytes = _shares(slot).get("GPU"), node.smallest_gpu_memory_bytes
        if slot.gpu_memory_bytes is None or share is None:
            continue
        workers = TICKS // share
        if memory_bytes is None or workers * slot.gpu_memory_bytes > memory_bytes:
            has = "unknown memory" if memory_bytes is None else f"{memory_bytes:,} bytes"
            needs = f"{counted(workers, 'worker')} of {slot.gpu_memory_bytes:,} bytes"
            return f"{needs} on a GPU of {has}: {slot}"
    return ""


def _adds_other_nodes(case: _Case) -> str:
    wanted = case.plan.nodes_to_add if case.plan else {}
    may_come = {node_type.name: node_type.max_nodes_to_add for node_type in case.capacity.node_types or ()}
    limit = case.capacity.max_nodes_to_add
    too_many = any(number > may_come.get(name, 0) for name, number in wanted.items())
    if too_many or (limit is not None and sum(wanted.values()) > limit):
        total = "" if limit is None else f", and at most {limit} in total"
        return f"the plan adds the nodes {wanted}, but the autoscaler may add only {may_come}{total}"
    return ""


def _needs_fewer_nodes(case: _Case) -> str:
    plan = case.plan
    has_choices = any(len(policy.choices) > 1 for policy in with_inner([case.policy]))
    if plan is None or has_choices or plan.fewer_than_fit or not case.capacity.nodes:
        return ""
    more = _answer(case.policy, twice(case.capacity))
    if not isinstance(more, TrialPlan):
        return f"the policy has no plan if each node is duplicated: {more}"
    is_alike = len({_size(slot) for slot in (*plan.slots, *more.slots)}) == 1
    if is_alike and more.max_concurrent_trials < plan.max_concurrent_trials:
        before, after = plan.max_concurrent_trials, more.max_concurrent_trials
        return f"{before} trials fit, but only {after} if each node is duplicated"
    return ""


def _size(slot: TrialSlot) -> tuple[object, ...]:
    return str(slot.trial), str(slot.per_worker), slot.num_workers


_CHECKS: Final[Mapping[Promise, Callable[[_Case], str]]] = {
    Promise.RAISES_INFEASIBLE_ALONE: _raises_another_error,
    Promise.IS_PURE: _is_impure,
    Promise.IGNORES_ORDER: _depends_on_order,
    Promise.FITS: _does_not_fit,
    Promise.PLAN_IS_A_VALUE: _plan_is_no_value,
    Promise.IS_FULL: _is_not_full,
    Promise.GROWS: _cannot_grow,
    Promise.SHARES_ARE_EQUAL: _shares_differ,
    Promise.GPU_MEMORY_FITS: _exceeds_gpu_memory,
    Promise.ADDS_KNOWN_NODES: _adds_other_nodes,
    Promise.MORE_NODES_ARE_ENOUGH: _needs_fewer_nodes,
}
"""The checks of the promises about one cluster, in the order of execution."""

_IO_EVENTS: Final = ("open", "os.", "socket.", "subprocess.", "shutil.", "urllib.")
"""The prefixes of Python's audit events for I/O."""

_noted: ContextVar[list[str] | None] = ContextVar("_noted", default=None)
"""The list to which the audit hook appends I/O events during a check."""


@cache
def _install_hook() -> None:
    # Python cannot remove an audit hook. Outside of a check, this hook does nothing.
    sys.addaudithook(_note_io)


def _note_io(event: str, arguments: tuple[object, ...]) -> None:
    noted = _noted.get()
    if noted is None or not event.startswith(_IO_EVENTS):
        return
    frame = inspect.currentframe()
    while frame is not None:
        if "importlib" in frame.f_code.co_filename:
            return  # reading a module for a lazy import is not counted as I/O of the policy
        frame = frame.f_back
    noted.append(f"{event}{arguments}")


@contextmanager
def _io_noted() -> Iterator[list[str]]:
    """Record the I/O of this thread: files, folders, sockets and processes."""
    _install_hook()
    noted: list[str] = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)
