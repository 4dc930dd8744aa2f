"""A policy for trials with whole GPUs or equal GPU fractions."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator

from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.placement.request import Limit
from tune_policies.plan.infeasible_request import in_context, infeasible
from tune_policies.plan.plan_notes import describe_gpus, gpu_memory_hint
from tune_policies.plan.trial_plan import TrialPlan
from tune_policies.policies.default_cpus import about_nodes_without_cpus, nodes_with_cpus
from tune_policies.policies.equal_fractions import equal_device_fraction
from tune_policies.policies.gpu_selection import (
    GpuTypesPolicy,
    about_listed_nodes,
    alike_in_memory,
    gpus_of_type,
    gpus_with_memory,
    plan_gpus,
    select_gpus,
    selections_of,
    why_not_distinct,
)
from tune_policies.policies.slots_by_node_type import Selection, with_own_slots
from tune_policies.values.errors import InfeasibleRequestError, InvalidResourcesError
from tune_policies.values.resources import (
    TICKS,
    GpuAmount,
    Memory,
    format_amount,
    from_ticks,
    to_ticks,
)
from tune_policies.values.units import format_bytes
from tune_policies.values.wording import counted


def _above_zero(gpus: float) -> float:
    if gpus == 0:
        raise InvalidResourcesError(
            "gpus=0 is not valid for GpuPolicy. Set a number above 0, or use CpuPolicy for trials without GPUs"
        )
    return gpus


class GpuPolicy(GpuTypesPolicy):
    """Reserves the same number of GPUs, or the same GPU fraction, for every worker.

    Attributes:
        gpus: The number of GPUs of each worker: a whole number, or a fraction below 1. A fraction is rounded up to
            1/2, 1/3, 1/4 and so on, so that equal fractions fill a GPU.
        min_gpu_memory: The minimum memory of each GPU: bytes, or a string such as ``"24GiB"``.
        cpus: The number of CPUs of each worker. If ``None``, the CPUs of a node are divided equally among its GPU
            slots. If all trials must get the same resources, the node with the fewest CPUs per slot determines the
            number, and nodes without CPUs are not used, unless no trial fits the nodes with CPUs. Otherwise, trials on
            nodes without CPUs reserve no CPU.
        accelerator_type: The device type to use, such as ``"A100"``, or ``None`` for any type. If several are set,
            such as ``("H100", "A100")``, the policy uses the first type with room for ``min_trials`` trials.
        min_trials: The minimum number of concurrent trials. If fewer trials fit, the policy tries the next type.
        custom: The custom Ray resources of each worker, by name.
        same_for_all: Whether all trials get the same resources on every node. Otherwise, the CPUs and the GPU memory
            of a trial depend on its node.
        memory: The host memory that each worker reserves: bytes, or a string such as ``"4GiB"``. If ``None``, workers
            reserve no host memory.
        num_workers: The number of Train workers in a trial, or 0 if the trial itself trains. With ``(2, 8)``, a trial
            has 2 to 8 workers, depending on the free resources.

    Raises:
        InvalidResourcesError: A field is invalid.
    """

    gpus: Annotated[GpuAmount, AfterValidator(_above_zero)] = 1
    min_gpu_memory: Memory | None = None

    def _plan_on_type(self, capacity: ClusterCapacity, accelerator_type: str | None) -> TrialPlan:
        plans, errors = [], []
        choose_cpus = self.cpus is None
        for selection in self._selections(capacity, accelerator_type):
            request = self._with_gpus(from_ticks(self._share(selection)))
            reasons = self._reasons(capacity, selection, accelerator_type)
            try:
                plan = plan_gpus(capacity, selection, request, choose_cpus=choose_cpus, reasons=reasons)
                plans.append((plan, selection, request, reasons))
            except InfeasibleRequestError as error:
                errors.append(error)
        if errors and not plans:
            # The first selection has the simplest condition, so its error is the easiest to understand.
            raise errors[0]
        if not plans:
            raise self._no_gpu_is_large_enough(capacity, accelerator_type)
        # If several plans allow the maximum number of trials, use the first of them.
        plan, selection, request, reasons = max(plans, key=lambda planned: planned[0].max_concurrent_trials)
        if self.same_for_all:
            return plan
        selection = self._with_nodes_without_cpus(selection, capacity, accelerator_type)
        share, nodes = to_ticks(request.worker.gpus), [selection]
        if share < TICKS:  # then the GPUs of a selection are similar, so that its workers get similar memory
            nodes = [select_gpus(capacity, groups, accelerator_type) for groups in alike_in_memory(selection)]
        nodes = [alike._replace(share_ticks=share) for alike in nodes]
        reasons = [*reasons, *about_listed_nodes(nodes)]
        return with_own_slots(plan, capacity, request, nodes, resource="GPU", choose_cpus=choose_cpus, reasons=reasons)

    def _with_nodes_without_cpus(
        self, selection: Selection, capacity: ClusterCapacity, accelerator_type: str | None
    ) -> Selection:
        """Return the selection with the nodes without CPUs that ``_selections`` leaves out."""
        if self.min_gpu_memory is None or self.cpus is not None:
            return selection
        large = gpus_with_memory(capacity, gpus_of_type(capacity, accelerator_type), int(self.min_gpu_memory))
        if all(node.resources.cpus for node, _ in large.groups):
            return selection
        return large

    def _selections(self, capacity: ClusterCapacity, accelerator_type: str | None) -> Iterator[Selection]:
        usable = gpus_of_type(capacity, accelerator_type)
        if self.min_gpu_memory is None:
            return iter((usable,))
        if self.cpus is None:
            usable = usable._replace(groups=nodes_with_cpus(usable.groups, "GPU", to_ticks(self.gpus)))
        return selections_of(capacity, usable, int(self.min_gpu_memory))

    def _share(self, selection: Selection) -> int:
        """Return the number of GPUs, or the GPU fraction, of each worker in ticks."""
        wish = to_ticks(self.gpus)
        most_devices = max((node.resources.gpus for node, _ in selection.groups), default=1)
        # Above one device, only whole devices are valid, so only a fraction is rounded.
        if wish < TICKS:
            return equal_device_fraction(TICKS // wish, most_devices)
        return wish

    def _reasons(self, capacity: ClusterCapacity, selection: Selection, accelerator_type: str | None) -> list[str]:
        reasons, share = [], self._share(selection)
        if self.min_gpu_memory is not None:
            found = describe_gpus(selection.groups)
            reasons.append(f"only GPUs with at least {format_bytes(int(self.min_gpu_memory))} are used: {found}")
            if self.cpus is None and all(node.resources.cpus for node, _ in selection.groups):
                groups = gpus_of_type(capacity, accelerator_type).groups
                reasons += about_nodes_without_cpus(groups, "GPU", from_ticks(1))
        if share != to_ticks(self.gpus):
            reasons.append(
                f"{format_amount(self.gpus)} GPU is rounded up to {format_amount(from_ticks(share))}, because "
                f"a GPU has room for {counted(TICKS // to_ticks(self.gpus), 'worker')} of this size, and a trial can "
                "stay pending indefinitely if fractions are unequal"
            )
        return reasons

    def _no_gpu_is_large_enough(
        self, capacity: ClusterCapacity, accelerator_type: str | None
    ) -> InfeasibleRequestError:
        wish = {"accelerator_type": accelerator_type, "gpu_memory_bytes": self.min_gpu_memory}
        request = self._with_gpus(self.gpus).model_copy(update=wish)
        there = gpus_of_type(capacity, accelerator_type).groups
        if not there:
            return infeasible(capacity, request)
        offered = f"the cluster has only {describe_gpus(there)}"
        hint = f"Request less GPU memory, or add larger GPUs.{gpu_memory_hint(there)}"
        usable = there
        if self.cpus is None:
            usable = nodes_with_cpus(there, "GPU", to_ticks(self.gpus))
        indistinct = why_not_distinct(usable, int(self.min_gpu_memory or 0))
        if indistinct is not None:
            offered, hint = indistinct
        error = InfeasibleRequestError(str(request), offered, Limit.GPU_MEMORY, hint)
        return in_context(error, capacity, request)
