"""Finds the largest number of concurrent trials in a cluster (the exact optimum) with OR-Tools CP-SAT.

The model shares no arithmetic with the planner. It places workers, devices and trial drivers one by one, and the solver
proves that no placement fits more trials. The constraints are:

* Every worker gets the *user's* request, before any rounding: a fraction of one GPU or whole devices, and CPUs, host
  memory and custom resources of its node. If the user does not set CPUs, the number in the plan is used.
* The worker's node must satisfy the label selector, the excluded nodes, the device type and the GPU memory. If GPU
  memory is requested, a device with unknown memory counts as too small.
* All workers of a trial run concurrently.
* With Train workers, each trial has a driver with 1 MiB of host memory on a node that the label selector and the
  excluded nodes allow. Ray chooses the nodes of drivers, so the workers must fit for every choice.
* If GPU memory is requested instead of a fraction, the memory of each device limits its workers. With ``one_share``,
  all workers have the same fraction 1/k of a device, because Train gives the same resources to all workers. The solver
  chooses k and the nodes.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple, Self

from ortools.sat.python import cp_model

from tune_policies import CpuPolicy, GpuMemoryPolicy, GpuPolicy, NodeCapacity, SelectingPolicy
from tune_policies.policies.policy import ResourcePolicy
from tune_policies.values.resources import fewest_workers

_TICKS: Final = 10_000
_DRIVER_BYTES: Final = 2**20
_SOLVER_SECONDS: Final = 60.0
_MOST: Final = 10**7
"""An upper bound of the number of workers, small enough for the solver's 64-bit integers."""


class TrialRequest(NamedTuple):
    """The request of one trial, in whole numbers.

    Attributes:
        amounts: The requested amounts of a worker, by Ray resource name. ``memory`` is in bytes, and all other
            amounts are in ticks of 1/10,000.
        num_workers: The number of Train workers in the trial, or 0 if the trial itself trains.
        gpu_ticks: The fraction of one device, or whole devices, in ticks. It is 0 without a GPU, or if GPU memory is
            requested instead.
        gpu_memory_bytes: The requested GPU memory on one device, or 0.
        max_per_gpu: The maximum number of workers on one device if GPU memory is requested.
    """

    amounts: dict[str, int]
    num_workers: int = 0
    gpu_ticks: int = 0
    gpu_memory_bytes: int = 0
    max_per_gpu: int | None = None

    @property
    def processes(self) -> int:
        """The number of processes that train in one trial."""
        return max(1, self.num_workers)


class Question(NamedTuple):
    """A request, and the nodes that the user allows for it.

    Attributes:
        request: The request of one trial.
        workers_on: The allowed nodes for workers.
        drivers_on: The allowed nodes for trial drivers.
    """

    request: TrialRequest
    workers_on: tuple[NodeCapacity, ...]
    drivers_on: tuple[NodeCapacity, ...]

    @classmethod
    def of(cls, policy: ResourcePolicy, nodes: Iterable[NodeCapacity], *, cpus: float) -> Self:
        """Return the question for ``policy``. ``cpus`` is used if the policy does not set the number of CPUs."""
        allowed = tuple(nodes)
        while isinstance(policy, SelectingPolicy):
            allowed = tuple(node for node in allowed if _is_allowed(node, policy))
            policy = policy.inner
        if not isinstance(policy, CpuPolicy | GpuPolicy | GpuMemoryPolicy):
            raise TypeError(f"{type(policy).__name__} does not define the request of a worker")
        amounts = {name: _ticks(amount) for name, amount in policy.custom.items()}
        if policy.cpus is not None:
            cpus = policy.cpus
        amounts["CPU"] = _ticks(cpus)
        amounts["memory"] = int(policy.memory or 0)
        if isinstance(policy, CpuPolicy):
            return cls(TrialRequest(amounts, fewest_workers(policy.num_workers)), allowed, allowed)
        least = policy.min_gpu_memory if isinstance(policy, GpuPolicy) else policy.gpu_memory
        of_type = [node for node in allowed if policy.accelerator_type in (None, node.accelerator_type)]
        suited = tuple(node for node in of_type if (node.smallest_gpu_memory_bytes or 0) >= int(least or 0))
        if isinstance(policy, GpuPolicy):
            return cls(
                TrialRequest(amounts, fewest_workers(policy.num_workers), gpu_ticks=_ticks(policy.gpus)),
                suited,
                allowed,
            )
        if policy.gpu_memory is None:
            raise TypeError("the request of a worker depends on its config if the policy has a profile")
        request = TrialRequest(
            amounts,
            fewest_workers(policy.num_workers),
            gpu_memory_bytes=int(policy.gpu_memory),
            max_per_gpu=policy.max_trials_per_gpu,
        )
        return cls(request, suited, allowed)


def optimum(question: Question, *, one_share: bool = True) -> int:
    """Return the largest number of concurrent trials under the constraints of this module.

    Raises:
        RuntimeError: The solver does not prove the optimum in time.
    """
    most = _most_trials(question, one_share=one_share)
    request = question.request
    if request.num_workers == 0 or not request.amounts.get("memory"):
        return most  # drivers use no resource that workers need
    while most and _fewest_workers_beside_drivers(question, most) < most * request.processes:
        most -= 1
    return most


def _most_trials(question: Question, *, one_share: bool) -> int:
    """Return the largest number of trials if the drivers are placed where they displace the fewest workers."""
    request = question.request
    model = cp_model.CpModel()
    workers = _workers(model, question, one_share=one_share)
    trials = model.new_int_var(0, _MOST, "trials")
    model.add(sum(workers.values()) == request.processes * trials)
    drivers = {node.node_id: model.new_int_var(0, _MOST, "drivers") for node in question.drivers_on}
    if request.num_workers:
        model.add(sum(drivers.values()) == trials)
        for node in question.drivers_on:
            if node.resources.memory_bytes is not None:
                held = request.amounts.get("memory", 0) * workers.get(node.node_id, 0)
                model.add(held + _DRIVER_BYTES * drivers[node.node_id] <= node.resources.memory_bytes)
    model.maximize(trials)
    return _solved(model)


def _fewest_workers_beside_drivers(question: Question, num_drivers: int) -> int:
    """Return the number of workers that fit if the drivers are placed where they displace the most workers."""
    model = cp_model.CpModel()
    needed = question.request.amounts["memory"]
    drivers, rooms = [], []
    for node in question.drivers_on:
        alone = _most_trials(
            question._replace(request=question.request._replace(num_workers=0), workers_on=(node,)), one_share=True
        )
        count = model.new_int_var(0, num_drivers, "drivers")
        drivers.append(count)
        if node.resources.memory_bytes is None:
            rooms.append(model.new_constant(alone))
            continue
        by_memory = model.new_int_var(0, node.resources.memory_bytes // needed, "by memory")
        left = model.new_int_var(0, node.resources.memory_bytes, "left")
        model.add(left == node.resources.memory_bytes - _DRIVER_BYTES * count)
        model.add_division_equality(by_memory, left, needed)
        room = model.new_int_var(0, alone, "room")
        model.add_min_equality(room, [by_memory, model.new_constant(alone)])
        rooms.append(room)
    model.add(sum(drivers) == num_drivers)
    model.minimize(sum(rooms))
    return _solved(model)


def _workers(model: Any, question: Question, *, one_share: bool) -> dict[str, Any]:
    """Return a variable for the number of workers on each node, by node ID."""
    request = question.request
    per_device = model.new_int_var(1, _TICKS, "k") if request.gpu_memory_bytes and one_share else None
    workers = {}
    for node in question.workers_on:
        on_node = model.new_int_var(0, _MOST, "workers")
        workers[node.node_id] = on_node
        has = node.resources.ticks
        for name, needed in request.amounts.items():
            if needed and not (name == "memory" and node.resources.memory_bytes is None):
                model.add(needed * on_node <= has.get(name, 0))
        if request.gpu_ticks >= _TICKS:
            model.add(request.gpu_ticks // _TICKS * on_node <= int(node.resources.gpus))
        elif request.gpu_ticks or request.gpu_memory_bytes:
            on_devices = [_on_device(model, node, request, per_device) for _ in range(int(node.resources.gpus))]
            model.add(on_node == sum(on_devices))
    return workers


def _on_device(model: Any, node: NodeCapacity, request: TrialRequest, per_device: Any | None) -> Any:
    """Return a variable for the number of workers on one device of the node."""
    count = model.new_int_var(0, _TICKS, "on device")
    if request.gpu_ticks:
        model.add(request.gpu_ticks * count <= _TICKS)
        return count
    memory = node.smallest_gpu_memory_bytes or 0
    model.add(request.gpu_memory_bytes * count <= memory)
    if request.max_per_gpu is not None:
        model.add(count <= request.max_per_gpu)
    if per_device is not None:
        is_used = model.new_bool_var("used")
        model.add(count == 0).only_enforce_if(~is_used)
        # With equal fractions, Ray may place ``per_device`` workers on any GPU, so the smallest GPU needs enough
        # memory for all of them.
        model.add(request.gpu_memory_bytes * per_device <= memory).only_enforce_if(is_used)
        model.add(count <= per_device)
    return count


def _solved(model: Any) -> int:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = _SOLVER_SECONDS
    status = solver.solve(model)
    if status != cp_model.OPTIMAL:
        raise RuntimeError(f"the solver proved no optimum within {_SOLVER_SECONDS:g} s: {solver.status_name(status)}")
    return round(solver.objective_value)


def _is_allowed(node: NodeCapacity, policy: SelectingPolicy) -> bool:
    """Return whether the label selector and the excluded nodes of ``policy`` allow the node.

    The conditions of a label selector are ``a``, ``!a``, ``in(a,b)`` and ``!in(a,b)``.
    """
    if node.node_id in policy.exclude_nodes or (policy.exclude_head and node.is_head):
        return False
    for key, condition in policy.label_selector.items():
        listed = condition.removeprefix("!").removeprefix("in(").removesuffix(")").split(",")
        if (node.labels.get(key) in listed) == condition.startswith("!"):
            return False
    return True


def _ticks(amount: float) -> int:
    return int(amount * _TICKS + 1e-4)
