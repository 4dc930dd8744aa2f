"""As many trials on a GPU as its memory holds."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tune_policies.capacity import ClusterCapacity, NodeCapacity
from tune_policies.errors import InfeasibleRequestError
from tune_policies.packing import Request, equal_gpu_share
from tune_policies.plan import TrialPlan
from tune_policies.planning import infeasible
from tune_policies.policies.gpu import AcceleratorType, plan_gpu_share, usable_gpu_nodes
from tune_policies.policy import ResourcePolicy
from tune_policies.resources import TICKS, Amount, Bytes, Count, PositiveCount, Resources
from tune_policies.units import format_bytes, format_request


class _Choice(NamedTuple):
    """One way to use the cluster: any GPU, or the GPUs of one type. The memory of each was read."""

    accelerator_type: str | None
    nodes: tuple[NodeCapacity, ...]
    smallest_bytes: int


class GpuMemoryPolicy(ResourcePolicy):
    """As many workers on a GPU as its memory holds: 2 of 6 GiB on a 16 GiB card, 13 on an 80 GiB one.

    Ray gives every trial the same share of a GPU, so on mixed devices the policy compares: all GPUs with the
    share that fits the smallest, or the GPUs of one type only. It takes what runs the most trials at once, and
    says which devices it leaves out.

    Attributes:
        gpu_memory: GPU memory that one worker needs in all, its framework's own use included: bytes, or a text
            such as ``"6GiB"``.
        cpus: CPUs of each worker; ``None``: as many as strand no GPU.
        accelerator_type: Only devices of this type, such as ``"A100"``.
        num_workers: Train workers in a trial; 0: the trial itself trains.
        max_trials_per_gpu: At most so many workers on a GPU, even where its memory holds more.

    Raises:
        InvalidResourcesError: A field is wrong.
    """

    gpu_memory: Bytes
    cpus: Amount | None = None
    accelerator_type: AcceleratorType | None = None
    num_workers: Count = 0
    max_trials_per_gpu: PositiveCount | None = None

    def plan(self, capacity: ClusterCapacity) -> TrialPlan:
        """Return the plan; see :meth:`ResourcePolicy.plan`."""
        plans, shortages = [], []
        for choice in self._choices(capacity):
            if choice.smallest_bytes < self.gpu_memory:
                continue
            try:
                plans.append(self._plan_choice(capacity, choice))
            except InfeasibleRequestError as error:
                shortages.append(error)  # too few CPUs or workers there; another choice may do
        if plans:
            # Ties go to the larger share, then to all devices before one type, then by name.
            return min(plans, key=lambda p: (-p.max_concurrent_trials, -p.worker.gpus, p.accelerator_type or ""))
        raise shortages[0] if shortages else self._infeasible(capacity)

    def _choices(self, capacity: ClusterCapacity) -> list[_Choice]:
        types = {node.accelerator_type for node in capacity.gpu_nodes()}
        wishes: list[str | None] = [None, *sorted(name for name in types if name is not None)]
        if self.accelerator_type is not None:
            wishes = [self.accelerator_type]
        choices = []
        for wish in wishes:
            nodes = usable_gpu_nodes(capacity, wish, self.cpus)
            memories = [node.smallest_gpu_memory_bytes for node in nodes]
            known = [memory for memory in memories if memory is not None]
            # A device that was not read may be too small, and Ray may place a worker on it.
            if known and len(known) == len(memories):
                choices.append(_Choice(wish, nodes, min(known)))
        return choices

    def _plan_choice(self, capacity: ClusterCapacity, choice: _Choice) -> TrialPlan:
        fit = choice.smallest_bytes // self.gpu_memory
        share = equal_gpu_share(min(fit, self.max_trials_per_gpu or fit), choice.nodes)
        k = TICKS // share
        is_capped = self.max_trials_per_gpu is not None and self.max_trials_per_gpu < fit
        reasons = [
            f"{format_bytes(self.gpu_memory)} a worker: {k} {'worker' if k == 1 else 'workers'} on a GPU of "
            f"{format_bytes(choice.smallest_bytes)}" + (", as max_trials_per_gpu says" if is_capped else "")
        ]
        used = {node.node_id for node in choice.nodes}
        left_out = _describe(node for node in capacity.gpu_nodes(self.accelerator_type) if node.node_id not in used)
        if left_out:
            why = (
                "for want of CPUs" if choice.accelerator_type is None else f"as only {choice.accelerator_type} is used"
            )
            reasons.append(f"left out {why}: {left_out}")
        plan = plan_gpu_share(
            capacity,
            share,
            cpus=self.cpus,
            accelerator_type=choice.accelerator_type,
            num_workers=self.num_workers,
            reasons=reasons,
        )
        if is_capped and plan.limited_by == "GPU":
            return plan.model_copy(update={"limited_by": "max_trials_per_gpu"})
        return plan

    def _infeasible(self, capacity: ClusterCapacity) -> InfeasibleRequestError:
        request = Request(
            worker=Resources(cpus=self.cpus or 0, gpus=1),
            num_workers=self.num_workers,
            accelerator_type=self.accelerator_type,
            gpu_memory_bytes=self.gpu_memory,
        )
        nodes = usable_gpu_nodes(capacity, self.accelerator_type, self.cpus)
        if not nodes:
            return infeasible(capacity, request)
        if choices := self._choices(capacity):
            most = max(choice.smallest_bytes for choice in choices)
            return InfeasibleRequestError(
                str(request),
                f"the GPUs that Ray could choose from have {format_bytes(most)} on the smallest",
                "GPU memory",
                f"Ask for at most {format_request(most)}, add a larger GPU, or give the larger ones an accelerator "
                "type.",
            )
        unread = sum(node.smallest_gpu_memory_bytes is None for node in nodes)
        return InfeasibleRequestError(
            str(request),
            f"the GPU memory of {unread} of {len(nodes)} GPU nodes was not read",
            "GPU memory",
            "Install nvidia-ml-py on the GPU nodes and probe again, give the nodes that were read an accelerator "
            "type, or take GpuPolicy with a share of a GPU.",
        )


def _describe(nodes: Iterable[NodeCapacity]) -> str:
    kinds = Counter(
        (node.accelerator_type or "unknown type", node.smallest_gpu_memory_bytes)
        for node in nodes
        for _ in range(int(node.resources.gpus) or 1)
    )
    return ", ".join(
        f"{count} {name} ({format_bytes(memory) if memory else 'memory not read'})"
        for (name, memory), count in sorted(kinds.items(), key=str)
    )
