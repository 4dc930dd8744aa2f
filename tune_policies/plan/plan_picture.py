"""Draws a plan: the slots on nodes and devices, idle resources, and the resource that limits the number of trials.

Nodes that are equal and have equal slots share a card. A card shows the number of its nodes, and a bar for each
resource. The package ``placement`` chooses the nodes of the slots. Each slot type has a color and a number, and idle
parts have a dashed outline.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.node import NodeCapacity
from tune_policies.files.svg import COLORS, INNER, LARGE, MARGIN, SMALL, WIDTH, Column, Picture, fitted, text_width
from tune_policies.placement.layout import NodeWorkers, workers_on_nodes
from tune_policies.plan.idle import idle_heading, idle_to_show, with_planned_nodes
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, amount_of, format_amount, from_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted, shorten_names

_MOST_CARDS: Final = 16
_NARROWEST: Final = 4.0
"""The minimum width of a worker's box, in pixels."""

_BOX: Final = 14.0
_LINE: Final = SMALL * 1.35
_BOLD: Final = 1.08
"""The width of bold text relative to other text."""


def draw_plan(plan: TrialPlan, capacity: ClusterCapacity) -> Picture:
    """Return a picture of a plan on the cluster for which it was made.

    Raises:
        InvalidResourcesError: The plan was made for another cluster.
    """
    requested = _requested(plan)
    shown = requested | {"memory"}  # omit resources that only mark a node, such as the name of a slice
    left = [part for part in idle_to_show(capacity, plan) if part.resource in shown]
    nodes = workers_on_nodes(plan.slots, with_planned_nodes(capacity, plan))
    _check_all_placed(plan, nodes)
    column = Column()
    title = plan.headline
    column.lines(title, size=LARGE, style="tp-bold", most=3)
    column.y += 4
    _draw_slot_types(column, plan)
    cards = _cards(nodes, requested)
    for card in cards[:_MOST_CARDS]:
        _draw_card(column, card, plan, requested)
    rest = cards[_MOST_CARDS:]
    if rest:
        number = sum(len(card.nodes) for card in rest)
        column.lines(f"and {counted(number, 'node')} of {counted(len(rest), 'further shape')}")
    if capacity.draining:
        column.lines(f"The plan does not use {counted(len(capacity.draining), 'draining node')}")
    column.y += 2
    column.lines(idle_heading(plan, left).capitalize(), style="tp-bold")
    for part in left:
        column.lines(str(part), x=MARGIN + 8)
    notes = []
    if any(slot.num_workers for slot in plan.slots):
        notes.append("Each box is a Train worker.")
    if len(plan.slots) == 1 and len(nodes) > 1:
        notes.append("This is one possible placement, because Ray chooses the nodes.")
    column.y += 4
    column.lines(" ".join(notes), style="tp-soft")
    return column.picture(f"Plan: {title}")


def _check_all_placed(plan: TrialPlan, nodes: Sequence[NodeWorkers]) -> None:
    # Otherwise, slots that do not fit on this cluster would be missing from the picture without an error.
    placed = [0] * len(plan.slots)
    for workers, number in Counter(node.workers for node in nodes).items():
        for slot_type, count in enumerate(workers):
            placed[slot_type] += count * number
    for slot, count in zip(plan.slots, placed, strict=True):
        if count < slot.max_concurrent_trials * max(1, slot.num_workers):
            raise InvalidResourcesError(
                f"not all slots with {slot} fit the cluster. Pass the capacity for which the plan was made"
            )


def _requested(plan: TrialPlan) -> frozenset[str]:
    """Return the names of the resources that are drawn: devices, CPUs, and the other resources that slots request."""
    names = set(DEVICE_RESOURCES) | {"CPU"}
    for slot in plan.slots:
        names.update(slot.worker.ticks)
    return frozenset(names)


def _label(slot_type: int) -> str:
    return f"type {slot_type + 1}"  # a letter such as A could be mistaken for a device type such as A100


def _color(slot_type: int) -> str:
    return f"tp-c{slot_type % len(COLORS)}"


def _draw_slot_types(column: Column, plan: TrialPlan) -> None:
    beside = MARGIN + 24 + text_width(_label(len(plan.slots) - 1), SMALL) * _BOLD
    for slot_type, slot in enumerate(plan.slots):
        column.box(MARGIN, 12, 12, _color(slot_type))
        column.text(MARGIN + 18, _label(slot_type), style="tp-bold")
        trials = counted(slot.max_concurrent_trials, "trial")
        column.lines(f"{trials} with {slot}", x=beside)
        column.y += 3
    column.y += 4


class _Card(NamedTuple):
    """Nodes that share a card, in any order, and the number of workers of each slot type on each node."""

    nodes: list[NodeCapacity]
    workers: tuple[int, ...]


def _cards(nodes: Iterable[NodeWorkers], requested: frozenset[str]) -> list[_Card]:
    """Return the cards in this order: alive nodes before expected nodes, and then nodes with more workers first."""
    cards: dict[tuple[object, ...], _Card] = {}
    for group in _similar_nodes(nodes, requested):
        card = cards.setdefault(_look(group, requested), _Card([], group.workers))
        card.nodes.extend(group.nodes)
    return [card for _, card in sorted(cards.items(), key=itemgetter(0))]


def _similar_nodes(nodes: Iterable[NodeWorkers], requested: frozenset[str]) -> list[_Card]:
    """Group the nodes by the properties that determine how a node is drawn. Different groups can still look the same.

    Making the texts of a card takes much longer than comparing these properties, and a cluster can have 10,000 nodes.
    """
    is_memory_drawn = "memory" in requested
    groups: dict[tuple[tuple[int, ...], tuple[object, ...]], list[NodeCapacity]] = defaultdict(list)
    for node, workers in nodes:
        has = node.resources
        memory = ""
        if is_memory_drawn and has.memory_bytes:
            memory = _amount("memory", has.memory_bytes)
        custom = tuple((name, amount) for name, amount in has.custom.items() if name in requested)
        # A card names the models only if the type is unknown.
        models = _models(node) if node.devices and not node.accelerator_type else ()
        added_as = _added_as(node) if node.is_expected else None
        gpu = has.gpus, node.accelerator_type, models, node.smallest_gpu_memory_bytes
        groups[workers, (has.cpus, *gpu, memory, custom, node.usable_cpus, added_as)].append(node)
    return [_Card(alike, workers) for (workers, _), alike in groups.items()]


def _look(card: _Card, requested: frozenset[str]) -> tuple[object, ...]:
    """Return everything that is drawn on a card except for the names of the nodes, in the order of the cards."""
    node = card.nodes[0]
    amounts = _drawn_amounts(node, requested)
    devices = sum(ticks for name, ticks in amounts.items() if name in DEVICE_RESOURCES)
    added_as = _added_as(node) if node.is_expected else ""
    return (
        node.is_expected,
        -sum(card.workers),
        -devices,
        -amounts.get("CPU", 0),
        card.workers,
        _about(node),
        tuple((name, _amount(name, ticks)) for name, ticks in sorted(amounts.items())),
        added_as,
    )


def _drawn_amounts(node: NodeCapacity, requested: frozenset[str]) -> dict[str, int]:
    """Return the resources of a node that are drawn, in ticks: devices, CPUs, and then other resources by name."""
    names = [name for name in node.resources.ticks if name in requested]
    names.sort(key=lambda name: (name not in DEVICE_RESOURCES, name != "CPU", name))
    return {name: node.resources.ticks[name] for name in names}


def _added_as(node: NodeCapacity) -> str:
    """Return the name of an expected node without its number."""
    return node.node_id.rpartition("+")[0]


def _models(node: NodeCapacity) -> tuple[str, ...]:
    return tuple(sorted({device.name for device in node.devices or ()}))


def _amount(name: str, ticks: int) -> str:
    if name == "memory":
        return format_bytes(ticks)
    return format_amount(round(from_ticks(ticks), 2))


def _about(node: NodeCapacity) -> str:
    """Return a description of a node, such as ``"32 CPUs, 2 GPUs (A100, 80 GiB)"``."""
    cpus = amount_of(node.resources.cpus, "CPU")
    if node.usable_cpus is not None and node.usable_cpus < node.resources.cpus:
        cpus += f" (only {format_amount(node.usable_cpus)} usable)"
    about_device = [node.accelerator_type or ", ".join(_models(node))]
    memory = node.smallest_gpu_memory_bytes
    if memory:
        about_device.append(format_bytes(memory))
    in_parentheses = ", ".join(filter(None, about_device))
    parts = [cpus]
    for name, ticks in sorted(node.resources.ticks.items()):
        if name in DEVICE_RESOURCES:
            devices = amount_of(round(from_ticks(ticks), 2), name)
            if in_parentheses:
                devices += f" ({in_parentheses})"
            parts.append(devices)
    return ", ".join(parts)


def _draw_card(column: Column, card: _Card, plan: TrialPlan, requested: frozenset[str]) -> None:
    nodes = sorted(card.nodes, key=attrgetter("node_id"))
    node = nodes[0]
    top, mark = column.y, column.mark()
    column.y += 5
    room = float(INNER)
    if len(nodes) > 1:
        number = f"× {len(nodes)}"
        column.text(WIDTH - MARGIN, number, style="tp-bold", at_end=True)
        room -= text_width(number, SMALL) * 1.1 + 8
    column.text(MARGIN, fitted(_about(node), room / _BOLD), style="tp-bold")
    column.y += _LINE
    names = [node.address or node.node_id[:40] for node in nodes]
    style = "tp-card"
    if node.is_expected:
        names = [f"to be added by the autoscaler: {_added_as(node).rstrip('+')}"]
        style = "tp-card tp-expected"
    column.text(MARGIN, fitted(shorten_names(names), INNER), style="tp-soft")
    column.y += _LINE + 2
    for name, ticks in _drawn_amounts(node, requested).items():
        _draw_resource(column, name, ticks, card.workers, plan)
    column.add_background_box(mark, top, style)
    column.y += 8


def _draw_resource(column: Column, name: str, has: int, workers: Sequence[int], plan: TrialPlan) -> None:
    """Draw a resource of which a node has ``has`` ticks, with ``workers[i]`` workers of the slot type ``i``."""
    needed: dict[int, int] = {}
    for slot_type, slot in enumerate(plan.slots):
        ticks = slot.worker.ticks.get(name, 0)
        if ticks and workers[slot_type]:
            needed[slot_type] = ticks
    used = sum(workers[slot_type] * ticks for slot_type, ticks in needed.items())
    label = "host memory" if name == "memory" else name
    text = f"{label}: {_amount(name, used)} of {_amount(name, has)}"
    column.text(MARGIN, fitted(text, INNER))
    if needed and plan.limited_by == name and has - used < min(needed.values()):
        column.text(WIDTH - MARGIN, "full: no room for another trial", style="tp-bold", at_end=True)
    elif needed:
        users = ", ".join(f"{workers[slot_type]} × {_label(slot_type)}" for slot_type in needed)
        room = INNER - text_width(text, SMALL) - 8
        column.text(WIDTH - MARGIN, fitted(users, room), style="tp-soft", at_end=True)
    column.y += _LINE + 1
    x = float(MARGIN)
    for slot_type, ticks in needed.items():
        x = _draw_workers(column, x, INNER / has, name, ticks, workers[slot_type], _color(slot_type))
    free = WIDTH - MARGIN - x
    if free >= 1:
        column.box(x, free - 0.5, _BOX, "tp-free")
    column.y += _BOX + 5


def _draw_workers(column: Column, x: float, scale: float, name: str, ticks: int, count: int, color: str) -> float:
    """Draw a box for each worker, or a single box if they would be too narrow. Return the x position after the boxes.

    ``scale`` is the number of pixels per tick. Workers with a device fraction fill one device after the other, and the
    rest of the last device stays idle.
    """
    size, end = float(ticks), float(ticks * count)
    if name in DEVICE_RESOURCES and ticks < TICKS:
        per_device = TICKS // ticks
        num_devices = -(-count // per_device)
        size, end = TICKS / per_device, float(num_devices * TICKS)
    end = min(x + end * scale, WIDTH - MARGIN)
    boxes = count if size * scale >= _NARROWEST else 1
    width = size * count * scale / boxes
    for i in range(boxes):
        column.box(x + width * i, width - 1, _BOX, color, radius=1)
    rest = x + size * count * scale
    if end - rest >= 1:
        column.box(rest, end - rest - 1, _BOX, "tp-free")
    return end
