"""Sentences of plans about the nodes: unknown memory, unused and shared devices, and nodes that a plan omits."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tune_policies.cluster.accelerators import (
    may_be_nvidia,
)
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.gpu_sizes import total_of_type
from tune_policies.cluster.node import NodeCapacity, NodeGroup
from tune_policies.placement.count_trials import workers_on_node
from tune_policies.placement.request import Request
from tune_policies.plan.trial_plan import NodeNote
from tune_policies.values.resources import (
    amount_of,
    format_amount,
    format_ticks,
    to_ticks,
)
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted, shorten_names


def about_host_memory(groups: Iterable[NodeGroup], request: Request) -> Iterator[str]:
    """Yield sentences about nodes with unknown host memory, and nodes with too little host memory for a worker."""
    memory = request.worker.memory_bytes
    if memory is None:
        return
    beside = request.model_copy(update={"worker": request.worker.with_ticks("memory", 0)})
    short = [group for group in groups if (group.node.resources.memory_bytes or 0) < memory]
    if beside.worker.ticks:
        # The plan omits the other nodes because of other resources, whatever their memory is.
        short = [group for group in short if workers_on_node(group.node, beside)]
    if any(node.resources.memory_bytes is None for node, _ in short):
        yield "the host memory of some nodes is unknown, so it does not limit the number of trials on these nodes"
    left_out = sum(count for node, count in short if node.resources.memory_bytes is not None)
    if left_out:
        yield (
            f"the plan does not use {counted(left_out, 'node')} with less host memory than the {format_bytes(memory)} "
            "that a worker needs"
        )


def about_gpu_memory(groups: Iterable[NodeGroup]) -> Iterator[str]:
    """Yield sentences about GPU memory that is assumed because it was not read, and about how to specify the size."""
    unread = [group for group in groups if group.node.devices is None and group.node.smallest_gpu_memory_bytes]
    if not unread:
        return
    yield (
        f"GPU memory was not read, so the plan assumes the smallest amount known for the type: {describe_gpus(unread)}"
    )
    for name in sorted({str(node.accelerator_type) for node, _ in unread}):
        total = total_of_type(name)
        if total is None:
            continue
        if total.margin:
            yield (
                f"the plan assumes {total.margin:.0%} less GPU memory than the nominal size of {name}, because "
                "the total that its driver reports is unknown"
            )
        if total.variants:
            yield (
                f"{name} also exists with {total.variants}. If your GPUs have more memory than assumed, "
                f"{how_to_state_gpu_memory(node for node, _ in unread)}"
            )


def gpu_memory_hint(groups: Iterable[NodeGroup]) -> str:
    """Return a sentence on how to specify unknown or ambiguous GPU memory, or an empty string if none is needed."""
    unread = [node for node, _ in groups if node.devices is None or node.smallest_gpu_memory_bytes is None]
    nodes = [node for node in unread if node.smallest_gpu_memory_bytes is None or _has_variants(node)]
    if not nodes:
        return ""
    is_nvidia = any(may_be_nvidia(node.accelerator_type) for node in nodes)
    install = ""
    if is_nvidia and any(node.address for node in nodes):  # nodes of a catalog have no address
        install = "install nvidia-ml-py on the node, or "
    return f" If a node's GPU memory was not read, {install}{how_to_state_gpu_memory(nodes)}."


def how_to_state_gpu_memory(nodes: Iterable[NodeCapacity]) -> str:
    """Return where the user writes the memory of the GPUs of these nodes: in a catalog, or in a read capacity."""
    listed = "list each device with its memory_bytes in the capacity"
    if any(node.address for node in nodes):
        return listed
    return f"set gpu_memory of the node type in the catalog (in Python, {listed})"


def _has_variants(node: NodeCapacity) -> bool:
    total = total_of_type(node.accelerator_type)
    return total is not None and total.variants != ""


def describe_gpus(groups: Iterable[NodeGroup]) -> str:
    """Return the GPUs of the nodes by type and memory, such as ``"4 A100 (80 GiB), 2 T4 (memory not read)"``."""
    gpus: Counter[tuple[str, int | None]] = Counter()
    for node, count in groups:
        model = (node.accelerator_type or "unknown type", node.smallest_gpu_memory_bytes)
        gpus[model] += count * (int(node.resources.gpus) or 1)
    texts = []
    for (name, memory), count in sorted(gpus.items(), key=str):
        size = "memory not read"
        if memory:
            size = format_bytes(memory)
        texts.append(f"{count} {name} ({size})")
    return ", ".join(texts)


def about_the_nodes(capacity: ClusterCapacity) -> Iterator[NodeNote]:
    """Yield notes for every plan about resources and nodes that it does not use, and about nodes with too many CPUs."""
    differs: Counter[tuple[float, float, bool]] = Counter()
    for node, count in capacity.groups:
        if node.usable_cpus is not None and to_ticks(node.usable_cpus) < to_ticks(node.resources.cpus):
            differs[node.resources.cpus, node.usable_cpus, node.has_simulated_gpus] += count
    for (of_ray, usable, is_rehearsal), count in sorted(differs.items()):
        counts = f"Ray counts {amount_of(of_ray, 'CPU')} per node on {counted(count, 'node')}"
        if is_rehearsal:  # whoever simulates GPUs usually simulates the CPUs of the same machine
            yield NodeNote(f"{counts}, but {format_amount(usable)} exist: they are simulated, like the GPUs")
            continue
        number = max(1, int(usable))
        how = f"on these nodes with --num-cpus={number}"
        if capacity.is_started_here:
            how = f"with ray.init(num_cpus={number})"
        yield NodeNote(
            f"{counts}, but the cgroup, the CPU affinity or Slurm allows {format_amount(usable)}. Start Ray {how}"
        )
    for uuid, nodes in sorted(capacity.nodes_by_shared_device().items()):
        names = shorten_names(sorted({node.address or node.node_id[:8] for node in nodes}))
        number = _num_sharing(uuid, nodes[0])
        unused = number - len(nodes)
        if unused > 0:
            names += f" and {counted(unused, 'node')} that the plan does not use"
        yield NodeNote(
            f"the nodes {names} share the GPU {uuid}, so its memory counts only once, and each node has "
            f"1/{number} of it"
        )
    if capacity.draining:
        yield NodeNote(f"the plan does not use {counted(len(capacity.draining), 'draining node')}")
    if capacity.unusable:
        yield NodeNote(f"the plan does not use {describe_unusable(capacity.unusable)}")
    for held in describe_held(capacity).values():
        yield NodeNote(f"the plan does not use {held}")


def _num_sharing(uuid: str, node: NodeCapacity) -> int:
    """Return how many nodes report the GPU with this UUID, which ``node`` reports. Some of them may be draining."""
    return next(device.shared_by for device in node.devices or () if device.uuid == uuid)


def describe_unusable(nodes: Iterable[NodeCapacity]) -> str:
    """Return the nodes and their problems as text, such as ``"1 node (10.0.0.7): tune-policies is not installed"``."""
    names: dict[str, list[str]] = defaultdict(list)
    for node in nodes:
        names[node.problem or "trials cannot run on it"].append(node.address or node.node_id[:8])
    return "; ".join(
        f"{counted(len(of_problem), 'node')} ({shorten_names(sorted(of_problem))}): {problem}"
        for problem, of_problem in sorted(names.items())
    )


def describe_held(capacity: ClusterCapacity) -> dict[str, str]:
    """Return the resources that the program itself reserves as text, by holder: ``"1 GPU, reserved by …"``."""
    return {
        holder: f"{', '.join(format_ticks(name, ticks) for name, ticks in sorted(held.items()))}, reserved by {holder}"
        for holder, held in sorted(capacity.held_by().items())
    }
