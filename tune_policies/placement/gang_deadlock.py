"""Detects deadlocks of Train runs whose workers can never start, and explains them in an error.

Ray starts the workers of a run as a gang: all of them or none. A run with started workers ends at some point and
releases its resources, but a driver that waits for its workers keeps its reservation. So the waiting runs are simulated
with the banker's algorithm. If the workers of a run fit beside all reservations, the run starts, ends, and releases its
driver's resources. The runs that remain wait for each other, or for reservations that may never end.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pydantic import Field

from tune_policies.cluster.accelerators import ACCELERATOR_TYPE_PREFIX
from tune_policies.cluster.labels import NODE_ID, format_selector, matcher
from tune_policies.cluster.node import NodeTypeCapacity
from tune_policies.placement.bundles import BundleGroup, RemainingNode
from tune_policies.placement.request import Limit
from tune_policies.placement.scale_up import nodes_within_limits
from tune_policies.values.errors import InfeasibleRequestError
from tune_policies.values.resources import Amounts, Count, format_ticks, ray_ticks
from tune_policies.values.value import Value
from tune_policies.values.wording import counted


class NodeTotals(Value):
    """A node with its total resources.

    If ``may_go`` is true, an autoscaler may remove the node when it is idle, and then add another node.
    """

    node_id: str
    amounts: Amounts
    labels: dict[str, str] = Field(default_factory=dict)
    may_go: bool = False


class Reservation(Value):
    """A reservation on a node. ``holder`` describes the owner, such as "actor Server"."""

    node_id: str
    amounts: Amounts
    holder: str


class WaitingRun(Value):
    """A Train run whose workers have not started.

    Attributes:
        run_id: The identifier of the run.
        started_at: The start time of the run, in seconds.
        driver_id: The ID of the actor that started the run, or ``""`` if a program started it.
        driver: The reservations of the run's driver.
        gang: The workers for which the run waits, or ``None`` if it has not requested workers yet.
    """

    run_id: str
    started_at: float
    driver_id: str = ""
    driver: tuple[Reservation, ...] = ()
    gang: BundleGroup | None = None


class ClusterOccupancy(Value):
    """The resources of a cluster, its permanent reservations, and the waiting Train runs.

    Attributes:
        nodes: The alive nodes.
        permanent: The reservations outside of trials and Train runs. They may never end.
        waiting: The Train runs whose workers have not started.
        node_types: The node types that an autoscaler can add.
        max_nodes_to_add: The maximum number of nodes, of all types together, that an autoscaler can add, or ``None``
            for no limit.
    """

    nodes: tuple[NodeTotals, ...]
    permanent: tuple[Reservation, ...] = ()
    waiting: tuple[WaitingRun, ...] = ()
    node_types: tuple[NodeTypeCapacity, ...] = ()
    max_nodes_to_add: Count | None = None

    def remaining(self, holding: Iterable[WaitingRun]) -> dict[str, RemainingNode]:
        """Return each node's resources without the permanent reservations and the reservations of the runs' drivers."""
        nodes = {node.node_id: RemainingNode(node.amounts) for node in self.nodes}
        drivers = [driver for run in holding for driver in run.driver]
        for reservation in (*self.permanent, *drivers):
            if reservation.node_id in nodes:
                nodes[reservation.node_id].hold(reservation.amounts)
        return nodes


def stuck_runs(view: ClusterOccupancy) -> tuple[WaitingRun, ...]:
    """Return the runs, oldest first, whose workers wait for each other or for permanent reservations to end."""
    waiting = sorted(view.waiting, key=lambda run: (run.started_at, run.run_id))
    nodes = view.remaining(waiting)
    while True:
        stuck = [run for run in waiting if run.gang and most_workers(run.gang, view, nodes) < len(run.gang.bundles)]
        if len(stuck) == len(waiting):
            return tuple(stuck)
        # The banker's algorithm: a run that can start will also end, and then release what its driver reserves.
        can_start = [run for run in waiting if run not in stuck]
        for run in can_start:
            for reservation in run.driver:
                if reservation.node_id in nodes:
                    nodes[reservation.node_id].release(reservation.amounts)
        waiting = stuck


def most_workers(gang: BundleGroup, view: ClusterOccupancy, nodes: Mapping[str, RemainingNode]) -> int:
    """Return how many of the gang's workers fit on the remaining resources and on the best mix of nodes to add.

    The result ignores other waiting runs, because an autoscaler can remove idle nodes and add different nodes for the
    next run. It assumes that every idle node may be replaced, because the number of nodes that the autoscaler always
    keeps is unknown.
    """
    # All workers of a Train run have the same bundle, but their selectors can differ. Then only a common one is used,
    # so the result can be too large, but a run that can start never counts as stuck.
    is_selected, worker, wanted = matcher(gang.common_selector), ray_ticks(gang.bundles[0]), len(gang.bundles)
    slots = {
        node.node_id: nodes[node.node_id].slots(worker, wanted)
        for node in view.nodes
        if is_selected({NODE_ID: node.node_id, **node.labels})
    }
    # First the nodes that stay, and then the nodes that an autoscaler may add. An idle node counts like a node that can
    # be added, because the autoscaler may replace it by a better one.
    leaving = _leaving(view, nodes)
    staying = [number for node_id, number in slots.items() if node_id not in leaving]
    of_type = {
        node_type.name: RemainingNode(node_type.amounts).slots(worker, wanted)
        for node_type in view.node_types
        if node_type.max_nodes_to_add and is_selected(node_type.as_node().ray_labels)
    }
    limits = {node_type.name: node_type.max_nodes_to_add for node_type in view.node_types} | dict.fromkeys(leaving, 1)
    holds = of_type | {node_id: slots.get(node_id, 0) for node_id in leaving}
    # Nodes with room for the most workers are added first, so no other mix has room for more workers.
    by_use = sorted(filter(holds.__getitem__, holds), key=lambda name: (-holds[name], name))
    most = view.max_nodes_to_add
    if most is not None:
        # Each idle node that the autoscaler removes makes room for another one within its limit.
        most += len(leaving)
    chosen = nodes_within_limits(limits, by_use, most)
    # STRICT_PACK needs all workers on one node, and STRICT_SPREAD each worker on a node of its own.
    if gang.strategy == "STRICT_PACK":
        return max([*staying, *(holds[name] for name in chosen)], default=0)
    if gang.strategy == "STRICT_SPREAD":
        return sum(1 for number in staying if number) + sum(chosen.values())
    return sum(staying) + sum(holds[name] * number for name, number in chosen.items())


def _leaving(view: ClusterOccupancy, nodes: Mapping[str, RemainingNode]) -> set[str]:
    """Return the IDs of the idle nodes that an autoscaler may remove."""
    return {node.node_id for node in view.nodes if node.may_go and nodes[node.node_id].is_idle}


def deadlock_error(view: ClusterOccupancy, run: WaitingRun) -> InfeasibleRequestError:
    """Return the error for a stuck run, with its workers' requests and the reservations on each node."""
    gang = run.gang or BundleGroup([{}])
    stuck = stuck_runs(view)
    nodes = view.remaining(stuck)
    names = [name for name in gang.bundles[0] if not name.startswith(ACCELERATOR_TYPE_PREFIX)]
    holding = (*view.permanent, *(driver for run in stuck for driver in run.driver))
    sums = [_sum(node, nodes[node.node_id], holding, names) for node in view.nodes]
    shown = sums[:_SHOWN]
    if len(sums) > _SHOWN:
        shown.append(f"and {counted(len(sums) - _SHOWN, 'more node')}")
    num_leaving = len(_leaving(view, nodes))
    if (view.max_nodes_to_add != 0 or num_leaving) and any(node_type.max_nodes_to_add for node_type in view.node_types):
        shown.append(_addable(view, names, num_leaving))
    # If not even an empty cluster is large enough, fewer concurrent trials would not help.
    empty = most_workers(gang, view, view.model_copy(update={"permanent": ()}).remaining(()))
    fits = most_workers(gang, view, nodes)
    return InfeasibleRequestError(
        _asked(gang),
        f"other reservations leave room for {counted(fits, 'worker')} ({'; '.join(shown) or 'there are no nodes'})",
        _short_of(gang, view, nodes),
        _hint(view, stuck, gang, empty),
    )


_SHOWN: Final = 4
"""The maximum number of nodes, and of node types, that an error lists."""


def _sum(node: NodeTotals, left: RemainingNode, holding: Iterable[Reservation], names: Sequence[str]) -> str:
    """Return a node's total, reserved and free amounts as text: "node a: 4 CPUs - 1 CPU reserved by … = 3 CPUs"."""
    held: dict[str, list[Mapping[str, int]]] = {}
    for reservation in holding:
        if reservation.node_id == node.node_id and any(reservation.amounts.get(name) for name in names):
            held.setdefault(reservation.holder, []).append(reservation.amounts)
    text = f"node {node.node_id[:8]}: {_listed(node.amounts, names)}"
    if not held:
        return text
    for holder, amounts in sorted(held.items()):
        holders = _counted_holders(holder, len(amounts))
        text += f" - {_added(amounts, names)} reserved by {holders}"
    rest = ", ".join(format_ticks(name, left.amount(name)) for name in names)
    return f"{text} = {rest}"


def _counted_holders(holder: str, number: int) -> str:
    """Return a holder with its number as text: "2 waiting drivers", or "2 actors Server"."""
    if number == 1:
        return holder
    if holder.startswith("actor "):
        return f"{number} actors {holder.removeprefix('actor ')}"
    return f"{number} {holder}s"


def _addable(view: ClusterOccupancy, names: Sequence[str], num_leaving: int) -> str:
    """Return the nodes that can be added as text: "2 gpu with 4 CPUs, 1 GPU, at most 2 together"."""
    types = [
        f"{node_type.max_nodes_to_add} {node_type.name} with {_listed(node_type.amounts, names)}"
        for node_type in sorted(view.node_types, key=lambda node_type: node_type.name)
        if node_type.max_nodes_to_add
    ]
    if len(types) > _SHOWN:
        types[_SHOWN:] = [f"and {counted(len(types) - _SHOWN, 'more type')}"]
    text = f"nodes that can be added: {', '.join(types)}"
    if view.max_nodes_to_add is not None:
        text += f", at most {view.max_nodes_to_add + num_leaving} together"
    return text


def _listed(amounts: Amounts, names: Iterable[str]) -> str:
    return ", ".join(format_ticks(name, amounts.get(name, 0)) for name in names)


def _added(amounts: Iterable[Mapping[str, int]], names: Iterable[str]) -> str:
    total = sum(map(Counter, amounts), Counter[str]())
    return ", ".join(format_ticks(name, total[name]) for name in names if total[name])


def _asked(gang: BundleGroup) -> str:
    worker = ray_ticks(gang.bundles[0])
    requested = ", ".join(format_ticks(name, amount) for name, amount in worker.items() if amount) or "nothing"
    workers = "1 worker with" if len(gang.bundles) == 1 else f"{len(gang.bundles)} workers, each with"
    text = f"{workers} {requested}"
    if gang.common_selector:
        text += f" on nodes with {format_selector(gang.common_selector)}"
    if gang.strategy.startswith("STRICT"):
        text += f", {gang.strategy}"
    return text


def _short_of(gang: BundleGroup, view: ClusterOccupancy, nodes: Mapping[str, RemainingNode]) -> str:
    """Return the name of the resource that limits the number of workers most."""

    def workers(name: str) -> int:
        # A gang that requests only this resource shows how many workers the resource allows.
        return most_workers(gang.with_bundles([{name: gang.bundles[0][name]}] * len(gang.bundles)), view, nodes)

    needed = [name for name, amount in ray_ticks(gang.bundles[0]).items() if amount]
    return min(needed, key=lambda name: (workers(name), name), default=Limit.NODES)


def _hint(view: ClusterOccupancy, stuck: Sequence[WaitingRun], gang: BundleGroup, empty: int) -> str:
    if empty < len(gang.bundles):
        fewer = f"Request num_workers={empty}" if empty else "Request less for each worker"
        return f"{fewer}, or add nodes, because the workers would not start even if nothing else ran."
    drivers = [run for run in stuck if run.driver]
    # The largest number of drivers beside which the workers of one run still fit.
    for at_once in range(len(drivers) - 1, 0, -1):
        if most_workers(gang, view, view.remaining(drivers[:at_once])) >= len(gang.bundles):
            return (
                f"Pass max_concurrent_trials={at_once} to Tune (with a policy, use plan.max_concurrent_trials), "
                "reserve no CPU or GPU for drivers, or add nodes."
            )
    if drivers:
        return "Reserve less for the driver (run and tuner do this), request fewer workers, or add nodes."
    return "Stop other programs, request fewer workers, or add nodes."
