"""On which GPUs an estimated training fits, and which amount of GPU memory to write for it.

Suggested GPUs are of the vendor whose GPUs the training may use. Without a cluster or a type, this is NVIDIA, because
the estimate contains the overhead of PyTorch on CUDA. Among them are only the types that Ray has constants for, because
they are in use at cloud providers, and that current builds of PyTorch support.
"""

from typing import Final, NamedTuple

from tune_policies.cluster.accelerators import (
    ACCELERATOR_TYPES,
    check_accelerator_type,
    family_of_type,
    gpu_memory_of_type,
    misread_type,
    similar_type,
    type_in_text,
)
from tune_policies.cluster.capacity import ClusterCapacity
from tune_policies.cluster.gpu_sizes import GPU_TOTALS
from tune_policies.plan.headroom import HEADROOM
from tune_policies.values.units import format_bytes, parse_bytes
from tune_policies.values.wording import counted

from ..usage.advised_memory import amount_for_one_more, amount_to_write, trials_with

_DEFAULT_VENDOR: Final = "NVIDIA"

_NOT_SUGGESTED: Final = frozenset({"K80", "P4", "P100", "V100"})
"""Types that current builds of PyTorch do not support.

PyTorch's builds for CUDA 13 contain kernels only for compute capability 7.5 and later (``get_cuda_arch_list`` in
github.com/pytorch/test-infra), because CUDA 13 cannot compile for earlier GPUs. The V100 has 7.0, the P4 6.1, the P100
6.0, and the K80 3.7. The builds for CUDA 12.8 still support the V100, but not the others.
"""


class GpusToUse(NamedTuple):
    """The GPUs that a training may use.

    Attributes:
        text: The GPUs as text, or ``""`` for all GPUs of the vendor.
        vendor: The vendor of the GPUs.
        device_bytes: The memory of the largest of these GPUs, in bytes, or ``None`` if it is not known.
        problem: The reason why the memory is not known and what to do, or ``""``.
    """

    text: str = ""
    vendor: str = _DEFAULT_VENDOR
    device_bytes: int | None = None
    problem: str = ""


def gpus_to_use(
    capacity: ClusterCapacity | None,
    accelerator_type: str | None,
    gpu_memory_bytes: int | None,
    total_bytes: int,
) -> GpusToUse:
    """Return the GPUs that a training may use, according to the arguments of ``GpuMemoryEstimate.explain``.

    ``total_bytes`` is the memory that the training needs, without headroom.

    Raises:
        InvalidResourcesError: The type is unknown.
    """
    if accelerator_type is not None:
        check_accelerator_type(accelerator_type)
    vendor = _vendor_of(accelerator_type)
    if gpu_memory_bytes is not None:
        return GpusToUse(accelerator_type or "the GPU", vendor, gpu_memory_bytes)
    if capacity is not None:
        return _gpus_of_cluster(capacity, accelerator_type, total_bytes)
    if accelerator_type is None:
        return GpusToUse()
    size = gpu_memory_of_type(accelerator_type)
    if size is not None:
        return GpusToUse(accelerator_type, vendor, size)
    similar = type_in_text(accelerator_type) or misread_type(accelerator_type)
    if similar not in GPU_TOTALS:
        similar = similar_type(accelerator_type, GPU_TOTALS)
    hint = "" if similar is None else f"; did you mean {similar!r}?"
    problem = f"the memory of {accelerator_type} is unknown{hint}"
    return GpusToUse(
        accelerator_type, vendor, problem=_with_memory(problem, f'accelerator_type="{accelerator_type}", ')
    )


def _gpus_of_cluster(capacity: ClusterCapacity, accelerator_type: str | None, total_bytes: int) -> GpusToUse:
    nodes = [group.node for group in capacity.gpu_groups(accelerator_type)]
    types = sorted(node.accelerator_type for node in nodes if node.accelerator_type is not None)
    # The GPUs of a cluster are normally from one vendor, so one type determines the vendor.
    vendor = _vendor_of(types[0] if types else accelerator_type)
    of_type = "" if accelerator_type is None else f" of type {accelerator_type}"
    if not nodes:
        needed = format_bytes(parse_bytes(amount_to_write(total_bytes, None)))
        return GpusToUse(vendor=vendor, problem=f"the cluster has no GPU{of_type}. Add a GPU with at least {needed}")
    known = [node.smallest_gpu_memory_bytes for node in nodes if node.smallest_gpu_memory_bytes is not None]
    if not known:
        return GpusToUse(vendor=vendor, problem=_with_memory(f"the memory of the cluster's GPUs{of_type} is unknown"))
    return GpusToUse(f"the largest GPU{of_type} of the cluster", vendor, max(known))


def _with_memory(problem: str, other_arguments: str = "") -> str:
    end = "" if problem.endswith("?") else "."
    return f'{problem}{end} Pass the memory that the driver reports, as in explain({other_arguments}gpu_memory="24GiB")'


def _vendor_of(accelerator_type: str | None) -> str:
    family = None if accelerator_type is None else family_of_type(accelerator_type)
    if family is None:
        return _DEFAULT_VENDOR
    return family.vendor


def about_fit(total_bytes: int, gpus: GpusToUse) -> tuple[str, str]:
    """Return a sentence about the GPUs on which a training fits, and the amount of GPU memory to write for it.

    Args:
        total_bytes: The memory that the training needs, without headroom.
        gpus: The GPUs that the training may use.
    """
    size = gpus.device_bytes
    amount = amount_to_write(total_bytes, size)
    needed = parse_bytes(amount)
    if gpus.problem:
        return gpus.problem, amount
    suggested = (GPU_TOTALS.keys() & ACCELERATOR_TYPES) - _NOT_SUGGESTED
    sizes = {name: gpu_memory_of_type(name) or 0 for name in suggested}
    of_vendor = {name: size for name, size in sizes.items() if _vendor_of(name) == gpus.vendor}
    enough = sorted((size, name) for name, size in of_vendor.items() if size >= needed)
    add, smallest = "Use a smaller batch, or divide the model among several GPUs, for example with FSDP", ""
    if enough:
        least, name = enough[0]
        smallest = f"{name} ({format_bytes(least)})"
        add = f"Use a smaller batch, or a GPU with more memory, such as {smallest}"
    if size is not None and size < needed:
        subject = "this"
        # The training itself would fit, so the sentence must name the headroom as the reason.
        if total_bytes <= size:
            subject = f"with headroom ({format_bytes(needed)}), this"
        return f"{subject} is more than {gpus.text} has ({format_bytes(size)}). {add}", amount
    if size is not None:
        fit = trials_with(amount, size)
        text = f"{counted(fit, 'trial')} of this size would fit on {gpus.text} ({format_bytes(size)})"
        near_miss = amount_for_one_more(total_bytes, size, fit)
        if near_miss is not None:
            text += (
                f', or {fit + 1} with gpu_memory="{near_miss.amount}", which adds {near_miss.added} to the estimate '
                f"instead of {HEADROOM:.0%}"
            )
        return text, amount
    if smallest:
        return f"the smallest {gpus.vendor} GPU of Ray's types with enough memory is {smallest}", amount
    most, name = max((size, name) for name, size in of_vendor.items())
    largest = f"The largest, {name}, has {format_bytes(most)}"
    return f"this is more than any {gpus.vendor} GPU of Ray's types has. {largest}. {add}", amount
