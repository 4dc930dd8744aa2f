"""Draws a plan: the slots on nodes and devices, idle resources, and the resource that limits the number of trials.

Nodes that are equal and have equal slots share a card. A card shows the number of its nodes, and a bar for each
resource. The package ``placement`` chooses the nodes of the slots. Each slot type has a color and a number, and idle
parts have a dashed outline.
"""

from itertools import groupby
from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import DEVICE_RESOURCES
from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity
from tune_policies.files.svg import COLORS, INNER, LARGE, MARGIN, SMALL, WIDTH, Column, Picture, fitted, text_width
from tune_policies.placement.layout import NodeWorkers, workers_on_nodes
from tune_policies.plan.idle import Why, idle
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.values.errors import InvalidResourcesError
from tune_policies.values.resources import TICKS, amount_of, format_amount, from_ticks
from tune_policies.values.units import format_bytes
from tune_policies.values.value import counted, shorten_names

_MOST_CARDS: Final = 16
_NARROWEST: Final = 4.0
"""The minimum width of a worker's box, in pixels."""

_BOX: Final = 14.0
_LINE: Final = SMALL * 1.35


def draw_plan(plan: TrialPlan, capacity: ClusterCapacity) -> Picture:
    """Return a picture of a plan on the cluster for which it was made.

    Raises:
        InvalidResourcesError: The plan was made for another cluster.
    """
    shown = _asked(plan) | {"memory"}  # omit resources that only mark a node, such as the name of a slice
    left = [part for part in idle(capacity, plan) if part.why is not Why.ROUNDING and part.resource in shown]
    nodes = workers_on_nodes(plan.slots, capacity.with_nodes_added(plan.nodes_to_add))
    for slot_type, slot in enumerate(plan.slots):
        wanted = slot.max_concurrent_trials * max(1, slot.num_workers)
        if sum(each.workers[slot_type] for each in nodes) < wanted:
            raise InvalidResourcesError(
                f"not all slots with {slot} fit the cluster. Pass the capacity for which the plan was made"
            )
    column = Column()
    title = plan.headline
    column.lines(title, size=LARGE, style="tp-bold", most=3)
    column.y += 4
    _draw_slot_types(column, plan)
    cards = _cards(nodes, plan)
    for card in cards[:_MOST_CARDS]:
        _draw_card(column, card, plan)
    if rest := cards[_MOST_CARDS:]:
        number = sum(len(card.nodes) for card in rest)
        column.lines(f"and {counted(number, 'node')} of {counted(len(rest), 'further shape')}")
    if capacity.draining:
        column.lines(f"The plan does not use {counted(len(capacity.draining), 'draining node')}")
    column.y += 2
    column.lines("Stays idle" if left else "Nothing stays idle", style="tp-bold")
    for part in left:
        column.lines(str(part), x=MARGIN + 8)
    notes = ["Each box is a Train worker."] if any(slot.num_workers for slot in plan.slots) else []
    if len(plan.slots) == 1 and len(nodes) > 1:
        notes.append("This is one possible placement, because Ray chooses the nodes.")
    column.y += 4
    column.lines(" ".join(notes), style="tp-soft")
    return column.picture(f"Plan: {title}")


def _label(slot_type: int) -> str:
    return f"type {slot_type + 1}"  # a letter such as A could be mistaken for a device type such as A100


def _color(slot_type: int) -> str:
    return f"tp-c{slot_type % len(COLORS)}"


def _draw_slot_types(column: Column, plan: TrialPlan) -> None:
    beside = MARGIN + 24 + text_width(_label(len(plan.slots) - 1), SMALL) * 1.08  # bold text is wider
    for slot_type, slot in enumerate(plan.slots):
        column.box(MARGIN, 12, 12, _color(slot_type))
        column.text(MARGIN + 18, _label(slot_type), style="tp-bold")
        trials = counted(slot.max_concurrent_trials, "trial")
        column.lines(f"{trials} with {slot}", x=beside)
        column.y += 3
    column.y += 4


class _Card(NamedTuple):
    """Nodes that share a card, and the number of workers of each slot type on each node."""

    nodes: tuple[NodeCapacity, ...]
    workers: tuple[int, ...]


def _cards(nodes: list[NodeWorkers], plan: TrialPlan) -> list[_Card]:
    """Return the cards in this order: alive nodes before expected nodes, and then nodes with more workers first."""

    def looks(each: NodeWorkers) -> tuple[object, ...]:
        node, amounts = each.node, _shown(each.node, plan)
        devices = sum(ticks for name, ticks in amounts.items() if name in DEVICE_RESOURCES)
        return (
            *(node.is_expected, -sum(each.workers), -devices, -amounts.get("CPU", 0), each.workers, _about(node)),
            tuple((name, _amount(name, ticks)) for name, ticks in sorted(amounts.items())),
            node.node_id.rpartition("+")[0] if node.is_expected else "",
        )

    grouped = groupby(sorted(nodes, key=lambda each: (looks(each), each.node.node_id)), key=looks)
    alike = (list(group) for _, group in grouped)
    return [_Card(tuple(each.node for each in group), group[0].workers) for group in alike]


def _shown(node: NodeCapacity, plan: TrialPlan) -> dict[str, int]:
    """Return the resources that are drawn, in ticks: devices, CPUs, and then the other resources that slots request."""
    names = [name for name in node.resources.ticks if name in _asked(plan)]
    names.sort(key=lambda name: (name not in DEVICE_RESOURCES, name != "CPU", name))
    return {name: node.resources.ticks[name] for name in names}


def _asked(plan: TrialPlan) -> frozenset[str]:
    return DEVICE_RESOURCES | {"CPU"} | {name for slot in plan.slots for name in slot.worker.ticks}


def _amount(name: str, ticks: int) -> str:
    return format_bytes(ticks) if name == "memory" else format_amount(round(from_ticks(ticks), 2))


def _about(node: NodeCapacity) -> str:
    """Return a description of a node, such as ``"32 CPUs, 2 GPUs (A100, 80 GiB)"``."""
    parts = [amount_of(node.resources.cpus, "CPU")]
    memory = node.smallest_gpu_memory_bytes
    models = sorted({device.name for device in node.devices or ()})
    kind = node.accelerator_type or ", ".join(models)
    about = ", ".join(filter(None, [kind, format_bytes(memory) if memory else ""]))
    for name, ticks in sorted(node.resources.ticks.items()):
        if name in DEVICE_RESOURCES:
            parts.append(amount_of(round(from_ticks(ticks), 2), name) + (f" ({about})" if about else ""))
    if node.usable_cpus is not None and node.usable_cpus < node.resources.cpus:
        parts[0] += f" (only {format_amount(node.usable_cpus)} usable)"
    return ", ".join(parts)


def _draw_card(column: Column, card: _Card, plan: TrialPlan) -> None:
    top, mark, node = column.y, column.mark(), card.nodes[0]
    column.y += 5
    number = f"× {len(card.nodes)}" if len(card.nodes) > 1 else ""
    if number:
        column.text(WIDTH - MARGIN, number, style="tp-bold", at_end=True)
    room = INNER - (text_width(number, SMALL) * 1.1 + 8 if number else 0)
    column.text(MARGIN, fitted(_about(node), room / 1.08), style="tp-bold")
    column.y += _LINE
    names = [each.address or each.node_id[:40] for each in card.nodes]
    if node.is_expected:
        names = [f"to be added by the autoscaler: {node.node_id.rpartition('+')[0].rstrip('+')}"]
    column.text(MARGIN, fitted(shorten_names(names), INNER), style="tp-soft")
    column.y += _LINE + 2
    for name, ticks in _shown(node, plan).items():
        _draw_resource(column, name, ticks, card, plan)
    column.add_background_box(mark, top, "tp-card tp-expected" if node.is_expected else "tp-card")
    column.y += 8


def _draw_resource(column: Column, name: str, has: int, card: _Card, plan: TrialPlan) -> None:
    needed = [slot.worker.ticks.get(name, 0) for slot in plan.slots]
    held = {i: needed[i] for i, count in enumerate(card.workers) if count and needed[i]}
    used = sum(card.workers[i] * each for i, each in held.items())
    text = f"{'host memory' if name == 'memory' else name}: {_amount(name, used)} of {_amount(name, has)}"
    column.text(MARGIN, fitted(text, INNER))
    if held and plan.limited_by == name and has - used < min(held.values()):
        column.text(WIDTH - MARGIN, "stops one more trial", style="tp-bold", at_end=True)
    elif held:
        holders = ", ".join(f"{card.workers[i]} × {_label(i)}" for i in held)
        room = INNER - text_width(text, SMALL) - 8
        column.text(WIDTH - MARGIN, fitted(holders, room), style="tp-soft", at_end=True)
    column.y += _LINE + 1
    x = float(MARGIN)
    for slot_type, ticks in held.items():
        x = _draw_workers(column, x, INNER / has, name, ticks, card.workers[slot_type], _color(slot_type))
    if (free := WIDTH - MARGIN - x) >= 1:
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
        size, end = TICKS / per_device, float(-(-count // per_device) * TICKS)
    end = min(x + end * scale, WIDTH - MARGIN)
    boxes = count if size * scale >= _NARROWEST else 1
    width = size * count * scale / boxes
    for i in range(boxes):
        column.box(x + width * i, width - 1, _BOX, color, radius=1)
    rest = x + size * count * scale
    if end - rest >= 1:
        column.box(rest, end - rest - 1, _BOX, "tp-free")
    return end
