"""How other tools give trials their resources: each rule in a few lines, from the tool's own documentation.

A rule gets what a trial needs and the nodes, as somebody who uses the tool knows them, and says how many trials it runs
at once and where. Whether these find room, and whether the memory of their GPU holds them, is not the rule's affair.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tune_policies import NodeCapacity
from tune_policies.values.resources import TICKS, to_ticks


class Need(NamedTuple):
    """What one trial needs at the least.

    Attributes:
        cpus: Of each worker; ``None``: what there is.
        share: Of a GPU, or whole GPUs, for each worker, in ticks of 1/10 000; 0: none, or by memory.
        gpu_bytes: GPU memory of each worker, where the share is left open; 0: none.
        num_workers: Processes that train in a trial, all at once.
    """

    cpus: float | None = None
    share: int = 0
    gpu_bytes: int = 0
    num_workers: int = 1

    @property
    def has_gpu(self) -> bool:
        """Whether a worker has a GPU or a part of one."""
        return bool(self.share or self.gpu_bytes)

    def per_device(self, node: NodeCapacity) -> int:
        """Return how many workers a GPU of the node holds, where none has more than one GPU."""
        if self.gpu_bytes:
            return (node.smallest_gpu_memory_bytes or 0) // self.gpu_bytes
        return TICKS // self.share


class Claim(NamedTuple):
    """Workers that a tool runs on a node.

    Attributes:
        node: The node.
        workers: How many, at once.
        cpus: That each reserves.
        share: Of a GPU, or whole GPUs, that each reserves, in ticks.
        is_limited: Whether a worker is held to its share of the GPU's memory.
        kind: Of which need of the trials.
    """

    node: NodeCapacity
    workers: int
    cpus: float
    share: int = 0
    is_limited: bool = False
    kind: int = 0


class Promise(NamedTuple):
    """How many trials a tool runs at once by its own count, and where their workers are."""

    trials: int
    claims: Sequence[Claim]


Rule = Callable[[Need, Sequence[NodeCapacity], int], Promise | None]
"""From a need, the nodes, and the number of trials; ``None``: the tool has nothing for such trials."""


def room_on(node: NodeCapacity, cpus: float, share: int) -> int:
    """Return how many workers Ray places on a node: by its CPUs, and device by device."""
    rooms = []
    if cpus:
        rooms.append(to_ticks(node.resources.cpus) // to_ticks(cpus))
    if share:
        gpus = int(node.resources.gpus)
        rooms.append(gpus * (TICKS // share) if share < TICKS else gpus * TICKS // share)
    return min(rooms)


def _placed_by_ray(nodes: Iterable[NodeCapacity], cpus: float, share: int, *, at_most: int) -> list[Claim]:
    claims = []
    for node in nodes:
        workers = min(room_on(node, cpus, share), at_most)
        at_most -= workers
        claims.append(Claim(node, workers, cpus, share))
    return claims


def _cpus(nodes: Iterable[NodeCapacity]) -> float:
    return sum(node.resources.cpus for node in nodes)


def _gpus(nodes: Iterable[NodeCapacity]) -> float:
    return sum(node.resources.gpus for node in nodes)


def _common_gpu(nodes: Iterable[NodeCapacity]) -> NodeCapacity | None:
    """Return a node with the GPU that is the most common one."""
    counts: Counter[tuple[str | None, int | None]] = Counter()
    example = {}
    for node in nodes:
        if node.resources.gpus:
            model = (node.accelerator_type, node.smallest_gpu_memory_bytes)
            counts[model] += int(node.resources.gpus)
            example[model] = node
    return example[max(counts, key=lambda model: counts[model])] if counts else None


def _replicas(need: Need, nodes: Sequence[NodeCapacity]) -> int:
    """Return into how many parts somebody who knows one GPU divides all of them."""
    common = _common_gpu(nodes)
    return 0 if common is None else max(1, need.per_device(common))


def by_sums(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """The sums of the cluster, divided by what a trial asks for.

    https://docs.ray.io/en/latest/tune/tutorials/tune-resources.html: parallelism is what a trial asks for, and what
    ``ray.cluster_resources()`` has.
    """
    cpus, share = need.cpus or 1, need.share
    counts = [_cpus(nodes) / cpus]
    if need.gpu_bytes:
        memory = sum((node.smallest_gpu_memory_bytes or 0) * int(node.resources.gpus) for node in nodes)
        counts.append(memory / need.gpu_bytes)
        share = min(TICKS, max(1, int(_gpus(nodes) * TICKS / max(1, min(counts)))))
    elif share:
        counts.append(_gpus(nodes) * TICKS / share)
    trials = int(min(counts) / need.num_workers)
    return Promise(trials, _placed_by_ray(nodes, cpus, share, at_most=trials * need.num_workers))


def by_hand(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """One request for every trial: a CPU, and the part of the most common GPU that the trial needs.

    https://docs.ray.io/en/latest/ray-core/scheduling/accelerators.html: that tasks do not use more than their share of
    a GPU's memory is up to the user.
    """
    share = need.share or (TICKS // _replicas(need, nodes) if need.gpu_bytes else 0)
    claims = _placed_by_ray(nodes, need.cpus or 1, share, at_most=num_trials * need.num_workers)
    return Promise(sum(claim.workers for claim in claims) // need.num_workers, claims)


def one_process_a_gpu(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """As many trials as GPUs, each with all of one.

    Determined's ``slots_per_trial`` (https://docs.determined.ai/latest/model-dev-guide/dtrain/dtrain-implement.html)
    and agents of W&B with ``CUDA_VISIBLE_DEVICES`` (https://docs.wandb.ai/models/sweeps/parallelize-agents) give whole
    GPUs, and no CPUs.
    """
    if not need.has_gpu:
        return None
    whole = max(1, need.share // TICKS)
    counts = [(node, int(node.resources.gpus) // whole) for node in nodes]
    claims = [Claim(node, count, node.resources.cpus / count, whole * TICKS) for node, count in counts if count]
    return Promise(sum(claim.workers for claim in claims) // need.num_workers, claims)


def slurm(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """``--gpus-per-task=1 --cpus-per-gpu=C``, where C is what the node with the most common GPU has for each.

    https://slurm.schedmd.com/srun.html#OPT_cpus-per-gpu: one number of CPUs for each GPU of a job.
    """
    common = _common_gpu(nodes)
    if common is None or not need.has_gpu or need.share > TICKS:
        return None
    cpus = max(need.cpus or 1, common.resources.cpus // common.resources.gpus)
    claims = _placed_by_ray(nodes, cpus, TICKS, at_most=10**9)
    return Promise(sum(claim.workers for claim in claims) // need.num_workers, claims)


def time_slicing(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """The same ``replicas`` of every GPU, by the most common one, without a limit of memory.

    https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-sharing.html: there is no memory isolation
    between replicas.
    """
    return _divided(need, nodes, is_limited=False)


def mps(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """The same ``replicas`` of every GPU, by the most common one, each held to its part of the memory.

    https://github.com/NVIDIA/k8s-device-plugin#with-cuda-mps: memory is split equally among the replicas.
    """
    return _divided(need, nodes, is_limited=True)


def _divided(need: Need, nodes: Sequence[NodeCapacity], *, is_limited: bool) -> Promise | None:
    if need.share >= TICKS or not need.has_gpu:
        return None
    share = TICKS // max(1, _replicas(need, nodes))
    placed = _placed_by_ray(nodes, need.cpus or 1, share, at_most=10**9)
    claims = [claim._replace(is_limited=is_limited) for claim in placed]
    return Promise(sum(claim.workers for claim in claims) // need.num_workers, claims)


def sums_by_trials(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """The sums of the cluster, divided by the number of trials, if that is as much as a trial needs.

    https://docs.ray.io/en/latest/tune/faq.html: resources for each trial, so that so many run at once.
    """
    cpus = max(need.cpus or 0, _whole_above_one(_cpus(nodes) / num_trials))
    share = max(need.share, int(_whole_above_one(_gpus(nodes) / num_trials) * TICKS)) if need.share else 0
    rooms = [_cpus(nodes) / cpus, *([_gpus(nodes) * TICKS / share] if share else [])]
    trials = min(num_trials, int(min(rooms)))
    return Promise(trials, _placed_by_ray(nodes, cpus, share, at_most=trials))


def distribute_resources(need: Need, nodes: Sequence[NodeCapacity], num_trials: int) -> Promise | None:
    """Tune's ``ResourceChangingScheduler`` with its ``DistributeResources``.

    https://docs.ray.io/en/latest/tune/api/doc/ray.tune.schedulers.resource_changing_scheduler.DistributeResources.html:
    it adds a CPU, and a GPU where trials have one, to each trial as long as the sums of the cluster last.
    """
    base_cpus = need.cpus or 1
    started = sum(claim.workers for claim in _placed_by_ray(nodes, base_cpus, need.share, at_most=num_trials))
    free = [(_cpus(nodes) - base_cpus * num_trials) / num_trials]
    if need.share:
        free.append((_gpus(nodes) - need.share / TICKS * num_trials) / num_trials)
    more = max(0, int(min(free)))
    share = need.share + more * TICKS if need.share else 0
    return Promise(started, _placed_by_ray(nodes, base_cpus + more, share, at_most=started))


def _whole_above_one(amount: float) -> float:
    return float(int(amount)) if amount >= 1 else amount


FOR_MANY: Final[dict[str, Rule]] = {
    "sums ÷ request": by_sums,
    "Ray, one request": by_hand,
    "whole GPUs": one_process_a_gpu,
    "Slurm": slurm,
    "time-slicing": time_slicing,
    "MPS replicas": mps,
}
"""For as many trials at once as there is room for."""

FOR_A_NUMBER: Final[dict[str, Rule]] = {
    "sums ÷ trials": sums_by_trials,
    "DistributeResources": distribute_resources,
    "Ray, one request": by_hand,
}
"""For so many trials, among which the cluster is divided."""
