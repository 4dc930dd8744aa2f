"""Whether the workers of Train runs can ever start beside what holds on, and the sum where they cannot.

A run whose workers train will end, and frees what it holds. A driver whose workers wait does not: it holds its share
until they have started and ended. So the waiting runs are played through as a banker would: a run for which there is
room beside everything that holds on can start, ends, and gives its driver's share back. The runs that are left
when no more can start wait for each other, or for what never ends.

Amounts are counted in ticks on each node and, for devices, on each device. Other resources than a gang's own take no
part.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pydantic import Field

from tune_policies.accelerators import ACCELERATOR_TYPE_PREFIX, DEVICE_RESOURCES
from tune_policies.errors import InfeasibleRequestError
from tune_policies.labels import format_selector, matcher
from tune_policies.placement.packing import device_slots
from tune_policies.resources import TICKS, Count, PositiveCount, format_amount
from tune_policies.units import format_bytes
from tune_policies.values import Value

Amounts = dict[str, int]
"""Ticks by Ray's name of the resource, but ``memory`` in bytes."""


class RoomNode(Value):
    """A node, with everything that it has, used or not."""

    node_id: str
    amounts: Amounts
    labels: dict[str, str] = Field(default_factory=dict)


class Held(Value):
    """What something holds on a node.

    Attributes:
        node_id: The node.
        amounts: How much of it.
        holder: Who holds it, as text: "an actor Server".
    """

    node_id: str
    amounts: Amounts
    holder: str


class Gang(Value):
    """Workers that start together, all alike.

    Attributes:
        worker: What each reserves.
        num_workers: How many there are; of an elastic run, the fewest with which it starts.
        strategy: Ray's placement strategy.
        label_selector: Ray's label selector for their nodes; empty: any.
    """

    worker: Amounts
    num_workers: PositiveCount
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    label_selector: dict[str, str] = Field(default_factory=dict)


class WaitingRun(Value):
    """A Train run whose workers have not started.

    Attributes:
        run_id: Which it is.
        started_at: When it began, in seconds; runs are told apart by age.
        driver: What its driver holds meanwhile.
        gang: The workers that it waits for; ``None``: not known, as it has not asked for any; so they may fit.
    """

    run_id: str
    started_at: float
    driver: tuple[Held, ...] = ()
    gang: Gang | None = None


class RoomType(Value):
    """A type of node that an autoscaler can add.

    Attributes:
        node: What one such node will have.
        most: How many more may come.
    """

    node: RoomNode
    most: Count


class RoomView(Value):
    """What a cluster has, and what in it holds on.

    Attributes:
        nodes: The alive nodes.
        lasting: What nothing is known to end: actors outside of trials and Train runs, and what users have reserved.
        waiting: The Train runs whose workers wait.
        types: What an autoscaler can add.
        most_to_add: The most nodes of all types together that it can add; ``None``: each type's limit is the only one.
    """

    nodes: tuple[RoomNode, ...]
    lasting: tuple[Held, ...] = ()
    waiting: tuple[WaitingRun, ...] = ()
    types: tuple[RoomType, ...] = ()
    most_to_add: Count | None = None


def stuck_runs(view: RoomView) -> tuple[WaitingRun, ...]:
    """Return the runs whose workers can never start unless one of them, or what lasts, gives way; oldest first."""
    waiting = sorted(view.waiting, key=lambda run: (run.started_at, run.run_id))
    while True:
        stuck = [
            run
            for run in waiting
            if run.gang is not None and most_workers(run.gang, view, waiting) < run.gang.num_workers
        ]
        if len(stuck) == len(waiting):
            return tuple(stuck)
        waiting = stuck


class _Room(NamedTuple):
    node: RoomNode
    left: Mapping[str, int]


def _room(view: RoomView, holding: Iterable[WaitingRun]) -> list[_Room]:
    held: dict[str, Counter[str]] = {node.node_id: Counter() for node in view.nodes}
    for each in (*view.lasting, *(share for run in holding for share in run.driver)):
        if each.node_id in held:
            held[each.node_id].update(each.amounts)
    return [
        _Room(node, {name: amount - held[node.node_id][name] for name, amount in node.amounts.items()})
        for node in view.nodes
    ]


def most_workers(gang: Gang, view: RoomView, holding: Iterable[WaitingRun]) -> int:
    """Return how many of the gang's workers could start at once beside these runs, with the best nodes that may come.

    Each run is asked for by itself: an autoscaler takes idle nodes away again, and adds others for the next.
    """
    is_selected = matcher(gang.label_selector)

    def slots_on(node: RoomNode, left: Mapping[str, int]) -> int:
        if not is_selected({"ray.io/node-id": node.node_id, **node.labels}):
            return 0
        return _slots(gang.worker, node.amounts, left, gang.num_workers)

    slots = [slots_on(node, left) for node, left in _room(view, holding)]
    added = sorted(
        ((slots_on(each.node, each.node.amounts), each.most) for each in view.types if each.most), reverse=True
    )
    most_to_add = sum(most for _, most in added) if view.most_to_add is None else view.most_to_add
    if gang.strategy == "STRICT_PACK":
        return max([*slots, *(each for each, _ in added if most_to_add)], default=0)
    if gang.strategy == "STRICT_SPREAD":
        return sum(1 for each in slots if each) + min(most_to_add, sum(most for each, most in added if each))
    total = sum(slots)
    for each, most in added:  # those that hold the most come first, so no other mix holds more
        total += each * min(most, most_to_add)
        most_to_add -= min(most, most_to_add)
    return total


def _slots(worker: Mapping[str, int], has: Mapping[str, int], left: Mapping[str, int], most: int) -> int:
    """Return how many workers find room on a node.

    On which of its devices others have their shares is not known, so that what is left of several counts as their sum:
    a run that could start must never be told that it cannot.
    """
    slots = most
    for name, needed in worker.items():
        if needed > 0 and not (name == "memory" and name not in has):  # not known: it limits nothing
            slots = min(slots, max(0, left.get(name, 0)) // needed)
            if name in DEVICE_RESOURCES:
                slots = min(slots, device_slots(has.get(name, 0) / TICKS, needed))
    return slots


def no_room(view: RoomView, run: WaitingRun) -> InfeasibleRequestError:
    """Return the error for a stuck run: what its workers need, and the sum of what each node has and who holds it."""
    gang = run.gang or Gang(worker={}, num_workers=1)
    stuck = stuck_runs(view)
    sums = [_sum(node, left, view, stuck, gang) for node, left in _room(view, stuck)]
    shown = sums[:_SHOWN] + ([f"and {len(sums) - _SHOWN} more nodes"] if len(sums) > _SHOWN else [])
    shown += [_addable(view, gang)] if any(each.most for each in view.types) and view.most_to_add != 0 else []
    empty = most_workers(gang, view.model_copy(update={"lasting": ()}), ())
    fits = most_workers(gang, view, stuck)
    return InfeasibleRequestError(
        _asked(gang),
        f"beside what holds on there is room for {fits} ({'; '.join(shown) or 'there is no node'})",
        _short_of(gang, view, stuck),
        _way_out(view, stuck, gang, empty),
    )


_SHOWN: Final = 4
"""So many nodes an error writes out."""


def _sum(node: RoomNode, left: Mapping[str, int], view: RoomView, stuck: Iterable[WaitingRun], gang: Gang) -> str:
    names = [name for name in gang.worker if not name.startswith(ACCELERATOR_TYPE_PREFIX)]
    held: dict[str, list[Mapping[str, int]]] = {}
    for each in (*view.lasting, *(share for run in stuck for share in run.driver)):
        if each.node_id == node.node_id and any(each.amounts.get(name) for name in names):
            held.setdefault(each.holder, []).append(each.amounts)
    has = ", ".join(_amount(name, node.amounts.get(name, 0)) for name in names)
    parts = [
        f" - {_added(amounts, names)} held by {f'{len(amounts)} ' if len(amounts) > 1 else ''}{_noun(holder, amounts)}"
        for holder, amounts in sorted(held.items())
    ]
    rest = ", ".join(_amount(name, max(0, left.get(name, 0))) for name in names)
    return f"node {node.node_id[:8]}: {has}{''.join(parts)}{f' = {rest}' if parts else ''}"


def _addable(view: RoomView, gang: Gang) -> str:
    """Return what could be added at the most: "at most 2 more: 2 gpu with 4 CPU, 1 GPU each"."""
    names = [name for name in gang.worker if not name.startswith(ACCELERATOR_TYPE_PREFIX)]
    types = [
        f"{each.most} {each.node.node_id} with "
        + ", ".join(_amount(name, each.node.amounts.get(name, 0)) for name in names)
        for each in sorted(view.types, key=lambda each: each.node.node_id)
        if each.most
    ]
    together = "" if view.most_to_add is None else f", at most {view.most_to_add} together"
    return f"nodes that can be added: {', '.join(types[:_SHOWN])}{together}"


def _noun(holder: str, amounts: Sequence[object]) -> str:
    return f"{holder}s" if len(amounts) > 1 else holder


def _added(amounts: Iterable[Mapping[str, int]], names: Iterable[str]) -> str:
    total: Counter[str] = Counter()
    for each in amounts:
        total.update(each)
    return ", ".join(_amount(name, total[name]) for name in names if total[name])


def _asked(gang: Gang) -> str:
    each = ", ".join(_amount(name, amount) for name, amount in gang.worker.items() if amount) or "nothing"
    on = f" on nodes with {format_selector(gang.label_selector)}" if gang.label_selector else ""
    placed = f", {gang.strategy}" if gang.strategy.startswith("STRICT") else ""
    workers = "1 worker with" if gang.num_workers == 1 else f"{gang.num_workers} workers, each with"
    return f"{workers} {each}{on}{placed}"


def _short_of(gang: Gang, view: RoomView, stuck: Sequence[WaitingRun]) -> str:
    """Return the resource that alone lets the fewest workers start."""

    def workers(name: str) -> int:
        return most_workers(gang.model_copy(update={"worker": {name: gang.worker[name]}}), view, stuck)

    return min(
        (name for name in gang.worker if gang.worker[name]), key=lambda name: (workers(name), name), default="nodes"
    )


def _way_out(view: RoomView, stuck: Sequence[WaitingRun], gang: Gang, empty: int) -> str:
    if empty < gang.num_workers:
        fewer = f"Ask for num_workers={empty}" if empty else "Ask for less for each worker"
        return f"{fewer}, or add nodes: even with nothing else running they would not start."
    drivers = [run for run in stuck if run.driver]
    for at_once in range(len(drivers) - 1, 0, -1):
        if most_workers(gang, view, drivers[:at_once]) >= gang.num_workers:
            return (
                f"Pass max_concurrent_trials={at_once} to Tune (a plan says how many: plan.max_concurrent_trials), or "
                "let drivers hold no CPU or GPU, or add nodes."
            )
    if drivers:
        return (
            "Let the driver hold less, as under a plan (with_plan, as_trainable), or ask for fewer workers, "
            "or add nodes."
        )
    return "End what holds on, ask for fewer workers, or add nodes."


def _amount(name: str, ticks: int) -> str:
    return f"{format_bytes(ticks)} of host memory" if name == "memory" else f"{format_amount(ticks / TICKS)} {name}"
