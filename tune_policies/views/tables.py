"""Shows clusters, plans and decisions as tables and lines.

Labels and custom resources have names of any length, so they are below the tables and not in columns.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from tune_policies.cluster.capacity import ClusterCapacity, NodeCapacity
from tune_policies.cluster.labels import format_selector
from tune_policies.files.terminal import empty_table, line
from tune_policies.kuberay.design.comparison import ComparedPolicy, PolicyComparison
from tune_policies.plan.decision import Decision, SizeDecision, WorkloadDecision
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.plan.trial_slot import TrialSlot
from tune_policies.values.resources import Resources, amount_of, format_amount, from_ticks
from tune_policies.values.sanitize import one_line
from tune_policies.values.units import format_bytes, format_money
from tune_policies.values.value import counted, shorten_names

_NOT_REPEATED: Final = frozenset({"ray.io/node-id", "ray.io/accelerator-type"})
"""Labels that are not shown: the node's identifier, and the type, which has a column."""

_NO_LIMIT: Final = 2**30
"""From this number of nodes on there is no limit: KubeRay's default is 2147483647 minus the running nodes."""


def cluster_view(capacity: ClusterCapacity) -> RenderableType:
    """Return the tables and lines of ``tune-policies probe``."""
    parts: list[RenderableType] = [_nodes(capacity.nodes)]
    if capacity.draining:
        names = sorted(node.address or node.node_id[:8] for node in capacity.draining)
        parts.append(line(f"{counted(len(names), 'node')} being drained, which no plan counts: {shorten_names(names)}"))
    if capacity.node_types is None:
        text = "An autoscaler runs, but what it could add is not known: name the cluster's file with --cluster-config"
        parts.append(line(text))
    elif capacity.node_types:
        parts += ["", _node_types(capacity)]
    return Group(*parts)


def _nodes(nodes: tuple[NodeCapacity, ...]) -> RenderableType:
    shapes: dict[tuple[str, ...], list[NodeCapacity]] = defaultdict(list)
    for node in nodes:
        # Ray's memory is what was free when the node started, which differs among equal nodes.
        has_memory = "" if node.resources.memory_bytes else "not known"
        shapes[(*_columns(node), has_memory, _others(node))].append(node)
    table = empty_table(
        counted(len(nodes), "node"), "Nodes", "CPU", "GPU", "Type", "GPU memory", "Host memory", "In use"
    )
    details = []

    def most_gpus_first(shape: tuple[tuple[str, ...], list[NodeCapacity]]) -> tuple[object, ...]:
        has = shape[1][0].resources
        return (-has.gpus, -has.cpus, shape[0])

    for (*columns, _, others), alike in sorted(shapes.items(), key=most_gpus_first):
        memory = _host_memory(*(node.resources for node in alike))
        table.add_row(str(len(alike)), *columns, memory, _in_use(alike))
        has, kind = alike[0].resources, columns[2]
        named = f"{len(alike)} with {amount_of(has.cpus, 'CPU')}, {amount_of(has.gpus, 'GPU')}"
        named += f" ({kind})" if kind != "-" else ""
        details.append(_details(named, _shared_labels(alike), others))
    return Group(table, *(line(text) for text in details if text))


def _node_types(capacity: ClusterCapacity) -> RenderableType:
    table = empty_table("The autoscaler could add", "Nodes", "Node type", "CPU", "GPU", "Type", "Host memory")
    details = []
    for kind in capacity.node_types or ():
        has = kind.resources
        amounts = (format_amount(has.cpus), format_amount(has.gpus), kind.accelerator_type or "-", _host_memory(has))
        most = str(kind.max_nodes_to_add) if kind.max_nodes_to_add < _NO_LIMIT else "no limit"
        table.add_row(most, kind.name, *amounts)
        details.append(_details(kind.name, kind.labels, _custom(has)))
    if capacity.max_nodes_to_add is not None and capacity.max_nodes_to_add < _NO_LIMIT:
        details.append(f"- at most {counted(capacity.max_nodes_to_add, 'node')} of all types together")
    return Group(table, *(line(text) for text in details if text))


def _columns(node: NodeCapacity) -> tuple[str, ...]:
    has = node.resources
    memory = node.smallest_gpu_memory_bytes
    gpu_memory = format_bytes(memory) if memory else "not read"
    models = sorted({device.name for device in node.devices or ()})
    return (
        format_amount(has.cpus),
        format_amount(has.gpus),
        node.accelerator_type or ", ".join(models) or "-",
        gpu_memory if has.gpus else "-",
    )


def _host_memory(*each: Resources) -> str:
    """Return the memory of one node, or of equal nodes: ``"14.7 to 14.9 GiB"``."""
    amounts = [has.memory_bytes for has in each if has.memory_bytes]
    if not amounts:
        return "not known"
    least, most = format_bytes(min(amounts)), format_bytes(max(amounts))
    if least == most:
        return most
    number, unit = least.split()
    return f"{number if most.endswith(f' {unit}') else least} to {most}"


def _others(node: NodeCapacity) -> str:
    few = node.usable_cpus is not None and node.usable_cpus < node.resources.cpus
    usable = f"only {amount_of(node.usable_cpus or 0, 'CPU')} usable" if few else ""
    return ", ".join(part for part in (usable, _custom(node.resources)) if part)


def _custom(has: Resources) -> str:
    return ", ".join(amount_of(amount, name) for name, amount in sorted(has.custom.items()))


def _in_use(nodes: Iterable[NodeCapacity]) -> Text:
    """Return the reserved resources of all nodes together."""
    total: dict[str, int] = defaultdict(int)
    for node in nodes:
        if node.in_use is None:
            return Text("not known")
        for name, ticks in node.in_use.ticks.items():
            total[name] += ticks
    memory = total.pop("memory", 0)
    parts = [amount_of(from_ticks(ticks), name) for name, ticks in sorted(total.items())]
    return Text("\n".join([*map(one_line, parts), *([format_bytes(memory)] if memory else [])]) or "nothing")


def _shared_labels(nodes: list[NodeCapacity]) -> dict[str, str]:
    return dict(set.intersection(*(set(node.labels.items()) for node in nodes)))


def _details(named: str, labels: Mapping[str, str], others: str) -> str:
    shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()) if key not in _NOT_REPEATED)
    text = "; ".join(part for part in (others, f"labels {shown}" if shown else "") if part)
    return f"- {named}: {text}" if text else ""


def plan_view(plan: TrialPlan) -> RenderableType:
    """Return the slots of a plan as a table, and below it its limits, the nodes that it adds, and its reasons."""
    title, *rest = plan.explain().splitlines()
    slots = plan.slots if plan.by_config is None else plan.by_config.slots
    rows = [_slot_columns(slot) for slot in slots]
    headings = [heading for heading in rows[0] if any(row[heading] for row in rows)]
    table = empty_table("", *headings)
    for row in rows:
        table.add_row(*(row[heading] or "-" for heading in headings))
    below = [text.strip() for text in rest if text.startswith(("  - ", "  nodes "))]
    return Group(line(title, "bold"), table, *map(line, below))


def _slot_columns(slot: TrialSlot) -> dict[str, str]:
    worker = slot.worker
    most = f" to {slot.max_workers}" if slot.is_elastic else ""
    where = [slot.accelerator_type, slot.topology and f"whole {slot.topology} slices"]
    selected = [f"nodes with {format_selector(slot.label_selector)}"] if slot.label_selector else []
    return {
        "At once": str(slot.max_concurrent_trials),
        "Train workers": f"{slot.num_workers}{most}" if slot.num_workers else "",
        "CPU": format_amount(worker.cpus),
        "GPU": format_amount(worker.gpus),
        "Other": _custom(worker),
        "Host memory": format_bytes(worker.memory_bytes) if worker.memory_bytes else "",
        "GPU memory": format_bytes(slot.gpu_memory_bytes) if slot.gpu_memory_bytes else "",
        "Speed": "" if slot.speed is None else f"{slot.speed:g}",
        "Where": ", ".join([*filter(None, where), *selected]),
    }


def comparison_view(comparison: PolicyComparison) -> RenderableType:
    """Return a table with a column for each policy and a row for each fact."""
    columns = [_compared_columns(each, comparison.currency) for each in comparison.policies]
    table = empty_table("", "", *(each.policy for each in comparison.policies))
    for heading in columns[0]:
        if any(column[heading] for column in columns):
            cells = ("\n".join(map(one_line, column[heading])) or "-" for column in columns)
            table.add_row(heading, *(Text(cell) for cell in cells))
    return Group(table, *(line(f"caution: {caution}") for caution in comparison.cautions))


def _compared_columns(compared: ComparedPolicy, currency: str) -> dict[str, list[str]]:
    plan, per_hour, per_trial = compared.plan, compared.price_per_hour, compared.price_of_trial_hour
    slots = () if plan is None else plan.slots if plan.by_config is None else plan.by_config.slots
    each_trial = [str(slot) if len(slots) == 1 else f"{slot.max_concurrent_trials} with {slot}" for slot in slots]
    return {
        "Trials at once": [str(compared.trials_at_once)],
        "Each trial": each_trial,
        "Limited by": [] if plan is None else [plan.limited_by],
        "Why not": [] if compared.why_not is None else [compared.why_not],
        "Nodes": [counted(number, f"{name} node") for name, number in compared.nodes.items() if number],
        "Stays idle": list(map(str, compared.idle)),
        "Waves": [] if compared.num_waves is None else [str(compared.num_waves)],
        "Price an hour": [] if per_hour is None else [f"{format_money(per_hour)} {currency}"],
        "Price of a trial hour": [] if per_trial is None else [f"{format_money(per_trial)} {currency}"],
    }


def decision_view(decision: Decision) -> RenderableType:
    """Return a row for each workload and size, and below from which size on a GPU pays, and when it was measured."""
    costs = ("Cheaper", "CPU cost", "GPU cost") if decision.has_prices else ()
    headings = ("Workload", "Size", "Faster", "GPU speed-up", "Trial on CPU", "Trial on GPU", *costs)
    table = empty_table("GPU or CPU", *headings)
    for each in decision.workloads:
        for size in each.sizes:
            table.add_row(each.workload, *_size_columns(size), *(_costs(size) if costs else ()))
    gpu = decision.accelerator_type or "a GPU of a type that is not known"
    where = f"measured on {decision.measured_at:%Y-%m-%d} on {decision.cpu_model} and {gpu}"
    prices = f"; costs in {decision.currency}, prices of {decision.price_date}" if costs else ""
    return Group(table, *(line(f"- {_crossover(each)}") for each in decision.workloads), line(f"- {where}{prices}"))


def _size_columns(size: SizeDecision) -> tuple[str, ...]:
    speedup = f"{size.speedup:.3g} ({size.low:.3g} to {size.high:.3g})"
    return (str(size.size), size.answer, speedup, f"{size.cpu.trial_s:.3g} s", f"{size.gpu.trial_s:.3g} s")


def _costs(size: SizeDecision) -> Iterator[str]:
    yield size.cheapest or "-"
    for times in (size.cpu, size.gpu):
        yield "-" if times.cost_per_trial is None else f"{times.cost_per_trial:.3g}"


def _crossover(decided: WorkloadDecision) -> str:
    trials = f"{decided.workload}, in trials of {counted(decided.steps_per_trial, 'step')}"
    if decided.crossover_at is None:
        return f"{trials}: a GPU pays at no size that was measured"
    above = "" if decided.crossover_above is None else f", and not yet at {decided.crossover_above}"
    return f"{trials}: a GPU pays from size {decided.crossover_at} on{above}"
